// The panel "What the machine reads": one piece as symbols, and how its borders meet the others'.
import { make, percent } from "./service.js";

const ARROWS = { top: "↑", right: "→", bottom: "↓", left: "←" };
const NEAR = 0.95; // closer than this share of the codebook counts as alike

function layerName(terms, k) {
  const base = baseOf(terms, k);
  if (base < k) return `+${k - base}`;
  if (terms[k] === "square") return "patch";
  return k === 0 ? "edge" : `${terms[k].slice(6)} px`;
}

function explain(terms, k) {
  const base = baseOf(terms, k);
  if (base < k) return `What is left over of ${layerName(terms, base)}, said ${ordinal(k - base)}`;
  return terms[k] === "square" ? "A square patch" : `A strip ${terms[k].slice(6)} pixels deep`;
}

// The layer that a correction belongs to: the last before it that is none.
function baseOf(terms, k) {
  return terms[k].startsWith("residual") ? baseOf(terms, k - 1) : k;
}

function verdict(position, layer) {
  if (position.own[layer] === position.other[layer]) return "same";
  return position.closeness[layer] >= NEAR ? "near" : "far";
}

const SIGN = { same: "=", near: "≈", far: "·" };
const SAID = { same: "the same symbol", near: "alike symbols", far: "different symbols" };

function ordinal(n) {
  const tail = n % 100 > 10 && n % 100 < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[n % 10] || "th";
  return `${n}${tail}`;
}

const pad = (symbol) => String(symbol).padStart(4, "0");

export class ReadingPanel {
  constructor(root, empty, pick) {
    Object.assign(this, { root, empty, pick });
    this.layer = 0;
  }

  clear() {
    this.root.hidden = true;
    this.empty.hidden = false;
    this.root.replaceChildren();
    this.reading = this.story = null;
  }

  // Say how the answer was found.
  tell(text) {
    this.story = text;
    this.reading = null;
    this.empty.hidden = true;
    this.root.hidden = false;
    this.draw();
  }

  show(reading, facts) {
    this.reading = reading;
    this.facts = facts;
    if (this.layer >= reading.layers.length) this.layer = 0;
    this.empty.hidden = true;
    this.root.hidden = false;
    this.draw();
  }

  draw() {
    const { reading, facts } = this;
    const told = this.story ? [make("p", { className: "story" }, this.story)] : [];
    if (!reading) return this.root.replaceChildren(...told);
    this.root.replaceChildren(
      ...told,
      this.head(reading, facts),
      this.ring(reading, facts),
      ...(reading.layers.length > 1 ? [this.layers(reading)] : []),
      this.seams(reading, facts),
      this.sentence(reading),
      this.words(reading),
    );
  }

  head(reading, facts) {
    const figure = (src, caption, kind) => make("figure", { className: kind },
      make("img", { src, alt: "" }), make("figcaption", {}, caption));
    return make("div", { className: "look" },
      figure(facts.picture, `Piece ${reading.piece}, as you see it`, "seen"),
      make("span", { className: "to", "aria-hidden": "true" }, "→"),
      figure(reading.picture, reading.parts ? `its first ${reading.layers.length} of ${reading.layers.length + reading.parts} symbols`
        : "as the machine reads it", "read"));
  }

  // The super-token laid out around the piece, in reading order.
  ring(reading, facts) {
    const B = reading.granularity;
    const strips = reading.walk.some(([row, column]) => row > B - 1 || column > B - 1);
    const size = strips ? B + 2 : B;
    const meets = new Map();
    if (strips) {
      for (const side of reading.sides) {
        side.positions.forEach((position, k) => {
          const cell = { top: [0, k + 1], right: [k + 1, B + 1], bottom: [B + 1, k + 1], left: [k + 1, 0] };
          meets.set(cell[side.side].join(), verdict(position, this.layer));
        });
      }
    }
    const symbols = reading.text.split(" ").map((word) => word.split(":").map(Number));
    const ring = make("ol", { className: "ring", "aria-label": "Super-token, clockwise from the top left" });
    ring.style.setProperty("--size", size);
    symbols.forEach((at, k) => {
      const [row, column] = reading.walk[k];
      const kind = meets.get([row, column].join()) || "open";
      const chip = make("li", { className: `chip ${kind}` }, pad(at[this.layer]));
      if (strips && (column === 0 || column === B + 1)) chip.classList.add("upright");
      chip.style.gridArea = `${row + 1} / ${column + 1}`;
      chip.title = `Symbol ${k + 1} of ${symbols.length}` + (kind in SAID ? `: meets ${SAID[kind]}` : "");
      if (k === 0) chip.classList.add("first");
      ring.append(chip);
    });
    const middle = make("li", { className: "middle", role: "presentation" },
      make("img", { src: facts.picture, alt: "" }));
    middle.style.gridArea = strips ? `2 / 2 / ${B + 2} / ${B + 2}` : `2 / 2 / ${B} / ${B}`;
    ring.append(middle);
    return make("div", { className: "ring-box" },
      make("h3", {}, "Its super-token"),
      make("p", { className: "hint" }, `${symbols.length} border strips, read clockwise from the top left. `
        + "Each number is an entry of the codebook."),
      ring);
  }

