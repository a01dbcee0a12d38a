"""Fill docs/speed.md: the stages of a training step, trick by trick, and the loss curves.

    python -m tools.make_speed

Reads the files that `python -m bench.training` wrote on a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "speed.md"
RUNS = ROOT / "docs" / "runs"
LADDER = "speed-2026-11-18-c.json"
PLAIN = "speed-2026-11-18-d.json"  # again: beside its first run something compiled
# Two changes that took the place of what was there: what they do, before, after.
PAIRS = (
    (
        "attention keeps its sums for its backward pass",
        ("speed-2026-11-17-b.json", "padded"),
        ("speed-2026-11-17-b.json", "logsum"),
    ),
    (
        "norms keep nothing but what they left",
        ("speed-2026-11-18-e.json", "ahead"),
        (LADDER, "ahead"),
    ),
)
STAGES = ("cut", "tokenise", "sort", "forward", "backward", "optimiser")
CURVES = RUNS / "curve-2026-11-18-b.json"
PICTURE = ROOT / "docs" / "pictures" / "curve.png"
COLOURS = {"plain": "#444444", "fast": "#1f77b4", "fp8": "#d62728"}
STYLES = {"plain": "-", "fast": "--", "fp8": ":"}


def read(name: str) -> dict[str, Any]:
    """One file of a run on a GPU."""
    found: dict[str, Any] = json.loads((RUNS / name).read_text())
    return found


def ladder() -> dict[str, Any]:
    """All steps, measured on one card."""
    record = read(LADDER)
    record["variants"]["plain"] = read(PLAIN)["variants"]["plain"]
    return record


def table(head: str, rows: dict[str, dict[str, Any]]) -> str:
    """Markdown: milliseconds for 1,024 puzzles, puzzles a second, share of the matrix rate."""
    lines = [
        f"| {head} | " + " | ".join(STAGES) + " | step | puzzles/s | of the bf16 rate |",
        "|---" * (len(STAGES) + 4) + "|",
    ]
    for label, found in rows.items():
        part = 1024 / found["batch"]
        cells = [f"{found['milliseconds'][stage] * part:.2f}" for stage in STAGES]
        cells += [f"{found['step_milliseconds'] * part:.2f}", f"{found['puzzles_per_second']:,.0f}"]
        share = found.get("share_of_matrix_rate")
        cells.append("" if share is None else f"{100 * share:.0f} %")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def pairs() -> dict[str, dict[str, Any]]:
    """Before and after, of changes that are no switch."""
    return {
        f"{what}: {when}": read(name)["variants"][step]
        for what, *both in PAIRS
        for when, (name, step) in zip(("before", "after"), both, strict=True)
    }


def facts(record: dict[str, Any]) -> str:
    """One sentence: the card, its matrix rate, and what a puzzle costs."""
    last = list(record["variants"].values())[-1]
    return (
        f"{record['device']}, torch {record['torch']}, {record['matrix_tflops']:.0f} TFLOP/s "
        "measured on a bfloat16 product of 8,192 x 8,192 matrices; "
        f"{last['parameters'] / 1e6:.1f} M weights, {last['gflop_per_puzzle']:.1f} GFLOP a puzzle "
        "counted by the textbook."
    )


def closeness(record: dict[str, Any]) -> str:
    """How far the fast loops' losses are from the plain one's."""
    plain = record["curves"]["plain"]["loss"]
    said = []
    for name, curve in record["curves"].items():
        if name != "plain":
            off = [100 * (a / b - 1) for a, b in zip(curve["loss"], plain, strict=True)]
            early = max(abs(x) for x in off[:100])
            mean = sum(off[100:]) / len(off[100:])
            said.append(
                f"`{name}` stays within {early:.2f} % over the first 100 steps and is "
                f"{mean:+.2f} % off on average after them (at most {max(map(abs, off)):.1f} %)"
            )
    return f"{record['steps']} steps of {record['batch']} puzzles: " + "; ".join(said) + "."


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
        look = {"color": COLOURS.get(name), "ls": STYLES.get(name, "-"), "lw": 1.3}
        above.plot(steps, curve["loss"], label=name, **look)
        if name != "plain" and "plain" in curves:
            pairs = zip(curve["loss"], curves["plain"]["loss"], strict=True)
            below.plot(steps, [100 * (a / b - 1) for a, b in pairs], **look)
    above.set_ylabel("training loss (nats)")
    above.set_title(f"same weights, same batches of {record['batch']:,} puzzles")
    above.legend(frameon=False)
    below.axhline(0, color=COLOURS["plain"], lw=1)
    below.set_ylabel("% off plain")
    below.set_xlabel("step")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def filled(text: str) -> str:
    """The page with its blocks made anew."""
    steps, curves = ladder(), json.loads(CURVES.read_text())
    named = {f"{name}: {found['change']}": found for name, found in steps["variants"].items()}
    for name, block in (
        ("facts", facts(steps)),
        ("stages", table("variant", named)),
        ("pairs", table("change", pairs())),
        ("curves", closeness(curves)),
    ):
        start, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        before, _, rest = text.partition(start)
        text = before + start + block + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
    picture(json.loads(CURVES.read_text()), PICTURE)
