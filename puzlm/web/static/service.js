// Talking to the service, and small helpers that everything uses.

export class ServiceError extends Error {
  constructor(code, message, retry) {
    super(message);
    this.code = code;
    this.retry = retry;
  }
}

async function post(path, body) {
  const options = { method: "POST", body };
  if (!(body instanceof FormData)) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new ServiceError("offline", "The service does not answer. Is it still running?");
  }
  if (answer.ok) return answer;
  let error = { code: "internal", message: `The service answered ${answer.status}.` };
  try {
    error = (await answer.json()).error;
  } catch { /* not JSON: keep the plain message */ }
  throw new ServiceError(error.code, error.message, Number(answer.headers.get("Retry-After")));
}

export const postJson = async (path, body) => (await post(path, body)).json();
export const postBlob = async (path, body) => (await post(path, body)).blob();

export async function getJson(path) {
  const answer = await fetch(path);
  return answer.json();
}

export function form(fields) {
  const data = new FormData();
  for (const [name, value] of Object.entries(fields)) {
    if (value !== undefined && value !== null && value !== "") data.append(name, value);
  }
  return data;
}

export function blobOf(url) {
  const [head, data] = url.split(",");
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  return new Blob([bytes], { type: head.slice(5).split(";")[0] });
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// make("p", {className: "x"}, child, "text")
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role") element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
}

// Viridis: even steps look even, in grey and to colour-blind eyes too.
const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141],
  [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];

export function viridis(share) {
  const at = Math.min(1, Math.max(0, share)) * (VIRIDIS.length - 1);
  const low = Math.min(VIRIDIS.length - 2, Math.floor(at));
  const mix = VIRIDIS[low].map((v, k) => Math.round(v + (VIRIDIS[low + 1][k] - v) * (at - low)));
  return `rgb(${mix.join(" ")})`;
}

// As the command does it: nothing but certainty is 100 %.
export const percent = (share) => `${Math.floor(share * 100 + 1e-9)}\u00a0%`;
export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
export const pause = (ms) => new Promise((done) => setTimeout(done, ms));
