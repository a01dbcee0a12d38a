// The board: pieces in cells, moved by pointer or keyboard.
import { calm, make, pause, percent, viridis } from "./service.js";

const SURE = 0.9; // a piece that is less sure is marked
const DRAG = 6; // pixels a pointer moves before it drags
const HOLD = 280; // milliseconds a finger rests before it lifts a piece

export class Board {
  // events: select(piece), change(), say(text)
  constructor(root, tray, events) {
    Object.assign(this, { root, tray, events });
    this.pieces = [];
    this.cells = [];
    this.poses = [];
    this.locked = new Set();
    this.selected = null;
    this.held = null;
    this.run = 0;
    for (const place of [root, tray]) place.addEventListener("keydown", (event) => this.key(event));
    addEventListener("resize", () => this.fit());
  }

  // Take everything off.
  clear() {
    this.run += 1;
    Object.assign(this, { puzzle: null, pieces: [], cells: [], poses: [], selected: null, held: null, marks: null, busy: false });
    this.locked.clear();
    this.root.replaceChildren();
    this.tray.replaceChildren();
    this.tray.parentNode.hidden = true;
  }

  // Turn the pieces by quarter turns, counter-clockwise; from 4 on they are flipped before.
  turn(poses) {
    this.poses = [...poses];
    this.pieces.forEach((piece, i) => {
      const { style } = piece.querySelector("img");
      style.rotate = poses[i] % 4 ? `${-90 * (poses[i] % 4)}deg` : "";
      style.scale = poses[i] >= 4 ? "-1 1" : "";
    });
  }

  // Lay out a puzzle: piece i in cell start[i].
  load(puzzle, start) {
    this.run += 1;
    this.grid = puzzle.grid;
    this.puzzle = puzzle;
    this.cells = [...start];
    this.poses = [];
    this.locked.clear();
    this.selected = this.held = null;
    this.marks = null;
    const [rows, columns] = puzzle.grid;
    const gap = puzzle.settings.gap || 0;
    this.root.style.setProperty("--rows", rows);
    this.root.style.setProperty("--columns", columns);
    this.fit();
    this.root.style.setProperty("--inset", `${(gap / (1 + gap)) * 50}%`);
    this.root.classList.toggle("dense", rows * columns > 36);
    this.root.classList.add("loose");
    this.pieces = puzzle.pieces.map((url, i) => this.build(url, i));
    this.root.replaceChildren(...this.pieces);
    this.place(true);
  }

  // Cells of whole pixels, or hairlines show between the pieces; no taller than the window.
  fit() {
    if (!this.puzzle) return;
    const [rows, columns] = this.grid;
    const [height, width] = this.puzzle.size;
    const tall = Math.max(280, innerHeight * 0.72);
    const room = Math.min(this.root.parentNode.clientWidth, (tall * columns * width) / (rows * height));
    const cell = Math.max(8, Math.floor(room / columns));
    this.root.style.aspectRatio = "auto";
    this.root.style.width = `${cell * columns}px`;
    const high = Math.max(8, Math.round((cell * height) / width)) * rows;
    this.root.style.height = `${high}px`;
    document.documentElement.style.setProperty("--board-height", `${high}px`);
  }

  build(url, i) {
    const piece = make("button", { type: "button", className: "piece", tabIndex: -1 });
    piece.dataset.piece = i;
    piece.append(
      make("img", { src: url, alt: "", draggable: false }),
      make("span", { className: "badge", hidden: true }, make("b", {})),
      make("span", { className: "pin", "aria-hidden": "true" }),
    );
    piece.addEventListener("pointerdown", (event) => this.grab(event, i));
    // A finger that swipes scrolls the page, one that has lifted a piece does not. The browser
    // asks at the first move, and only a listener that was there before the touch is asked.
    piece.addEventListener("touchmove", (event) => { if (this.lifted) event.preventDefault(); }, { passive: false });
    piece.addEventListener("contextmenu", (event) => { if (this.lifted) event.preventDefault(); });
    piece.addEventListener("focus", () => this.select(i));
    return piece;
  }

  at(cell) { return this.cells.indexOf(cell); }

  // Show every piece where `cells` says; sudden: without gliding.
  place(sudden = false) {
    const [, columns] = this.grid;
    if (sudden) this.root.classList.add("still");
    const homeless = [];
    this.pieces.forEach((piece, i) => {
      const cell = this.cells[i];
      const parent = cell < 0 ? this.tray : this.root;
      if (cell < 0) homeless.push(piece);
      if (cell >= 0 && piece.parentNode !== parent) parent.append(piece);
      piece.style.transform = cell < 0 ? "" :
        `translate(${(cell % columns) * 100}%, ${Math.floor(cell / columns) * 100}%)`;
    });
    this.tray.replaceChildren(...homeless);
    this.tray.parentNode.hidden = homeless.length === 0;
    if (sudden) {
      this.root.getBoundingClientRect();
      this.root.classList.remove("still");
    }
    this.label();
  }

