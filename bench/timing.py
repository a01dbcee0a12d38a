"""How `puzlm bench` measures, and on what.

A time says more about the machine, and about what else runs on it, than about the code. So times
are compared: two things run in turn in one process (A B A B ...), and their ratio is the result.
`median` is the median ratio of the rounds, `low` to `high` the middle half of them (all of fewer
than 8), `min` the ratio of the two fastest runs, which other work on the machine disturbs least. A
bar inside low to high is "within noise": neither met nor missed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from puzlm.errors import PuzlmError
from puzlm.images import Pixels, cores, read_image
from puzlm.puzzle import Puzzle

Report = Callable[[str], None]
Record = dict[str, Any]
Times = dict[str, Record]  # of each contestant: min, median and all seconds, round by round

SAMPLES = Path(__file__).parents[1] / "puzlm" / "samples"
PACKAGES = ("numpy", "pillow", "scipy", "torch", "transformers", "scikit-learn", "onnxruntime")


def begin(quick: bool, report: Report) -> Record:
    """The head of a results file: how much is measured, and on what."""
    about = machine()
    report(
        f"machine    {about['cores']} cores, {about['threads']} threads, load {about['load']}, "
        f"{about['processor']}"
    )
    return {"quick": quick, "machine": about}


def machine() -> Record:
    """What the numbers depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "cores": cores(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def _processor() -> str:
    """Name of the processor; Python itself knows it on some systems only."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def race(works: Mapping[str, Callable[[], Any]], repeats: int) -> tuple[Times, dict[str, Any]]:
    """Run works in turn; the seconds of each, and its answer from the first, untimed round."""
    answers = {name: work() for name, work in works.items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
    return {name: spread(values) for name, values in times.items()}, answers


def spread(seconds: Sequence[float]) -> Record:
    """Seconds of the rounds, the fastest and the median."""
    return {
        "min": round(min(seconds), 6),
        "median": round(float(np.median(seconds)), 6),
        "rounds": [round(s, 6) for s in seconds],
    }


def ratio(times: Times, slow: str, fast: str, bar: float | None) -> Record:
    """How many times faster `fast` is, round by round, and whether that clears the bar."""
    rounds = np.array(times[slow]["rounds"]) / np.array(times[fast]["rounds"])
    share = 0.25 if len(rounds) >= 8 else 0.0  # of few rounds all count: quartiles mean nothing
    low, median, high = (round(float(q), 2) for q in np.quantile(rounds, [share, 0.5, 1 - share]))
    fastest = round(times[slow]["min"] / times[fast]["min"], 2)
    verdict = "not judged"
    if bar is not None:
        verdict = "met" if low >= bar else "missed" if high < bar else "within noise"
    return {
        "median": median,
        "low": low,
        "high": high,
        "min": fastest,
        "bar": bar,
        "verdict": verdict,
    }


def said(ratio: Record) -> str:
    """A ratio in words."""
    bar = "" if ratio["bar"] is None else f"bar {ratio['bar']:g}x: "
    return f"{ratio['median']}x ({bar}{ratio['verdict']}) the speed of"


def exponent(points: Iterable[tuple[int, float]]) -> float:
    """Slope of log(seconds) against log(pieces), least squares."""
    pieces, seconds = np.log(np.array(list(points))).T
    return round(float(np.polyfit(pieces, seconds, 1)[0]), 2)


# The peak of a process that starts another counts as that one's peak, too (Linux keeps it over
# exec). A bare Python between this process and the one measured keeps our gigabytes out of it.
LAUNCHER = """
import json, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True, errors="replace")
seconds = time.perf_counter() - start
try:
    import resource
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
except ImportError:
    peak = None
print(json.dumps([seconds, peak, done.returncode, done.stderr[-400:]]))
"""


def launch(command: list[str]) -> tuple[float, float | None]:
    """Run a command; seconds from start to end and peak memory in MB (None where unknown)."""
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, *command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    seconds, peak, code, said = json.loads(done.stdout)
    if code:
        raise PuzlmError(f"bench: {' '.join(command[:4])} ... failed with {code}: {said.strip()}")
    unit = 1e6 if sys.platform == "darwin" else 1e3  # macOS counts bytes, Linux kilobytes
    return seconds, None if peak is None else round(peak / unit, 1)


def skip(report: Report, part: str, why: str) -> Record:
    """The record of a part that cannot be measured here."""
    report(f"{part:10s} skipped: {why}")
    return {"skipped": why}


def crops(count: int, side: int, seed: int) -> list[Pixels]:
    """Random square crops of the two photos in the box at many scales, half of them mirrored."""
    rng = np.random.default_rng(seed)
    photos = [Image.fromarray(read_image(p)) for p in sorted(SAMPLES.glob("*.jpg"))]
    made = []
    for number in range(count):
        photo = photos[number % len(photos)]
        size = int(rng.integers(min(photo.size) // 4, min(photo.size) + 1))
        left, top = (int(rng.integers(0, edge - size + 1)) for edge in photo.size)
        crop = photo.resize(
            (side, side), Image.Resampling.BILINEAR, box=(left, top, left + size, top + size)
        )
        made.append(np.asarray(crop)[:, :: rng.choice([-1, 1])])
    return made


def puzzles(count: int) -> list[Puzzle]:
    """Puzzles of 3 x 3 pieces of 96 pixels."""
    return [Puzzle.from_image(c, 3, seed=i) for i, c in enumerate(crops(count, 288, 3))]


def shuffled(photo: Pixels) -> Pixels:
    """A photo cut 3 x 3 and laid out in the wrong order."""
    pieces = Puzzle.from_image(photo, 3, seed=1).pieces
    return np.concatenate([np.concatenate(list(pieces[i : i + 3]), 1) for i in (0, 3, 6)])
