// What can be taken away: the picture, an animation, the numbers, a link.
import { postBlob, save } from "./service.js";

const $ = (id) => document.getElementById(id);

export function wireDownloads({ board, state, say, fail, pieceForm }) {
  $("get-png").addEventListener("click", () => {
    const canvas = document.createElement("canvas");
    board.paint(canvas, board.cells);
    canvas.toBlob((blob) => save(blob, "puzlm.png"), "image/png");
    say("Picture saved.");
  });
  $("get-json").addEventListener("click", () => {
    const { solution, puzzle } = state;
    const record = {
      grid: puzzle.grid, positions: board.cells, truth: puzzle.truth, names: puzzle.names,
      locked: [...board.locked], turns: board.poses.map((pose) => pose % 4), mirrored: solution?.mirrored ?? [], confidences: solution?.confidences ?? null, order: solution?.order ?? null,
      solver: solution?.solver ?? null, seconds: solution?.seconds ?? null, settings: puzzle.settings,
    };
    save(new Blob([`${JSON.stringify(record, null, 1)}\n`], { type: "application/json" }), "puzlm.json");
    say("JSON saved.");
  });
  $("get-gif").addEventListener("click", async () => {
    say("Drawing the animation…");
    try {
      const [rows, columns] = board.grid;
      const order = state.solution?.order ?? state.start;
      save(await postBlob("/api/gif", pieceForm({
        grid: `${rows}x${columns}`, positions: JSON.stringify(board.cells), order: JSON.stringify(order),
        turns: board.poses.length ? JSON.stringify(board.poses.map((pose) => pose % 4)) : "",
        mirrored: board.poses.length ? JSON.stringify(state.solution.mirrored) : "",
      })), "puzlm.gif");
      say("Animation saved.");
    } catch (error) {
      fail(error);
    }
  });
  $("get-link").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      say(state.photo || state.mode === "own" ? "Link copied. It restores the settings, not your own pictures." : "Link copied.");
    } catch {
      say(`The link is in the address bar: ${location.href}`);
    }
  });
}
