// A plain reading of /openapi.json; nothing is loaded from anywhere else.
import { getJson, make } from "./service.js";

const EXAMPLES = {
  "/api/solve": "curl -F grid=3 -F pieces=@a.png -F pieces=@b.png … http://127.0.0.1:8000/api/solve\ncurl -F grid=3 -F picture=@shuffled.png http://127.0.0.1:8000/api/solve",
  "/api/make": "curl -F sample=shore -F grid=3 -F gap=0.1 http://127.0.0.1:8000/api/make",
};

const api = await getJson("/openapi.json");
const look = (schema) => (schema?.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema);
const kind = (schema) => {
  if (schema?.$ref) return schema.$ref.split("/").pop();
  if (schema?.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema?.type === "array") return `list of ${kind(schema.items)}`;
  if (schema?.format === "binary") return "file";
  return schema?.type ?? "anything";
};

function table(schema) {
  const rows = Object.entries(look(schema)?.properties ?? {}).map(([name, field]) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, kind(field)), make("td", {}, field.description ?? "")));
  return rows.length ? make("table", {}, make("tbody", {}, ...rows)) : null;
}

const box = document.getElementById("docs");
box.prepend(make("p", {}, api.info.summary ?? ""));
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [method, call] of Object.entries(methods)) {
    const body = Object.entries(call.requestBody?.content ?? {})[0];
    const answer = Object.entries(call.responses["200"]?.content ?? {})[0];
    box.append(make("section", { className: "card call" },
      make("h2", {}, make("b", {}, method.toUpperCase()), path),
      make("p", {}, call.description ?? ""),
      ...(body ? [make("h3", {}, `Takes ${body[0]}`), table(body[1].schema)] : []),
      ...(answer ? [make("h3", {}, `Answers ${answer[0]}`), table(answer[1].schema)] : []),
      EXAMPLES[path] ? make("pre", {}, EXAMPLES[path]) : null));
  }
}
box.append(make("section", { className: "card call" }, make("h2", {}, "Errors"),
  make("p", {}, "Every 4xx and 5xx has a code for machines and one sentence for people:"),
  make("pre", {}, '{"error": {"code": "bad_image", "message": "cat.png: not a picture that can be read."}}')));