  // Refresh frames, badges, names.
  label() {
    const [, columns] = this.grid;
    const marks = this.marks;
    const first = this.selected ?? this.at(Math.min(...this.cells.filter((c) => c >= 0)));
    this.pieces.forEach((piece, i) => {
      const cell = this.cells[i];
      const sure = marks && marks.positions[i] === cell ? marks.confidences[i] : null;
      const truth = this.puzzle.truth;
      const wrong = Boolean(marks && truth && cell >= 0 && truth[i] !== cell);
      piece.tabIndex = i === first || cell < 0 ? 0 : -1; // the board is one stop of Tab, the tray many
      piece.classList.toggle("wrong", wrong);
      piece.classList.toggle("locked", this.locked.has(i));
      piece.classList.toggle("chosen", i === this.selected);
      piece.classList.toggle("held", i === this.held);
      const badge = piece.querySelector(".badge");
      badge.hidden = sure === null || sure >= SURE;
      if (sure !== null) {
        badge.style.setProperty("--sure", `${Math.max(0.04, sure) * 360}deg`);
        badge.style.setProperty("--tone", viridis(sure));
        badge.firstChild.textContent = percent(sure);
      }
      piece.setAttribute("aria-label", [
        `Piece ${i}`,
        cell < 0 ? "not placed" : `row ${Math.floor(cell / columns) + 1}, column ${cell % columns + 1}`,
        sure === null ? "" : `${percent(sure)} sure`,
        wrong ? "wrong place" : "",
        this.locked.has(i) ? "locked" : "",
        i === this.held ? "picked up" : "",
      ].filter(Boolean).join(", "));
    });
  }

  select(i) {
    if (this.selected === i) return;
    this.selected = i;
    this.label();
    this.events.select(i);
  }

  // Put piece i into a cell; whoever lies there takes its old cell.
  move(i, cell) {
    const other = this.at(cell);
    const from = this.cells[i];
    if (other === i || this.locked.has(i) || (other >= 0 && this.locked.has(other))) return false;
    this.cells[i] = cell;
    if (other >= 0) this.cells[other] = from;
    return true;
  }

  swap(i, cell) {
    this.root.classList.remove("loose");
    const other = this.at(cell);
    if (this.move(i, cell)) {
      this.events.say(other >= 0 ? `Pieces ${i} and ${other} swapped.` : `Piece ${i} moved.`);
      this.place();
      this.events.change();
    } else {
      if (other !== i) this.events.say("A locked piece stays where it is. Unlock it first.");
      this.place();
    }
  }

  // Carry a held piece over a cell: only the cell where it is dropped changes hands.
  carry(i, cell) {
    const now = this.cells;
    this.cells = [...this.before];
    if (cell !== this.before[i] && !this.move(i, cell)) {
      this.cells = now;
      this.events.say("A locked piece stays where it is. Unlock it first.");
      return;
    }
    this.root.classList.remove("loose");
    this.place();
    this.pieces[i].focus({ preventScroll: true }); // lost when it leaves the tray
    this.events.change();
  }

  toggleLock(i) {
    if (this.cells[i] < 0) return;
    if (!this.locked.delete(i)) this.locked.add(i);
    this.events.say(`Piece ${i} ${this.locked.has(i) ? "locked" : "unlocked"}.`);
    this.label();
    this.events.change();
  }

  // Glide to an arrangement, piece after piece in `order`.
  async glide(positions, order) {
    const run = ++this.run;
    // The model may give one cell twice (greedy decoding): the later piece goes to the tray.
    const taken = new Set();
    const goal = positions.map(() => -1);
    for (const i of order) {
      if (positions[i] >= 0 && !taken.has(positions[i])) taken.add(goal[i] = positions[i]);
    }
    this.root.classList.remove("loose");
    if (calm()) {
      this.cells = goal;
      this.place(true);
      return true;
    }
    const step = Math.max(12, Math.min(240, 2400 / order.length));
    for (const i of order) {
      if (this.cells[i] === goal[i] || goal[i] < 0) continue;
      const other = this.at(goal[i]);
      if (other >= 0) this.cells[other] = this.cells[i];
      this.cells[i] = goal[i];
      this.pieces[i].classList.add("flying");
      this.place();
      await pause(step);
      if (run !== this.run) return false;
      setTimeout((piece) => piece.classList.remove("flying"), 500, this.pieces[i]);
    }
    await pause(380);
    if (run !== this.run) return false;
    this.cells = goal;
    this.place();
    return true;
  }

  // ---- pointer ------------------------------------------------------------------------------

