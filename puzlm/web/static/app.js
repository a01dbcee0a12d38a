// The page: make a puzzle, solve it, look at it, mend it, take it away.
import { Board } from "./board.js";
import { wireDownloads } from "./keep.js";
import { ReadingPanel } from "./reading.js";
import { blobOf, calm, form, getJson, make, pause, percent, postJson, viridis } from "./service.js";

const $ = (id) => document.getElementById(id);
const state = { mode: "cut", sample: null, photo: null, own: null, puzzle: null, start: [], solution: null, making: 0 };
let limits = { body: 32 * 2 ** 20, pieces: 1000, seconds: 120 };
const SLOW = 100; // pieces from which on a person is told that it takes time

const board = new Board($("board"), $("tray-pieces"), { select: look, change: changed, say });
const panel = new ReadingPanel($("reading-body"), $("reading-empty"), (piece) => board.pieces[piece].focus());

function say(text, kind = "") {
  $("status").textContent = text;
  $("status").className = kind;
}

// What could not be made leaves nothing on the board that somebody would take for it.
function clear() {
  state.puzzle = state.solution = null;
  board.clear();
  panel.clear();
  $("outcome").hidden = true;
  changed();
}

const fail = (error) => {
  if (!error.code) console.error(error);
  say(error.code ? error.message : "Something went wrong on this page.", "bad");
};

const INVITE = "Drop your piece files, a zip, or one shuffled picture. Until then: a sample, to try it.";

// ---- making -----------------------------------------------------------------------------------

const gridText = () => `${$("rows").value || 3}x${$("columns").value || 3}`;

async function cut() {
  const turn = ++state.making;
  const sample = state.photo ? "" : state.sample;
  say("Cutting…");
  try {
    const puzzle = await postJson("/api/make", form({
      sample, picture: state.photo, grid: gridText(), gap: $("gap").value / 100,
      missing: $("missing").value || 0, seed: $("seed").value || 0,
    }));
    if (turn !== state.making) return;
    writeLink();
    await present(puzzle, turn, true);
  } catch (error) {
    if (turn !== state.making) return;
    clear();
    fail(error);
  }
}

async function openOwn() {
  if (!state.own) return say(INVITE);
  const turn = ++state.making;
  const files = state.own;
  say("Reading your pieces…");
  const data = new FormData();
  const zipped = files.length === 1 && (/\.zip$/i.test(files[0].name) || files[0].type.includes("zip"));
  if (zipped) data.append("zip", files[0]);
  else if (files.length === 1) data.append("picture", files[0]);
  else files.forEach((file) => data.append("pieces", file));
  if (state.ownGrid) data.append("grid", gridText());
  try {
    const puzzle = await postJson("/api/open", data);
    if (turn !== state.making) return;
    [$("rows").value, $("columns").value] = puzzle.grid;
    await present(puzzle, turn, false);
  } catch (error) {
    if (turn !== state.making) return;
    clear();
    fail(error);
  }
}

async function present(puzzle, turn, fromPicture) {
  state.puzzle = puzzle;
  state.solution = null;
  state.start = puzzle.pieces.map((_, i) => i);
  panel.clear();
  $("outcome").hidden = true;
  $("downloads").hidden = true;
  const whole = fromPicture && puzzle.truth && !calm();
  board.load(puzzle, whole ? puzzle.truth : state.start);
  board.busy = true;
  if (whole) {
    board.root.classList.remove("loose");
    await pause(420); // the whole picture, before your eyes
    if (turn !== state.making) return;
    board.root.classList.add("loose");
    await pause(320);
    if (turn !== state.making) return;
    board.cells = [...state.start];
    board.place();
    await pause(300);
    if (turn !== state.making) return;
  }
  board.busy = false;
  changed();
  const [rows, columns] = puzzle.grid;
  const gone = rows * columns - puzzle.pieces.length;
  const time = puzzle.pieces.length > SLOW ? " So many may take a minute." : "";
  say(puzzle.settings.open ? `${puzzle.pieces.length} pieces; their grid will be found. Press Solve.${time}` : `${puzzle.pieces.length} pieces, ${fromPicture ? "shuffled" : `${rows} × ${columns}`}${gone ? `; ${gone} missing` : ""}. Press Solve.${time}`);
}

// ---- solving ----------------------------------------------------------------------------------

function pieceForm(fields) {
  const data = form(fields);
  state.puzzle.pieces.forEach((url, i) => data.append("pieces", blobOf(url), `${i}.png`));
  return data;
}