  layers(reading) {
    const group = make("div", { className: "switch small", role: "radiogroup", "aria-label": "Which symbol of each strip" });
    reading.layers.forEach((_, k) => {
      const input = make("input", { type: "radio", name: "layer", value: k, checked: k === this.layer });
      input.addEventListener("change", () => {
        this.layer = k;
        this.draw();
        this.root.querySelector(`input[name=layer][value="${k}"]`).focus();
      });
      group.append(make("label", {}, input, make("span", { title: explain(reading.layers, k) }, layerName(reading.layers, k))));
    });
    return group;
  }

  seams(reading, facts) {
    const box = make("div", { className: "seams" }, make("h3", {}, "Where it meets its neighbours"));
    const key = make("p", { className: "key hint" });
    for (const kind of ["same", "near", "far"]) {
      key.append(make("span", {}, make("i", { className: `sign ${kind}` }, SIGN[kind]), ` ${SAID[kind]}`));
    }
    box.append(key);
    if (reading.sides.some((side) => side.rank !== null)) {
      box.append(make("p", { className: "hint" }, "At the right: how a second small model, which knows only "
        + "such sides, ranks this neighbour among all other pieces."));
    }
    for (const side of reading.sides) box.append(this.seam(side, reading, facts));
    return box;
  }

  seam(side, reading, facts) {
    if (side.neighbour === null) {
      const what = facts.edges[side.side] ? "the edge of the picture" : "an empty cell";
      return make("p", { className: "no-seam" }, make("b", {}, `${ARROWS[side.side]} ${side.side}`), ` ${what}`);
    }
    const kinds = side.positions.map((position) => verdict(position, this.layer));
    const count = (kind) => kinds.filter((k) => k === kind).length;
    const codes = (key, where) => make("div", { className: `codes ${where}`, "aria-hidden": "true" },
      ...side.positions.map((p, k) => make("span", { className: kinds[k] }, pad(p[key][this.layer]))));
    const signs = make("div", { className: "signs", "aria-hidden": "true" },
      ...kinds.map((kind) => make("i", { className: `sign ${kind}` }, SIGN[kind])));
    const strip = (src) => make("img", { className: "strip", src, alt: "" });
    const other = make("button", { type: "button", className: "link" }, `piece ${side.neighbour}`);
    other.addEventListener("click", () => this.pick(side.neighbour));
    const head = make("p", { className: "seam-head" },
      make("b", {}, `${ARROWS[side.side]} ${side.side}`), make("span", {}, " meets ", other));
    if (side.rank !== null) {
      const good = side.rank === 1;
      head.append(make("span", { className: good ? "rank good" : "rank" },
        `${good ? "first choice" : `${ordinal(side.rank)} choice`} of ${reading.candidates} · ${percent(side.share)}`));
    }
    const told = `${count("same")} same and ${count("near")} alike of ${kinds.length} symbols`;
    return make("div", { className: "seam", role: "group", "aria-label": `${side.side} side: ${told}` },
      head, codes("own", "above"), strip(side.strip), signs, strip(side.other_strip), codes("other", "below"));
  }

  sentence(reading) {
    return make("details", { className: "sentence" },
      make("summary", {}, "The whole super-token"),
      make("p", { className: "hint" }, "This is all that is passed on: "
        + `${reading.layers.length} symbols a strip`
        + (reading.parts ? `, and ${reading.parts} finer ones for what these leave over.` : ".")),
      make("code", {}, reading.text));
  }

  words(reading) {
    const list = make("dl", {});
    for (const [word, means] of [
      ["Strip", "A short part of the border, a few pixels deep. A side has "
        + `${reading.granularity} of them.`],
      ["Codebook", "A list of typical strips, learned from many pictures. A strip is replaced by the entry most like it."],
      ["Symbol", "The number of that entry. The machine gets numbers, no colours."],
      ["Edge, 2 px, 4 px …", "How deep the strip is that a symbol stands for."],
      ["+1, +2 …", "Symbols for what the one before them leaves over, finer each time."],
      ["Super-token", "All symbols of a piece, clockwise: one word of the sentence that is the puzzle."],
    ]) list.append(make("dt", {}, word), make("dd", {}, means));
    return make("details", { className: "sentence words" }, make("summary", {}, "What these words mean"), list);
  }
}
