"""Speed and memory on this machine: `puzlm bench`.

A time says more about the machine, and about what else runs on it, than about the code. So times
are compared: two things run in turn in one process (A B A B ...), and their ratio is the result.
`median` is the median ratio of the rounds, `low` to `high` the middle half of them (all of fewer
than 8), `min` the ratio of the two fastest runs, which other work on the machine disturbs least. A
bar inside low to high is "within noise": neither met nor missed.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from puzlm import checkpoints
from puzlm.decoding import decode
from puzlm.errors import PuzlmError
from puzlm.images import Pixels, read_image, write_image
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver
from puzlm.tokenizer import PieceTokenizer, TokenizerSettings, walk
from puzlm.tokens import CHUNK

Report = Callable[[str], None]
Record = dict[str, Any]
Times = dict[str, Record]  # of each contestant: min, median and all seconds, round by round

SAMPLES = Path(__file__).parent / "samples"
GRIDS = (2, 3, 5, 8)  # rows and columns of the puzzles whose solving time is compared
TOGETHER = 64  # puzzles tokenised at once, as the solver does
FIT_PATCHES = 8  # patches a symbol is learned from
PACKAGES = ("numpy", "pillow", "scipy", "torch", "transformers", "scikit-learn", "onnxruntime")


def run(*, quick: bool, training: bool, report: Report) -> Record:
    """Measure everything, or the stages of a training step; `quick` only sees that it runs."""
    found: Record = {"quick": quick, "machine": machine()}
    about = found["machine"]
    report(f"machine    {about['cores']} cores, {about['threads']} threads, load {about['load']}, "
           f"{about['processor']}")  # fmt: skip
    if training:
        return {**found, "training": training_stages(report, quick)}
    from puzlm.bench_growth import growth

    if quick:
        # 512 symbols are too few for the search to pay: the bars are about the paper's 4096.
        found["tokenise"] = tokenise(report, 40, 3, judge=False, vocab_size=512, pca_dim=256)
        found["decode"] = decode_greedy(report, (1, 16), 3)
        found["memory"] = memory(report, (2 * CHUNK, 8 * CHUNK))
        found["solve"] = solve_cost(report, cold=1, repeats=3)
        found["growth"] = growth(report, repeats=1)
        found["backends"] = backends(report, cold=1, repeats=3)
    else:
        found["tokenise"] = tokenise(report, 1000, 3)
        found["decode"] = decode_greedy(report, (1, 64), 15)
        found["memory"] = memory(report, (1000, 10_000))
        found["solve"] = solve_cost(report, cold=3, repeats=15)
        found["growth"] = growth(report, repeats=5)
        found["backends"] = backends(report, cold=5, repeats=25)
    return found


def machine() -> Record:
    """What the numbers depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "cores": _cores(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


# ---- the parts ------------------------------------------------------------------------------


def tokenise(
    report: Report, puzzles: int, repeats: int, *, judge: bool = True, **changes: Any
) -> Record:
    """Puzzles/s of PieceTokenizer.encode against PCA.transform + KMeans.predict of scikit-learn.

    Both start from the same uint8 pieces, use the same components and centroids, and are timed
    over the same puzzles. scikit-learn cuts patches with a reshape and skips the resize, which it
    does not need here.
    """
    try:
        decomposition = importlib.import_module("sklearn.decomposition")
        cluster = importlib.import_module("sklearn.cluster")
    except ImportError:
        return _skip(report, "tokenise", "needs scikit-learn: pip install scikit-learn")
    s = TokenizerSettings(**changes)
    tokenizer = _fit(s)
    book: Any = tokenizer.codebooks_[0]
    pca = decomposition.PCA(s.pca_dim)
    pca.mean_, pca.components_ = book.mean, book.components
    pca.n_components_, pca.explained_variance_ = len(pca.components_), np.ones(len(pca.components_))
    kmeans = cluster.KMeans(s.vocab_size, init=book.centroids, n_init=1, max_iter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equal centroids: it will be given ours anyway
        kmeans.fit(book.centroids)
    kmeans.cluster_centers_ = book.centroids

    side, B, p = s.side, s.granularity, s.patch_side
    border = walk(B)
    pieces = np.concatenate([Puzzle.from_image(c, 3).pieces for c in _crops(puzzles, 3 * side, 1)])
    each = 9  # pieces of a puzzle

    def ours() -> NDArray[np.int64]:
        steps = range(0, len(pieces), each * TOGETHER)
        return np.concatenate([tokenizer.encode(pieces[i : i + each * TOGETHER]) for i in steps])

    def vectors(some: Pixels) -> NDArray[np.float32]:
        patches = some.reshape(len(some), B, p, B, p, 3).swapaxes(2, 3)
        flat = patches.reshape(len(some), B * B, p * p * 3)[:, border]
        return flat.astype(np.float32).reshape(-1, p * p * 3)

    def theirs(some: Pixels) -> NDArray[Any]:
        symbols: NDArray[Any] = kmeans.predict(pca.transform(vectors(some)))
        return symbols

    def one_by_one() -> NDArray[Any]:
        return np.concatenate([theirs(pieces[i : i + each]) for i in range(0, len(pieces), each)])

    times, answers = _race(
        {"ours": ours, "one by one": one_by_one, "whole": lambda: theirs(pieces)}, repeats
    )
    symbols = answers["ours"].ravel()
    same = [float((symbols == answers[k]).mean()) for k in ("one by one", "whole")]
    # Where two centroids are equally near, float32 rounding decides: float64 says who was right.
    differ = np.flatnonzero(symbols != answers["whole"])
    where, which = np.divmod(differ, len(border))
    x = vectors(pieces[where]).reshape(-1, len(border), p * p * 3)[np.arange(len(where)), which]
    x = (x.astype(np.float64) - book.mean) @ book.components.T
    far = [((x - book.centroids[k[differ]]) ** 2).sum(1) for k in (symbols, answers["whole"])]
    record: Record = {
        "puzzles": puzzles, "vocab_size": s.vocab_size, "pca_dim": s.pca_dim, "piece_size": side,
        "seconds": times, "puzzles_per_second": round(puzzles / times["ours"]["median"], 1),
        "same_symbols": min(same), "differ": len(differ),
        "same_or_nearer": 1.0 - float((far[0] > far[1]).sum()) / len(symbols),
        "against_puzzle_by_puzzle": _ratio(times, "one by one", "ours", 5.0 if judge else None),
        "against_whole_batch": _ratio(times, "whole", "ours", 1.0 if judge else None),
    }  # fmt: skip
    report(f"tokenise   {puzzles} puzzles, k={s.vocab_size}, d={s.pca_dim}: "
           f"{record['puzzles_per_second']} puzzles/s; {record['same_symbols']:.3%} same symbols, "
           f"{record['same_or_nearer']:.3%} same or nearer")  # fmt: skip
    report(f"           {_said(record['against_puzzle_by_puzzle'])} scikit-learn puzzle by puzzle")
    report(f"           {_said(record['against_whole_batch'])} scikit-learn on the whole batch")
    return record


def decode_greedy(report: Report, batches: Sequence[int], repeats: int) -> Record:
    """Greedy decoding of the model in the box against transformers' generate(), on the CPU."""
    import torch

    from puzlm.backbones import Seq2Seq, TorchReader

    folder = checkpoints.find()
    tokenizer, model = PieceTokenizer.from_pretrained(folder), Seq2Seq.from_pretrained(folder)
    model.net.generation_config.eos_token_id = None  # as many tokens as there are pieces
    reader, first = TorchReader(model), tokenizer.cell_token_id(0)
    text = tokenizer(_puzzles(max(batches)))
    record: Record = {"model": folder.name}
    for batch in batches:
        ids, mask = text["input_ids"][:batch], text["attention_mask"][:batch]

        def ours(ids: Any = ids, mask: Any = mask) -> NDArray[np.int64]:
            return decode(reader, ids, slots=9, grid=(3, 3), first_cell=first,
                          attention_mask=mask, method="greedy").cells  # fmt: skip

        def theirs(ids: Any = ids, mask: Any = mask) -> NDArray[np.int64]:
            with torch.inference_mode():
                tokens = model.net.generate(
                    **model._inputs(torch.from_numpy(ids)), attention_mask=torch.from_numpy(mask),
                    max_new_tokens=9, do_sample=False, num_beams=1,
                )  # fmt: skip
            cells = tokens[:, 1:].numpy() - first
            return np.where((cells >= 0) & (cells < 9), cells, -1)

        times, answers = _race({"ours": ours, "generate": theirs}, repeats)
        found: Record = {
            "seconds": times,
            "same_answers": float((answers["ours"] == answers["generate"]).mean()),
            "against_generate": _ratio(times, "generate", "ours", 1.0),
        }
        record[f"batch_{batch}"] = found
        report(f"decode     batch {batch}: {1e3 * times['ours']['median']:.1f} ms, "
               f"{_said(found['against_generate'])} generate(), "
               f"{found['same_answers']:.2%} same cells")  # fmt: skip
    return record


def memory(report: Report, counts: tuple[int, int]) -> Record:
    """Peak memory of tokenising a small and a large folder, each in a process of its own."""
    blobs = []
    for crop in _crops(256, 96, 2):
        buffer = io.BytesIO()
        Image.fromarray(crop).save(buffer, "JPEG")
        blobs.append(buffer.getvalue())
    code = (
        "import sys; from puzlm.tokens import write_tokens; "
        "from puzlm.tokenizer import PieceTokenizer; "
        "t = PieceTokenizer.from_pretrained(sys.argv[1]); "
        "write_tokens([sys.argv[2]], t, sys.argv[3], grid=(3, 3))"
    )
    peaks: dict[int, float | None] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for count in counts:
            folder = Path(scratch) / str(count)
            folder.mkdir()
            for number in range(count):
                (folder / f"{number:06d}.jpg").write_bytes(blobs[number % len(blobs)])
            arguments = [str(checkpoints.find()), str(folder), f"{scratch}/{count}.npy"]
            peaks[count] = _launch([sys.executable, "-c", code, *arguments])[1]
    small, large = peaks[counts[0]], peaks[counts[1]]
    ratio = round(large / small, 3) if small and large else None
    report(f"memory     peak {small} MB for {counts[0]} images, {large} MB for {counts[1]}: "
           f"{ratio}x")  # fmt: skip
    return {"images": list(counts), "peak_mb": [small, large], "ratio": ratio}


def solve_cost(report: Report, cold: int, repeats: int) -> Record:
    """What one answer costs: cold, warm, in batches, in memory, and over growing grids."""
    puzzles, record = _puzzles(TOGETHER), Record()
    with tempfile.TemporaryDirectory() as scratch:
        picture, answer = Path(scratch, "shuffled.png"), Path(scratch, "solved.png")
        write_image(picture, _shuffled(read_image(SAMPLES / "china.jpg")))
        command = [sys.executable, "-m", "puzlm.cli", "solve", str(picture), "--grid", "3",
                   "-o", str(answer)]  # fmt: skip
        runs = [_launch(command) for _ in range(cold)]
        if not answer.is_file():
            raise PuzlmError(f"bench: {answer} was not written")
    record["cold_seconds"] = _spread([seconds for seconds, _ in runs])
    record["cold_peak_mb"] = max((peak for _, peak in runs if peak is not None), default=None)
    record["cold_aim_seconds"], record["warm_aim_seconds"] = 5.0, 0.1
    report(f"solve      cold, command to picture: {record['cold_seconds']['median']:.2f} s "
           f"(aim 5), peak {record['cold_peak_mb']} MB")  # fmt: skip

    engines = {name: Solver.from_pretrained(solver=name) for name in ("auto", "seq2seq")}
    record["backend"] = _backend(engines["auto"])
    for name, some in (("warm_seconds", puzzles[:1]), ("batch_64_seconds", puzzles)):
        count = repeats if len(some) == 1 else max(1, repeats // 5)
        works = {k: partial(engine.solve_many, some) for k, engine in engines.items()}
        record[name] = _race(works, count)[0]
    record["batch_64_puzzles_per_second"] = {
        k: round(len(puzzles) / t["median"], 1) for k, t in record["batch_64_seconds"].items()
    }
    for name in engines:
        report(f"           {name}, {record['backend']}: warm "
               f"{1e3 * record['warm_seconds'][name]['median']:.0f} ms a puzzle (aim 100), "
               f"{record['batch_64_puzzles_per_second'][name]} puzzles/s at batch 64"
               )  # fmt: skip

    photo = read_image(SAMPLES / "china.jpg")
    cuts = {f"{g}x{g}": Puzzle.from_image(photo, g) for g in GRIDS}
    solves = {k: partial(engines["auto"].solve, puzzle) for k, puzzle in cuts.items()}
    times, answers = _race(solves, max(1, repeats // 3))
    # One photo cut ever finer: more pieces are smaller pieces, as for a person with one photo.
    points = {k: (len(cuts[k].pieces), times[k]["median"]) for k in cuts}
    exponent = _exponent(points.values())
    # `auto` reads with the encoder-decoder only the grids it was trained for, which costs far more
    # than the rest; a line through both kinds says little, so the other kind has its own.
    by: dict[str, list[tuple[int, float]]] = {}
    for k in cuts:
        by.setdefault(answers[k].solver, []).append(points[k])
    record["exponent_by_solver"] = {k: _exponent(v) for k, v in by.items() if len(v) > 1}
    record["grids"] = {k: {**times[k], "solved_by": answers[k].solver} for k in cuts}
    record["exponent"] = exponent
    shown = ", ".join(f"{k} {1e3 * t['median']:.0f} ms" for k, t in times.items())
    report(f"           {shown}: time grows as pieces^{exponent}")
    for name, value in record["exponent_by_solver"].items():
        report(f"           of these by {name}: pieces^{value}")
    return record


def backends(report: Report, cold: int, repeats: int) -> Record:
    """The same answers from torch and from ONNX: cold start to answer, and warm."""
    code = (
        "import sys; from puzlm.solver import Solver; "
        "Solver.from_pretrained(sys.argv[1], backend=sys.argv[2]).solve(sys.argv[3], 3)"
    )
    record: Record = {}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            folder = _with_graphs(Path(scratch, "model"))
            engines = {
                (solver, name): Solver.from_pretrained(folder, solver=solver, backend=name)
                for solver in ("auto", "seq2seq") for name in ("torch", "onnx")
            }  # fmt: skip
            small = _export_int8(folder, Path(scratch, "int8"))
            for solver in ("auto", "seq2seq"):
                engines[solver, "int8"] = Solver.from_pretrained(
                    small, solver=solver, backend="onnx"
                )
        except (ImportError, PuzlmError, TypeError) as error:
            return _skip(report, "backends", str(error))
        picture = Path(scratch, "shuffled.png")
        write_image(picture, _shuffled(read_image(SAMPLES / "china.jpg")))
        starts: dict[str, list[tuple[float, float | None]]] = {"torch": [], "onnx": []}
        for _ in range(cold):
            for name in starts:
                command = [sys.executable, "-c", code, str(folder), name, str(picture)]
                starts[name].append(_launch(command))
        times = {name: _spread([seconds for seconds, _ in runs]) for name, runs in starts.items()}
        record["cold_seconds"] = times
        record["cold_peak_mb"] = {
            name: max((peak for _, peak in runs if peak is not None), default=None)
            for name, runs in starts.items()
        }
        record["cold"] = _ratio(times, "torch", "onnx", 4.0)
        report(f"backends   cold: torch {times['torch']['median']:.2f} s, "
               f"onnx {times['onnx']['median']:.2f} s, {_said(record['cold'])} torch"
               )  # fmt: skip
        puzzle = _puzzles(1)[0]
        for solver in ("auto", "seq2seq"):
            works = {
                name: partial(engines[solver, name].solve, puzzle) for name in (*starts, "int8")
            }
            times, answers = _race(works, repeats)
            record[f"warm_{solver}_seconds"] = times
            record[f"warm_{solver}"] = _ratio(times, "torch", "onnx", 2.0)
            record[f"warm_{solver}_int8"] = _ratio(times, "torch", "int8", None)
            found = [answers[name].positions for name in starts]
            record[f"same_{solver}"] = bool(np.array_equal(*found))
            report(f"           warm {solver}: torch {1e3 * times['torch']['median']:.0f} ms, "
                   f"onnx {1e3 * times['onnx']['median']:.0f} ms, "
                   f"{_said(record[f'warm_{solver}'])} torch, "
                   f"answers {'equal' if record[f'same_{solver}'] else 'DIFFER'}")  # fmt: skip
            report(f"           with an int8 encoder {1e3 * times['int8']['median']:.0f} ms, "
                   f"{record[f'warm_{solver}_int8']['median']}x the speed of torch")  # fmt: skip
    return record


def training_stages(report: Report, quick: bool) -> Record:
    """Stages of a training step of the paper's BART on a GPU; of a tiny one on a CPU."""
    import torch

    from puzlm.bench_training import matrix_rate, stages
    from puzlm.settings import Recipe

    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    changes: list[str] = []
    if not cuda:  # the paper's size takes a minute a step on two cores
        changes = ["model.size=tiny", "train.batch=16", "tokenizer.vocab_size=256",
                   "tokenizer.pca_dim=64", "tokenizer.piece_size=48"]  # fmt: skip
    recipe = Recipe.from_overrides([*changes, "tokenizer.max_cells=9"])
    record: Record = {"device": torch.cuda.get_device_name() if cuda else "cpu", "loops": []}
    record["matrix_tflops"] = round(matrix_rate(device, 8192 if cuda else 512), 3)
    report(f"training   {record['device']}: {record['matrix_tflops']} TFLOP/s of bf16 matrices")
    for fast in (False, True) if cuda else (False,):
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        found = stages(recipe, device, fast, 3 if quick else 20)
        record["loops"].append(found)
        report(f"           {found['loop']}, batch {found['batch']}, "
               f"{found['parameters'] / 1e6:.1f} M weights: "
               f"{found['puzzles_per_second']} puzzles/s, {found['tflops']} TFLOP/s")  # fmt: skip
        shown = ", ".join(f"{k} {v}" for k, v in found["milliseconds"].items())
        report(f"           ms: {shown}; step {found['step_milliseconds']}")
    return record


# ---- measuring ------------------------------------------------------------------------------


def _race(works: Mapping[str, Callable[[], Any]], repeats: int) -> tuple[Times, dict[str, Any]]:
    """Run works in turn; the seconds of each, and its answer from the first, untimed round."""
    answers = {name: work() for name, work in works.items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
    return {name: _spread(values) for name, values in times.items()}, answers


def _spread(seconds: Sequence[float]) -> Record:
    return {"min": round(min(seconds), 6), "median": round(float(np.median(seconds)), 6),
            "rounds": [round(s, 6) for s in seconds]}  # fmt: skip


def _ratio(times: Times, slow: str, fast: str, bar: float | None) -> Record:
    """How many times faster `fast` is, round by round, and whether that clears the bar."""
    rounds = np.array(times[slow]["rounds"]) / np.array(times[fast]["rounds"])
    share = 0.25 if len(rounds) >= 8 else 0.0  # of few rounds all count: quartiles mean nothing
    low, median, high = (round(float(q), 2) for q in np.quantile(rounds, [share, 0.5, 1 - share]))
    fastest = round(times[slow]["min"] / times[fast]["min"], 2)
    verdict = "not judged"
    if bar is not None:
        verdict = "met" if low >= bar else "missed" if high < bar else "within noise"
    return {"median": median, "low": low, "high": high, "min": fastest, "bar": bar,
            "verdict": verdict}  # fmt: skip


def _said(ratio: Record) -> str:
    bar = "" if ratio["bar"] is None else f"bar {ratio['bar']:g}x: "
    return f"{ratio['median']}x ({bar}{ratio['verdict']}) the speed of"


def _exponent(points: Iterable[tuple[int, float]]) -> float:
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


def _launch(command: list[str]) -> tuple[float, float | None]:
    """Run a command; seconds from start to end and peak memory in MB (None where unknown)."""
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, *command], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path}, check=True,
    )  # fmt: skip
    seconds, peak, code, said = json.loads(done.stdout)
    if code:
        raise PuzlmError(f"bench: {' '.join(command[:4])} ... failed with {code}: {said.strip()}")
    unit = 1e6 if sys.platform == "darwin" else 1e3  # macOS counts bytes, Linux kilobytes
    return seconds, None if peak is None else round(peak / unit, 1)


def _skip(report: Report, part: str, why: str) -> Record:
    report(f"{part:10s} skipped: {why}")
    return {"skipped": why}


# ---- what is measured on --------------------------------------------------------------------


def _crops(count: int, side: int, seed: int) -> list[Pixels]:
    """Random square crops of the two photos in the box at many scales, half of them mirrored."""
    rng = np.random.default_rng(seed)
    photos = [Image.fromarray(read_image(p)) for p in sorted(SAMPLES.glob("*.jpg"))]
    made = []
    for number in range(count):
        photo = photos[number % len(photos)]
        size = int(rng.integers(min(photo.size) // 4, min(photo.size) + 1))
        left, top = (int(rng.integers(0, edge - size + 1)) for edge in photo.size)
        crop = photo.resize((side, side), Image.Resampling.BILINEAR,
                            box=(left, top, left + size, top + size))  # fmt: skip
        made.append(np.asarray(crop)[:, :: rng.choice([-1, 1])])
    return made


def _puzzles(count: int) -> list[Puzzle]:
    return [Puzzle.from_image(c, 3, seed=i) for i, c in enumerate(_crops(count, 288, 3))]


def _shuffled(photo: Pixels) -> Pixels:
    """A photo cut 3 x 3 and laid out in the wrong order."""
    pieces = Puzzle.from_image(photo, 3, seed=1).pieces
    return np.concatenate([np.concatenate(list(pieces[i : i + 3]), 1) for i in (0, 3, 6)])


def _fit(s: TokenizerSettings) -> PieceTokenizer:
    """A tokenizer learned in little time: 2 rounds of k-means from few patches.

    Better centroids would be shorter in the trailing dimensions, which only helps our pruning.
    """
    need = FIT_PATCHES * s.vocab_size
    crops = _crops(-(-need // (9 * s.border_length)), 3 * s.side, 4)
    return PieceTokenizer(s).fit(crops, grid=3, max_iter=2)


def _with_graphs(scratch: Path) -> Path:
    """The model in the box with its ONNX graphs, written to a scratch folder if it has none."""
    from puzlm.export import export

    folder = checkpoints.find()
    if (folder / "onnx.json").is_file():
        return folder
    scratch.mkdir()
    export(folder, scratch)
    for path in folder.iterdir():  # the torch side reads files that the graphs do not need
        if not (scratch / path.name).exists():
            shutil.copyfile(path, scratch / path.name)
    return scratch


def _export_int8(folder: Path, scratch: Path) -> Path:
    """The same model with an encoder that multiplies integers."""
    from puzlm.export import export

    return export(folder, scratch, "int8")


def _backend(engine: Solver) -> str:
    return "onnx" if type(engine.reader).__name__.startswith("Onnx") else "torch"


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    """Name of the processor; Python itself knows it on some systems only."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