// Locked pieces stay where they are, the others are solved around them.
async function solve() {
  if (!state.puzzle || board.busy) return;
  const turn = ++state.making;
  const given = {};
  for (const i of board.locked) if (board.cells[i] >= 0) given[i] = board.cells[i];
  const locked = Object.keys(given).length;
  board.busy = true;
  changed();
  const begun = performance.now();
  $("outcome").hidden = false;
  $("others").hidden = true;
  $("who").textContent = "…";
  $("score").textContent = "…";
  const slow = state.puzzle.pieces.length > SLOW ? " This may take a minute." : "";
  say(`${locked ? `Solving around ${locked} locked` : "Solving"}…${slow}`);
  const clock = setInterval(() => { $("time").textContent = `${((performance.now() - begun) / 1000).toFixed(1)} s`; }, 100);
  try {
    const [rows, columns] = state.puzzle.grid;
    const open = state.puzzle.settings.open && !locked; // nobody has named the grid
    const found = await postJson("/api/solve", pieceForm({
      grid: open ? "" : `${rows}x${columns}`, solver: $("solver").value, decode: $("decode").value,
      given: JSON.stringify(given), rotations: turned() ? 1 : "",
      reference: state.mode === "own" && $("whole").files[0] || "",
    }));
    clearInterval(clock);
    if (turn !== state.making) return;
    state.solution = found;
    board.marks = null;
    if (`${found.grid}` !== `${state.puzzle.grid}`) regrid(found.grid);
    board.turn(found.turns.map((turn, i) => turn + (found.mirrored.includes(i) ? 4 : 0)));
    $("time").textContent = found.seconds < 0.1 ? `${Math.max(1, Math.round(found.seconds * 1000))} ms` : `${found.seconds.toFixed(1)} s`;
    $("who").textContent = found.solver;
    panel.tell(story(found));
    if (!(await board.glide(found.positions, found.order))) return;
    board.marks = found;
    board.busy = false;
    thumbs();
    changed();
    if (board.selected === null && innerWidth > 760) board.select(central());
    say(summary(), right() === state.puzzle.pieces.length ? "good" : "");
  } catch (error) {
    $("outcome").hidden = !state.solution;
    if (turn === state.making) fail(error);
  } finally {
    clearInterval(clock);
    if (turn === state.making) {
      board.busy = false;
      changed();
    }
  }
}

// Lay the pieces out on the grid that was found for them.
function regrid(grid) {
  [$("rows").value, $("columns").value] = state.puzzle.grid = grid;
  state.start = state.puzzle.pieces.map((_, i) => (i < grid[0] * grid[1] ? i : -1));
  board.load(state.puzzle, state.start);
}

const turned = () => state.mode === "own" && $("turned").checked;

// How this answer was found, and whether what the panel shows had a part in it.
function story(found) {
  if (found.solver === "reference") return "The pieces were laid by the picture of the whole. Nothing was read.";
  if (found.turns.length) return "Pieces that may be turned are joined by their pixels. Nothing was read for this answer.";
  if (found.read) return "A language model read these symbols for this answer.";
  const name = $("solver").value;
  if (name === "random") return "This answer is pure chance. Nothing was read.";
  if (name === "bigram") return "For this answer a small model compared the symbols of sides. No sentence was read.";
  const done = found.clear ? "The edges of these pieces left no doubt, so no sentence was read."
    : "For this answer no sentence was read: the pieces were compared by their pixels.";
  return `${done} The symbols below are what a language model would have read.`;
}

// The piece in the middle has most neighbours to show.
const central = () => {
  const [rows, columns] = board.grid;
  return Math.max(0, board.at(Math.floor(rows / 2) * columns + Math.floor(columns / 2)));
};

const right = () => (state.puzzle.truth ? state.puzzle.truth.filter((cell, i) => cell === board.cells[i]).length : null);

function summary() {
  const n = state.puzzle.pieces.length;
  const mean = state.solution.confidences.reduce((a, b) => a + b, 0) / n;
  const cut = state.solution.complete ? "" : " Time was up: this is the best arrangement so far.";
  const sure = `On average ${percent(mean)} sure.${cut}`;
  if (!state.puzzle.truth) return `Solved. ${sure}`;
  return right() === n ? `All ${n} pieces in place. ${sure}` : `${right()} of ${n} pieces in place. ${sure}`;
}

