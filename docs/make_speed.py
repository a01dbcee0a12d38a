"""Table of a training step's stages and picture of its loss curves, from the files of a run.

    python docs/make_speed.py docs/runs/speed-2026-11-15-b.json
    python docs/make_speed.py docs/runs/curve-2026-11-15.json docs/runs/curve.png

The files are written by `python -m puzlm.bench_training`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STAGES = ("cut", "tokenise", "sort", "forward", "backward", "optimiser")
COLOURS = {"plain": "#444444", "fast": "#1f77b4", "fp8": "#d62728"}


def table(record: dict[str, Any]) -> str:
    """Markdown: milliseconds for 1,024 puzzles, puzzles a second, share of the matrix rate."""
    lines = [
        "| variant | " + " | ".join(STAGES) + " | step | puzzles/s | of the bf16 rate |",
        "|---" * (len(STAGES) + 4) + "|",
    ]
    for name, found in record["variants"].items():
        if "failed" in found:
            lines.append(f"| {name}: failed |" + " |" * (len(STAGES) + 3))
            continue
        part = 1024 / found["batch"]
        rows = [f"{found['milliseconds'][stage] * part:.2f}" for stage in STAGES]
        share = found.get("share_of_matrix_rate")
        lines.append(
            f"| {name}: {found['change']} | "
            + " | ".join(rows)
            + f" | {found['step_milliseconds'] * part:.2f} | {found['puzzles_per_second']:,.0f} | "
            + ("|" if share is None else f"{100 * share:.0f} % |")
        )
    return "\n".join(lines)


def picture(record: dict[str, Any], path: Path) -> None:
    """All losses of all loops in one figure, and how far each is from the plain one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    curves = {name: c for name, c in record["curves"].items() if "failed" not in c}
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(7, 5.5), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    for name, curve in curves.items():
        steps = range(1, len(curve["loss"]) + 1)
        above.plot(steps, curve["loss"], label=name, color=COLOURS.get(name), lw=1)
        if name != "plain" and "plain" in curves:
            pairs = zip(curve["loss"], curves["plain"]["loss"], strict=True)
            off = [100 * (a / b - 1) for a, b in pairs]
            below.plot(steps, off, color=COLOURS.get(name), lw=1)
    above.set_ylabel("training loss")
    above.set_title(f"same weights, same batches of {record['batch']} puzzles")
    above.legend(frameon=False)
    below.axhline(0, color=COLOURS["plain"], lw=1)
    below.set_ylabel("% off plain")
    below.set_xlabel("step")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(words: list[str]) -> None:
    record = json.loads(Path(words[0]).read_text())
    if "curves" in record:
        picture(record, Path(words[1]))
    else:
        print(table(record))


if __name__ == "__main__":
    main(sys.argv[1:])
