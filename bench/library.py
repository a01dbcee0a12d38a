"""Speed and memory of the library on this machine: `puzlm bench`. How it is measured: bench.py."""

from __future__ import annotations

import importlib
import io
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench import timing as bench
from bench.backends import backends
from bench.growth import growth
from bench.timing import Record, Report
from puzlm.errors import PuzlmError
from puzlm.images import Pixels, read_image, write_image
from puzlm.models import pretrained as checkpoints
from puzlm.models.decoding import decode
from puzlm.puzzle import Puzzle
from puzlm.solver import Solver
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, TokenizerSettings, walk
from puzlm.tokenizer.token_files import CHUNK

GRIDS = (2, 3, 5, 8)  # rows and columns of the puzzles whose solving time is compared
TOGETHER = 64  # puzzles tokenised at once, as the solver does
FIT_PATCHES = 8  # patches a symbol is learned from


def run(*, quick: bool, training: bool, report: Report) -> Record:
    """Measure everything, or the stages of a training step; `quick` only sees that it runs."""
    found = bench.begin(quick, report)
    if training:
        return {**found, "training": training_stages(report, quick)}
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
        return bench.skip(report, "tokenise", "needs scikit-learn: pip install scikit-learn")
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
    pieces = np.concatenate(
        [Puzzle.from_image(c, 3).pieces for c in bench.crops(puzzles, 3 * side, 1)]
    )
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

    times, answers = bench.race(
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
    bars = (5.0, 1.0) if judge else (None, None)
    record: Record = {
        "puzzles": puzzles,
        "vocab_size": s.vocab_size,
        "pca_dim": s.pca_dim,
        "piece_size": side,
        "seconds": times,
        "puzzles_per_second": round(puzzles / times["ours"]["median"], 1),
        "same_symbols": min(same),
        "differ": len(differ),
        "same_or_nearer": 1.0 - float((far[0] > far[1]).sum()) / len(symbols),
        "against_puzzle_by_puzzle": bench.ratio(times, "one by one", "ours", bars[0]),
        "against_whole_batch": bench.ratio(times, "whole", "ours", bars[1]),
    }
    report(
        f"tokenise   {puzzles} puzzles, k={s.vocab_size}, d={s.pca_dim}: "
        f"{record['puzzles_per_second']} puzzles/s; {record['same_symbols']:.3%} same symbols, "
        f"{record['same_or_nearer']:.3%} same or nearer"
    )
    for key, what in (
        ("against_puzzle_by_puzzle", "puzzle by puzzle"),
        ("against_whole_batch", "on the whole batch"),
    ):
        report(f"           {bench.said(record[key])} scikit-learn {what}")
    return record


def decode_greedy(report: Report, batches: Sequence[int], repeats: int) -> Record:
    """Greedy decoding of the model in the box against transformers' generate(), on the CPU."""
    import torch

    from puzlm.models.backbones import Seq2Seq, TorchReader

    folder = checkpoints.find()
    tokenizer, model = PieceTokenizer.from_pretrained(folder), Seq2Seq.from_pretrained(folder)
    model.net.generation_config.eos_token_id = None  # as many tokens as there are pieces
    reader, first = TorchReader(model), tokenizer.cell_token_id(0)
    text = tokenizer(bench.puzzles(max(batches)))
    record: Record = {"model": folder.name}
    for batch in batches:
        ids, mask = text["input_ids"][:batch], text["attention_mask"][:batch]

        def ours(ids: Any = ids, mask: Any = mask) -> NDArray[np.int64]:
            return decode(
                reader,
                ids,
                slots=9,
                grid=(3, 3),
                first_cell=first,
                attention_mask=mask,
                method="greedy",
            ).cells

        def theirs(ids: Any = ids, mask: Any = mask) -> NDArray[np.int64]:
            with torch.inference_mode():
                tokens = model.net.generate(
                    **model.inputs(torch.from_numpy(ids)),
                    attention_mask=torch.from_numpy(mask),
                    max_new_tokens=9,
                    do_sample=False,
                    num_beams=1,
                )
            cells = tokens[:, 1:].numpy() - first
            return np.where((cells >= 0) & (cells < 9), cells, -1)

        times, answers = bench.race({"ours": ours, "generate": theirs}, repeats)
        found: Record = {
            "seconds": times,
            "same_answers": float((answers["ours"] == answers["generate"]).mean()),
            "against_generate": bench.ratio(times, "generate", "ours", 1.0),
        }
        record[f"batch_{batch}"] = found
        report(
            f"decode     batch {batch}: {1e3 * times['ours']['median']:.1f} ms, "
            f"{bench.said(found['against_generate'])} generate(), "
            f"{found['same_answers']:.2%} same cells"
        )
    return record


def memory(report: Report, counts: tuple[int, int]) -> Record:
    """Peak memory of tokenising a small and a large folder, each in a process of its own."""
    blobs = []
    for crop in bench.crops(256, 96, 2):
        buffer = io.BytesIO()
        Image.fromarray(crop).save(buffer, "JPEG")
        blobs.append(buffer.getvalue())
    code = (
        "import sys; from puzlm.tokenizer.token_files import write_tokens; "
        "from puzlm.tokenizer.piece_tokenizer import PieceTokenizer; "
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
            peaks[count] = bench.launch([sys.executable, "-c", code, *arguments])[1]
    small, large = peaks[counts[0]], peaks[counts[1]]
    ratio = round(large / small, 3) if small and large else None
    report(
        f"memory     peak {small} MB for {counts[0]} images, {large} MB for {counts[1]}: {ratio}x"
    )
    return {"images": list(counts), "peak_mb": [small, large], "ratio": ratio}


def solve_cost(report: Report, cold: int, repeats: int) -> Record:
    """What one answer costs: cold, warm, in batches, in memory, and over growing grids."""
    puzzles, record = bench.puzzles(TOGETHER), Record()
    with tempfile.TemporaryDirectory() as scratch:
        picture, answer = Path(scratch, "shuffled.png"), Path(scratch, "solved.png")
        write_image(picture, bench.shuffled(read_image(bench.SAMPLES / "china.jpg")))
        command = [
            sys.executable,
            "-m",
            "puzlm",
            "solve",
            str(picture),
            "--grid",
            "3",
            "-o",
            str(answer),
        ]
        runs = [bench.launch(command) for _ in range(cold)]
        if not answer.is_file():
            raise PuzlmError(f"bench: {answer} was not written")
    record["cold_seconds"] = bench.spread([seconds for seconds, _ in runs])
    record["cold_peak_mb"] = max((peak for _, peak in runs if peak is not None), default=None)
    record["cold_aim_seconds"], record["warm_aim_seconds"] = 5.0, 0.1
    report(
        f"solve      cold, command to picture: {record['cold_seconds']['median']:.2f} s "
        f"(aim 5), peak {record['cold_peak_mb']} MB"
    )

    engines = {name: Solver.from_pretrained(solver=name) for name in ("auto", "seq2seq")}
    record["backend"] = _backend(engines["auto"])
    # Where borders touch `auto` asks no large model; where they are worn the ViT looks once, and
    # at the flower on its plain ground six times.
    worn, doubtful = (
        [Puzzle.from_image(read_image(bench.SAMPLES / f"{name}.jpg"), 3, gap=0.5)]
        for name in ("china", "flower")
    )
    kinds = (
        ("warm_seconds", puzzles[:1]),
        ("worn_seconds", worn),
        ("doubtful_seconds", doubtful),
        ("batch_64_seconds", puzzles),
    )
    for name, some in kinds:
        count = repeats if len(some) == 1 else max(1, repeats // 5)
        works = {k: partial(engine.solve_many, some) for k, engine in engines.items()}
        record[name] = bench.race(works, count)[0]
    record["batch_64_puzzles_per_second"] = {
        k: round(len(puzzles) / t["median"], 1) for k, t in record["batch_64_seconds"].items()
    }
    for name in engines:
        report(
            f"           {name}, {record['backend']}: warm "
            f"{1e3 * record['warm_seconds'][name]['median']:.0f} ms a puzzle (aim 100), worn "
            f"{1e3 * record['worn_seconds'][name]['median']:.0f} ms, in doubt "
            f"{1e3 * record['doubtful_seconds'][name]['median']:.0f} ms, "
            f"{record['batch_64_puzzles_per_second'][name]} puzzles/s at batch 64"
        )

    photo = read_image(bench.SAMPLES / "china.jpg")
    cuts = {f"{g}x{g}": Puzzle.from_image(photo, g) for g in GRIDS}
    solves = {k: partial(engines["auto"].solve, puzzle) for k, puzzle in cuts.items()}
    times, answers = bench.race(solves, max(1, repeats // 3))
    # One photo cut ever finer: more pieces are smaller pieces, as for a person with one photo.
    points = {k: (len(cuts[k].pieces), times[k]["median"]) for k in cuts}
    exponent = bench.exponent(points.values())
    # What `auto` asks, and so what it costs, depends on the grid and on what sides leave in doubt:
    # a line through several kinds of answer says little, so each kind has its own.
    by: dict[str, list[tuple[int, float]]] = {}
    for k in cuts:
        by.setdefault(answers[k].solver, []).append(points[k])
    record["exponent_by_solver"] = {k: bench.exponent(v) for k, v in by.items() if len(v) > 1}
    record["grids"] = {k: {**times[k], "solved_by": answers[k].solver} for k in cuts}
    record["exponent"] = exponent
    shown = ", ".join(f"{k} {1e3 * t['median']:.0f} ms" for k, t in times.items())
    report(f"           {shown}: time grows as pieces^{exponent}")
    for name, value in record["exponent_by_solver"].items():
        report(f"           of these by {name}: pieces^{value}")
    return record


def training_stages(report: Report, quick: bool) -> Record:
    """Stages of a training step of the paper's BART on a GPU; of a tiny one on a CPU."""
    import torch

    from bench.training import matrix_rate, stages
    from puzlm.training.recipes import Recipe

    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    changes: list[str] = []
    if not cuda:  # the paper's size takes a minute a step on two cores
        changes = [
            "model.size=tiny",
            "train.batch=16",
            "tokenizer.vocab_size=256",
            "tokenizer.pca_dim=64",
            "tokenizer.piece_size=48",
        ]
    recipe = Recipe.from_overrides([*changes, "tokenizer.max_cells=9"])
    record: Record = {"device": torch.cuda.get_device_name() if cuda else "cpu", "loops": []}
    record["matrix_tflops"] = round(matrix_rate(device, 8192 if cuda else 512), 3)
    report(f"training   {record['device']}: {record['matrix_tflops']} TFLOP/s of bf16 matrices")
    for fast in (False, True) if cuda else (False,):
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        found = stages(recipe, device, fast, 3 if quick else 20)
        record["loops"].append(found)
        report(
            f"           {found['loop']}, batch {found['batch']}, "
            f"{found['parameters'] / 1e6:.1f} M weights: "
            f"{found['puzzles_per_second']} puzzles/s, {found['tflops']} TFLOP/s"
        )
        shown = ", ".join(f"{k} {v}" for k, v in found["milliseconds"].items())
        report(f"           ms: {shown}; step {found['step_milliseconds']}")
    return record


def _fit(s: TokenizerSettings) -> PieceTokenizer:
    """A tokenizer learned in little time: 2 rounds of k-means from few patches.

    Better centroids would be shorter in the trailing dimensions, which only helps our pruning.
    """
    need = FIT_PATCHES * s.vocab_size
    crops = bench.crops(-(-need // (9 * s.border_length)), 3 * s.side, 4)
    return PieceTokenizer(s).fit(crops, grid=3, max_iter=2)


def _backend(engine: Solver) -> str:
    model = engine.reader or engine.edges
    return "onnx" if type(model).__name__.startswith("Onnx") else "torch"