function thumbs() {
  const list = [state.solution.positions, ...state.solution.alternatives];
  $("others").hidden = list.length < 2;
  $("thumbs").replaceChildren(...list.map((positions, k) => {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const pen = board.paint(canvas, positions, 168);
    const [rows, columns] = board.grid;
    const [w, h] = [canvas.width / columns, canvas.height / rows];
    let moved = 0;
    positions.forEach((cell, i) => {
      if (cell < 0 || cell === list[0][i]) return;
      moved += 1;
      pen.strokeStyle = "#ffffff";
      pen.lineWidth = 3;
      pen.strokeRect((cell % columns) * w + 2, Math.floor(cell / columns) * h + 2, w - 4, h - 4);
      pen.strokeStyle = "#111111";
      pen.lineWidth = 1;
      pen.strokeRect((cell % columns) * w + 2, Math.floor(cell / columns) * h + 2, w - 4, h - 4);
    });
    const name = k === 0 ? "Best" : `No. ${k + 1}`;
    const button = make("button", { type: "button", className: "thumb", "aria-pressed": "false" },
      canvas, make("span", {}, name), make("small", {}, k === 0 ? "its answer" : `${moved} moved`));
    button.addEventListener("click", async () => {
      if (board.busy) return;
      board.busy = true;
      changed();
      const done = await board.glide(positions, state.solution.order);
      if (done) board.busy = false;
      changed();
      say(k === 0 ? "Its best arrangement." : `Arrangement ${k + 1}: ${moved} pieces lie elsewhere.`);
    });
    button.positions = positions;
    return button;
  }));
}

// Something on the board changed: buttons, score, marks.
function changed() {
  const ready = Boolean(state.puzzle) && !board.busy;
  $("solve").disabled = !ready;
  $("solve").textContent = board.locked.size ? `Solve around ${board.locked.size} locked` : "Solve";
  $("reset").disabled = !ready;
  $("to-reading").hidden = board.selected === null;
  $("lock").disabled = !ready || board.selected === null;
  const on = board.selected !== null && board.locked.has(board.selected);
  $("lock").setAttribute("aria-pressed", String(on));
  $("lock").firstChild.textContent = on ? "Unlock" : "Lock";
  $("downloads").hidden = !state.puzzle;
  if (state.puzzle && state.solution && !board.busy) {
    $("score").textContent = right() === null ? "unknown" : `${right()} of ${state.puzzle.pieces.length}`;
    board.label();
    for (const thumb of $("thumbs").children) {
      thumb.setAttribute("aria-pressed", String(thumb.positions.every((cell, i) => cell === board.cells[i])));
    }
  }
  if (ready && board.selected !== null) look(board.selected);
}

// ---- reading ----------------------------------------------------------------------------------

let looking = 0;
async function look(piece) {
  if (!state.puzzle) return;
  $("to-reading").hidden = false;
  if (!board.busy) {
    $("lock").disabled = false;
    const on = board.locked.has(piece);
    $("lock").setAttribute("aria-pressed", String(on));
    $("lock").firstChild.textContent = on ? "Unlock" : "Lock";
  }
  const turn = ++looking;
  await pause(60); // a key held down walks over many pieces
  if (turn !== looking) return;
  const [rows, columns] = board.grid;
  const cell = board.cells[piece];
  const [row, column] = [Math.floor(cell / columns), cell % columns];
  const edges = { top: row === 0, right: column === columns - 1, bottom: row === rows - 1, left: column === 0 };
  const beside = { top: cell - columns, right: cell + 1, bottom: cell + columns, left: cell - 1 };
  const neighbours = {};
  for (const side of Object.keys(beside)) {
    const other = cell < 0 || edges[side] ? -1 : board.at(beside[side]);
    if (other >= 0) neighbours[side] = other;
  }
  if (board.poses.some(Boolean)) return panel.tell(panel.story); // its sides are not those that meet
  try {
    const reading = await postJson("/api/read", { symbols: state.puzzle.symbols, piece, neighbours });
    if (turn === looking) panel.show(reading, { picture: state.puzzle.pieces[piece], edges });
  } catch (error) {
    if (turn === looking) fail(error);
  }
}

// ---- links ------------------------------------------------------------------------------------

function writeLink() {
  const fields = new URLSearchParams({ grid: gridText(), gap: $("gap").value / 100, missing: $("missing").value, seed: $("seed").value });
  if (!state.photo) fields.set("sample", state.sample);
  history.replaceState(null, "", `#${fields}`);
}

function readLink() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const whole = (name, low, high, old) => {
    const value = Number.parseInt(fields.get(name) ?? "", 10);
    return Number.isFinite(value) ? Math.min(high, Math.max(low, value)) : old;
  };
  const grid = /^(\d{1,2})x(\d{1,2})$/.exec(fields.get("grid") ?? "");
  if (grid) {
    $("rows").value = Math.min(50, Math.max(1, grid[1]));
    $("columns").value = Math.min(50, Math.max(1, grid[2]));
  }
  const gap = Number(fields.get("gap"));
  if (fields.has("gap") && gap >= 0 && gap <= 0.5) $("gap").value = Math.round(gap * 100);
  $("missing").value = whole("missing", 0, 99, $("missing").value);
  $("seed").value = whole("seed", 0, 4294967295, $("seed").value);
  const wanted = document.querySelector(`input[name=sample][value="${CSS.escape(fields.get("sample") ?? "")}"]`);
  if (wanted) {
    wanted.checked = true;
    state.sample = wanted.value;
    state.photo = null;
  }
  showGap();
}

