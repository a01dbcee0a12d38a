"""Fuzzing: bytes of strangers go into every door, and only a PuzlmError may come out.

    python -m tools.fuzz TARGET --seconds 60        one target
    python -m tools.fuzz --seconds 300 -o docs/runs/fuzz.json

Guided by coverage, with atheris (pip install atheris). What it begins with lies in tests/fuzz;
tests/test_fuzz.py runs the same targets on that corpus, and on changes of it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "fuzz"
MOST_BYTES = {"image": 6000, "zip": 4000, "graph": 20000}  # of one input; 2000 for the others
SCRATCH = tempfile.TemporaryDirectory(prefix="puzlm-fuzz.")


def image(data: bytes) -> None:
    """A picture."""
    from puzlm.images import read_image

    pixels = read_image(data)
    assert pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.dtype == "uint8"


def archive(data: bytes) -> None:
    """A zip file that a client of the service sends."""
    from puzlm.errors import PuzlmError
    from puzlm.web.answers import Limits, Refused
    from puzlm.web.archive import unzip

    try:
        files, _, _ = unzip(data, Limits(unzipped=2**20))
    except Refused as refused:
        raise PuzlmError(str(refused.detail)) from refused
    assert sum(len(content) for _, content in files) <= 2**20


def puzzle_json(data: bytes) -> None:
    """puzzle.json beside four pieces."""
    import numpy as np

    from puzlm.images import write_image
    from puzlm.puzzle import Puzzle
    from puzlm.solver import Solver

    folder = Path(SCRATCH.name) / "puzzle"
    if not folder.exists():
        for number in range(4):
            write_image(folder / f"{number}.png", np.full((4, 4, 3), 50 * number, np.uint8))
    (folder / "puzzle.json").write_bytes(data)
    puzzle = Puzzle.load(folder)
    answer = Solver.from_pretrained(solver="random").solve(puzzle)
    assert len(answer.positions) == len(puzzle.pieces)


def results(data: bytes) -> None:
    """A results file that is compared with itself."""
    from puzlm.harness.compare import compare

    path = Path(SCRATCH.name) / "results.json"
    path.write_bytes(data)
    compare([path, path]).as_text()


def model(data: bytes) -> None:
    """One of the files of a model folder: the first byte says which."""
    import numpy as np

    from puzlm.puzzle import Puzzle
    from puzlm.solver import Solver

    files = model_files()
    names = [*files, "card.json", "manifest.json", "reader.json", "edges.json", "frame.json"]
    name = names[data[0] % len(names)] if data else "model.json"
    with tempfile.TemporaryDirectory(dir=SCRATCH.name) as folder:
        for other, content in files.items():
            (Path(folder) / other).write_bytes(content)
        (Path(folder) / name).write_bytes(data[1:])
        rng = np.random.default_rng(0)
        pieces = rng.integers(0, 256, (4, 8, 8, 3), np.uint8)
        found = Solver.from_pretrained(folder, solver="bigram", backend="onnx").solve(
            Puzzle(pieces, (2, 2))
        )
    assert sorted(found.positions) == [0, 1, 2, 3] and np.isfinite(found.confidences).all()


def graph(data: bytes) -> None:
    """A graph; what passes is a graph that we wrote."""
    from puzlm.errors import PuzlmError
    from puzlm.models.onnx_check import read_graph

    try:
        read_graph(data)
    except ValueError as error:
        raise PuzlmError(str(error)) from error


def recipe(data: bytes) -> None:
    """A recipe of training."""
    from puzlm.errors import SettingsError
    from puzlm.files import parse_toml
    from puzlm.training.recipes import Recipe

    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SettingsError("no text") from error
    Recipe.from_dict(parse_toml(text, "recipe.toml", SettingsError))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "image": image,
    "zip": archive,
    "puzzle": puzzle_json,
    "results": results,
    "model": model,
    "graph": graph,
    "recipe": recipe,
}


def model_files() -> dict[str, bytes]:
    """A tokenizer of four symbols and a side model of a few numbers, made with numpy alone."""
    import numpy as np
    from safetensors.numpy import save

    rng = np.random.default_rng(1)

    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    tokenizer = {"granularity": 2, "pca_dim": None, "vocab_size": 4, "piece_size": 4}
    tokenizer |= {"patch": "strip:1", "max_cells": 4}
    sides = {"positions": 2, "symbols": 1, "codes": 4, "embedding": 2, "hidden": 3, "vector": 2}
    shapes = {0: (3, 4), 2: (3, 3), 4: (2, 3)}
    tensors = {"embed.weight": draw(4, 2), "sharpness": np.array(1.0, np.float32)}
    for side in range(4):
        for layer, shape in shapes.items():
            tensors[f"nets.{side}.{layer}.weight"] = draw(*shape)
            tensors[f"nets.{side}.{layer}.bias"] = draw(shape[0])
    books = {"0.mean": 100 * abs(draw(6)), "0.centroids": 100 * draw(4, 6)}
    return {
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "tokenizer.safetensors": save(books),
        "sides.json": json.dumps(sides).encode(),
        "sides.safetensors": save(tensors),
    }


def attempt(target: str, data: bytes) -> bool:
    """Run a target once; whether the bytes were taken. Anything but a PuzlmError is raised."""
    from puzlm.errors import PuzlmError

    try:
        TARGETS[target](data)
    except PuzlmError as error:
        assert "\n" not in str(error), f"more than one line: {error}"
        return False
    return True


# ---- atheris --------------------------------------------------------------------------------


def fuzz(target: str, arguments: list[str]) -> None:
    """Let atheris find inputs; it ends this process."""
    import atheris

    with atheris.instrument_imports(include=["puzlm", "PIL", "json", "zipfile", "tomllib"]):
        for path in sorted((CORPUS / target).iterdir()):
            attempt(target, path.read_bytes())
        try:
            attempt(target, b"")  # imports what the target needs, inside this block
        except ImportError as error:
            raise SystemExit(f"{target}: {error}") from error
    atheris.Setup([sys.argv[0], *arguments], lambda data: attempt(target, data) and None)
    atheris.Fuzz()


def run(target: str, seconds: int, grown: Path) -> dict[str, Any]:
    """Fuzz one target in a process of its own; what it grew lies in `grown` afterwards."""
    own = grown / target
    own.mkdir(parents=True, exist_ok=True)
    flags = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=3000"]
    flags += ["-print_final_stats=1", f"-max_len={MOST_BYTES.get(target, 2000)}", "-seed=1"]
    flags += [f"-artifact_prefix={own}/", str(own), str(CORPUS / target)]
    command = [sys.executable, "-m", "tools.fuzz", target, "--atheris", *flags]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=ROOT)
    said = done.stderr
    inputs = re.search(r"number_of_executed_units:\s*(\d+)", said)
    covered = re.findall(r"\bcov: (\d+)", said)
    found = [p.name for p in own.glob("*-*") if p.name.split("-")[0] in ("crash", "oom", "timeout")]
    return {
        "seconds": seconds,
        "inputs": int(inputs[1]) if inputs else 0,
        "covered": int(covered[-1]) if covered else 0,
        "found": sorted(found),
        **({} if done.returncode == 0 else {"said": said[-1500:]}),
    }


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--grown", type=Path, default=Path("fuzz"), help="folder of what it finds")
    parser.add_argument("-o", "--output", type=Path)
    if "--atheris" in sys.argv:
        at = sys.argv.index("--atheris")
        fuzz(sys.argv[1], sys.argv[at + 1 :])
    chosen = parser.parse_args()
    record: dict[str, Any] = {}
    for target in [chosen.target] if chosen.target else TARGETS:
        record[target] = run(target, chosen.seconds, chosen.grown)
        print(target, json.dumps(record[target]), flush=True)
    if chosen.output:
        from importlib.metadata import version

        from puzlm.files import write_bytes
        from puzlm.harness.evaluate import current_commit

        names = ("atheris", "pillow", "numpy", "onnxruntime")
        about = {"commit": current_commit(), "versions": {name: version(name) for name in names}}
        write_bytes(chosen.output, (json.dumps(about | {"targets": record}, indent=1)).encode())
    if any(one["found"] or "said" in one for one in record.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