  grab(event, i) {
    if (event.button !== 0 || !event.isPrimary || this.busy) return;
    const piece = this.pieces[i];
    const start = [event.clientX, event.clientY];
    const [rows, columns] = this.grid;
    const finger = event.pointerType === "touch";
    let dragging = false;
    let target = -1;
    this.lifted = false;
    piece.setPointerCapture(event.pointerId);
    const lift = () => {
      this.lifted = !this.locked.has(i);
      piece.classList.toggle("dragged", this.lifted);
    };
    const timer = finger ? setTimeout(lift, HOLD) : 0;

    const move = (e) => {
      const [dx, dy] = [e.clientX - start[0], e.clientY - start[1]];
      if (!dragging && Math.hypot(dx, dy) < DRAG) return;
      if (!dragging && this.locked.has(i)) return;
      clearTimeout(timer);
      // Up and down is the page's until the piece is lifted; sideways the page cannot move.
      if (finger && !this.lifted && Math.abs(dy) >= Math.abs(dx)) return;
      dragging = this.lifted = true;
      piece.classList.add("dragged");
      const cell = this.cells[i];
      const base = cell < 0 ? "" : `translate(${(cell % columns) * 100}%, ${Math.floor(cell / columns) * 100}%) `;
      piece.style.transform = `translate(${dx}px, ${dy}px) ${base}`;
      const box = this.root.getBoundingClientRect();
      const column = Math.floor(((e.clientX - box.left) / box.width) * columns);
      const row = Math.floor(((e.clientY - box.top) / box.height) * rows);
      const inside = column >= 0 && column < columns && row >= 0 && row < rows;
      target = inside ? row * columns + column : -1;
      this.pieces.forEach((p, k) => p.classList.toggle("target", inside && k !== i && this.cells[k] === target));
    };
    const end = (e) => {
      clearTimeout(timer);
      this.lifted = false;
      for (const [name, call] of handlers) piece.removeEventListener(name, call);
      this.pieces.forEach((p) => p.classList.remove("target", "dragged"));
      if (dragging && e.type === "pointerup" && target >= 0) this.swap(i, target);
      else this.place();
      if (e.type === "pointercancel") return; // the page was scrolled: nothing was chosen
      piece.focus({ preventScroll: true });
      this.select(i);
    };
    const handlers = [["pointermove", move], ["pointerup", end], ["pointercancel", end]];
    for (const [name, call] of handlers) piece.addEventListener(name, call);
  }

  // ---- keyboard -----------------------------------------------------------------------------

  key(event) {
    const piece = event.target.closest(".piece");
    if (!piece || this.busy) return;
    const i = Number(piece.dataset.piece);
    const [rows, columns] = this.grid;
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (step) {
      const cell = this.cells[i];
      if (cell < 0 && this.held !== i) return;
      let [row, column] = [Math.floor(cell / columns) + step[0], (cell % columns) + step[1]];
      if (cell < 0) {
        // From the tray onto the board: to the first cell that is free, else the first.
        const free = [...Array(rows * columns).keys()].find((c) => this.at(c) < 0);
        this.carry(i, free ?? 0);
      } else if (this.held === i) {
        if (row >= 0 && row < rows && column >= 0 && column < columns) this.carry(i, row * columns + column);
      } else {
        // Walk over holes to the next piece in this direction.
        while (row >= 0 && row < rows && column >= 0 && column < columns) {
          const next = this.at(row * columns + column);
          if (next >= 0) { this.pieces[next].focus({ preventScroll: true }); break; }
          [row, column] = [row + step[0], column + step[1]];
        }
      }
    } else if (event.key === "Enter" || event.key === " ") {
      if (this.held === i) {
        this.held = null;
        this.events.say(`Piece ${i} put down.`);
      } else if (this.locked.has(i)) {
        this.events.say("A locked piece stays where it is. Unlock it first.");
      } else {
        this.held = i;
        this.before = [...this.cells];
        this.events.say(`Piece ${i} picked up. Arrows move it, Enter drops it, Escape puts it back.`);
      }
      this.label();
    } else if (event.key === "Escape" && this.held !== null) {
      this.cells = this.before;
      this.held = null;
      this.place();
      this.pieces[i].focus({ preventScroll: true });
      this.events.say("Put back.");
      this.events.change();
    } else if (event.key === "l" || event.key === "L") {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      this.toggleLock(i);
    } else {
      return;
    }
    event.preventDefault();
  }

  // Draw an arrangement on a canvas.
  paint(canvas, positions, longest = Infinity) {
    const [rows, columns] = this.grid;
    const [height, width] = this.puzzle.size;
    const scale = Math.min(1, longest / Math.max(rows * height, columns * width));
    const [w, h] = [width * scale, height * scale];
    canvas.width = Math.round(columns * w);
    canvas.height = Math.round(rows * h);
    const pen = canvas.getContext("2d");
    positions.forEach((cell, i) => {
      if (cell < 0) return;
      const image = this.pieces[i].querySelector("img");
      pen.save();
      pen.translate((cell % columns + 0.5) * w, (Math.floor(cell / columns) + 0.5) * h);
      pen.rotate(-(this.poses[i] || 0) * Math.PI / 2);
      if (this.poses[i] >= 4) pen.scale(-1, 1);
      pen.drawImage(image, -w / 2, -h / 2, w, h);
      pen.restore();
    });
    return pen;
  }
}