// ---- controls ---------------------------------------------------------------------------------

function showGap() {
  const gap = Number($("gap").value);
  $("gap-out").textContent = gap ? `${gap} % of a piece` : "none";
  $("missing").max = Math.max(0, $("rows").value * $("columns").value - 2);
}

function setMode(mode) {
  state.mode = mode;
  document.querySelector(`input[name=mode][value=${mode}]`).checked = true;
  $("cut-box").hidden = mode !== "cut";
  $("own-box").hidden = mode !== "own";
  for (const box of document.querySelectorAll(".only-cut")) box.hidden = mode !== "cut";
}

let timer = 0;
function remake(wait = 350) {
  clearTimeout(timer);
  showGap();
  timer = setTimeout(() => (state.mode === "cut" ? cut() : openOwn()), wait);
}

function take(files, mode) {
  const list = [...files].filter((file) => file.size > 0);
  if (!list.length) return say("There is nothing in that file.", "bad");
  if (list.length > limits.pieces) return say(`At most ${limits.pieces} pieces, please.`, "bad");
  if (list.reduce((sum, file) => sum + file.size, 0) > limits.body) {
    return say(`That is more than ${Math.round(limits.body / 2 ** 20)} MB; smaller files, please.`, "bad");
  }
  const zipped = /\.zip$/i.test(list[0].name);
  if (mode === "cut" && list.length === 1 && !zipped) {
    setMode("cut");
    state.photo = list[0];
    for (const input of document.querySelectorAll("input[name=sample]")) input.checked = false;
    cut();
  } else {
    setMode("own");
    state.own = list;
    state.ownGrid = false;
    openOwn();
  }
}

function wire() {
  for (const id of ["rows", "columns", "gap", "missing", "seed"]) {
    $(id).addEventListener("input", () => {
      if (id === "rows" || id === "columns") state.ownGrid = true;
      remake();
    });
  }
  $("dice").addEventListener("click", () => {
    $("seed").value = Math.floor(Math.random() * 10_000);
    remake(0);
  });
  for (const input of document.querySelectorAll("input[name=mode]")) {
    input.addEventListener("change", () => {
      setMode(input.value);
      if (input.value === "cut") remake(0);
      else if (state.own) openOwn();
      else say(INVITE);
    });
  }
  $("solver").addEventListener("change", () => { $("decode-field").hidden = $("solver").value !== "seq2seq"; });
  $("decode-field").hidden = true;
  $("solve").addEventListener("click", solve);
  $("lock").addEventListener("click", () => { if (board.selected !== null) board.toggleLock(board.selected); });
  $("to-reading").addEventListener("click", () => {
    $("reading").scrollIntoView({ behavior: calm() ? "auto" : "smooth" });
    $("reading-title").focus({ preventScroll: true });
  });
  $("reset").addEventListener("click", () => {
    board.marks = null;
    board.locked.clear();
    board.turn([]);
    board.cells = [...state.start];
    board.root.classList.add("loose");
    state.solution = null;
    $("outcome").hidden = true;
    board.place();
    changed();
    say("Shuffled again. Press Solve.");
  });
  $("photo").addEventListener("change", (event) => take(event.target.files, "cut"));
  $("own").addEventListener("change", (event) => take(event.target.files, "own"));
  for (const input of [$("photo"), $("own")]) input.addEventListener("click", () => { input.value = ""; });
  // Files may be dropped anywhere: one picture is cut, several files are pieces.
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files.length) take(event.dataTransfer.files, state.mode);
  });
  addEventListener("hashchange", () => { readLink(); setMode("cut"); cut(); });
}

async function begin() {
  $("scale").style.background = `linear-gradient(90deg, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map(viridis).join(", ")})`;
  wire();
  wireDownloads({ board, state, say, fail, pieceForm });
  try {
    const [{ samples }, about] = await Promise.all([getJson("/api/samples"), getJson("/api/models")]);
    limits = about.limits;
    $("samples").replaceChildren(...samples.map((sample, k) => {
      const input = make("input", { type: "radio", name: "sample", value: sample.name, checked: k === 0 });
      input.addEventListener("change", () => {
        state.sample = sample.name;
        state.photo = null;
        remake(0);
      });
      return make("label", { title: sample.title }, input,
        make("img", { src: sample.url, alt: sample.title, width: 72, height: 72 }));
    }));
    state.sample = samples[0].name;
    readLink();
    setMode(location.hash.length > 1 ? "cut" : "own");
    await cut();
  } catch (error) {
    fail(error);
  }
}

begin();
