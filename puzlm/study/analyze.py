"""Token files -> analysis.json and its figures. Knows no statistics; `analysis.py` has those."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import PuzlmError, SettingsError
from puzlm.files import write_bytes
from puzlm.images import Pixels
from puzlm.sections import section
from puzlm.study.analysis import (
    Floats,
    Ints,
    Pairs,
    Result,
    border_information,
    entropy_growth,
    equal_super_tokens,
    heaps,
    touching,
    uniform_entropy,
    zipf,
)
from puzlm.study.embeddings import (
    SEEN,
    embedding_geometry,
    nearest_symbols,
    pair_scores,
    touch_counts,
    unit_rows,
)
from puzlm.tokenizer.piece_tokenizer import (
    FIRST_SYMBOL,
    PieceTokenizer,
    TokenizerSettings,
    read_json,
    read_safetensors,
)

CLASSES = 64  # looks classes for mutual information: 4096 joint cells instead of k^2
MOST = 4096  # known symbols at most, the most frequent: their pairs are held in memory
FEWER = (64, 16, 4)  # one in so many puzzles: how embeddings look to those who have fewer
TEXT_WINDOW = 108  # words: as long as the paper's 3x3 sequence of 12 symbols a piece


class TokensError(PuzlmError):
    """A token file that cannot be analysed."""


@dataclass(frozen=True)
class TokenSet:
    """One file of `puzlm tokenize`: symbols (puzzles, cells, b, F) in raster order."""

    name: str  # the file's, without its gap: files that differ only in the gap are one group
    tokens: Ints
    grid: tuple[int, int]
    gap: float
    vocab_size: int
    settings: TokenizerSettings

    @property
    def sequences(self) -> Ints:
        """Symbols (puzzles, cells, b * F) with codebooks told apart: below settings.codes."""
        own: Ints = self.tokens + np.array(self.settings.firsts) - FIRST_SYMBOL
        return own.reshape(*own.shape[:2], -1)


def read_tokens(path: str | Path) -> TokenSet:
    """Read TOKENS.npy and the TOKENS.json beside it, or say what is wrong with them."""
    path = Path(path)
    beside = path.with_suffix(".json")
    if not path.is_file():
        raise TokensError(f"{path}: no such token file; make one with: puzlm tokenize")
    try:
        tokens = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise TokensError(f"{path}: not a .npy file of tokens ({error})") from error
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 4 or tokens.dtype.kind not in "ui":
        raise TokensError(f"{path}: tokens must be integers (puzzles, cells, b, F)")
    if not beside.is_file():
        raise TokensError(f"{path}: {beside.name} is missing beside it; run puzlm tokenize again")
    record = read_json(beside)
    try:
        grid = int(record["grid"][0]), int(record["grid"][1])
        gap, k = float(record["gap"]), int(record["vocab_size"])
        plain = {key: v for key, v in record["tokenizer"].items() if key != "version"}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise TokensError(f"{beside}: damaged ({error!r})") from error
    settings = section(TokenizerSettings, plain, str(beside))
    if tokens.size == 0:
        raise TokensError(f"{path}: is empty; nothing to analyse")
    if tokens.min() == tokens.max():
        raise TokensError(f"{path}: holds no symbol but {tokens.flat[0]}; nothing to analyse")
    if tokens.min() < 0:
        raise TokensError(f"{path}: symbol {tokens.min()}; symbols are 0 to k - 1 = {k - 1}")
    if tokens.shape[1] != grid[0] * grid[1] or tokens.max() >= k:
        raise TokensError(
            f"{path}: its {tokens.shape[1]} cells and largest symbol {tokens.max()} do not fit "
            f"{beside.name}: grid {grid[0]}x{grid[1]}, k = {k}"
        )
    if tokens.shape[3] != len(settings.terms) or (tokens.max((0, 1, 2)) >= settings.sizes).any():
        raise TokensError(
            f"{path}: its symbols do not fit patch '{settings.patch}' of {beside.name}"
        )
    name = re.sub(r"[-_.]?gap[-_]?[0-9.]*", "", path.stem) or path.stem
    return TokenSet(name, tokens.astype(np.int64), grid, gap, k, settings)


def english_words() -> Ints:
    """Words of Python's own language reference as numbers, (windows, TEXT_WINDOW)."""
    from pydoc_data import topics

    text = " ".join(topics.topics[key] for key in sorted(topics.topics)).lower()
    words = np.array(re.findall(r"[a-z]+(?:'[a-z]+)?", text))
    ids = np.unique(words, return_inverse=True)[1]
    return ids[: len(ids) // TEXT_WINDOW * TEXT_WINDOW].reshape(-1, TEXT_WINDOW)


@cache
def analyze_english(seed: int = 0) -> Result:
    """The same numbers for words; every word seen counts as the vocabulary."""
    words = english_words()
    kinds = int(words.max()) + 1
    return {
        "name": "English",
        "vocab_size": kinds,
        "tokens": words.size,
        "entropy": entropy_growth(words[:, :, None], kinds, [12, 24, 48, TEXT_WINDOW], seed),
        "zipf": zipf(words, kinds, seed=seed),
        "heaps": heaps(words, seed=seed),
    }


def read_embeddings(folder: Path, tokenizer: PieceTokenizer, seed: int) -> dict[str, Floats]:
    """First-codebook embeddings (k, d) before and after training, {} where no model is.

    "before" is the tensor `embedding` of start.safetensors, else the start that settings.json
    names; for a side model the centroids, from which bigram.fit starts. "learned" is the
    difference: a large random start drowns what training added to it.
    """
    import torch

    k, first, known = tokenizer.settings.vocab_size, 0, True
    torch.manual_seed(seed)
    if (folder / "model.json").is_file():
        from puzlm.models.backbones import Seq2Seq

        model, first = Seq2Seq.from_pretrained(folder), FIRST_SYMBOL
        start, after = Seq2Seq(model.settings), model.embedding
        if known := (folder / "settings.json").is_file():
            from puzlm.training.recipes import Recipe
            from puzlm.training.starts import build_model

            recipe = Recipe.from_dict(read_json(folder / "settings.json"), str(folder))
            start = build_model(recipe.with_train(start=""), tokenizer)
        before = start.embedding
    elif (folder / "sides.json").is_file():
        from puzlm.models.side_model import SideModel

        sides = SideModel.from_pretrained(folder)
        torch.manual_seed(seed)  # again: reading a model draws numbers, too
        fresh = SideModel(sides.settings)
        fresh.start_from_centroids(tokenizer)
        before, after = fresh.embed.weight, sides.embed.weight
    else:
        return {}
    if (folder / "start.safetensors").is_file():
        before = torch.as_tensor(read_safetensors(folder / "start.safetensors")["embedding"])
        known = True
    tables = {
        name: table.detach().numpy()[first : first + k].astype(np.float64)
        for name, table in (("before", before), ("after", after))
    }
    return tables | ({"learned": tables["after"] - tables["before"]} if known else {})


def analyze_embeddings(
    sets: Sequence[TokenSet], folder: Path, tokenizer: PieceTokenizer, labels: Ints, seed: int
) -> Result:
    """Geometry of the model's embeddings against looks and the touching pairs of these sets.

    Only the sets with the narrowest gap are counted: there the pairs say most. Of few puzzles fit
    is known badly and looks seem to count for more; `fewer` says how far that goes, with a part of
    the puzzles.
    """
    book, s = tokenizer.codebooks_[0], tokenizer.settings
    least = min(part.gap for part in sets)
    pairs = [touching(p.tokens, p.grid, p.settings) for p in sets if p.gap == least]
    tables = read_embeddings(folder, tokenizer, seed)

    def geometry(pairs: Pairs) -> tuple[Result, Ints]:
        counts = touch_counts(pairs, s.vocab_size)
        known = np.argsort(-counts, kind="stable")[:MOST]
        known = np.sort(known[counts[known] >= SEEN])
        halves = [[(a[h::2], b[h::2]) for a, b in pairs] for h in (0, 1)]
        whole, *parts = (pair_scores(part, known, labels) for part in (pairs, *halves))
        shown = {name: table[known] for name, table in tables.items()}
        found = embedding_geometry(
            shown, book.centroids[known], whole, (parts[0], parts[1]), seed=seed
        )
        return {"puzzles": sum(len(a) for a, _ in pairs), **found}, known

    found, known = geometry(pairs)
    result: Result = {"gap": least, **found}
    if "skipped" in result:
        return result
    if tables:
        smaller = (geometry([(a[::n], b[::n]) for a, b in pairs])[0] for n in FEWER)
        result["fewer"] = [part for part in smaller if "skipped" not in part]
    tables = {name: table[known] for name, table in tables.items()}
    looks, vectors = book.centroids[known], book.vectors()[known]
    # Queries from smooth to busy patches; the smooth ones alone would all look the same.
    busy = np.argsort(vectors.std(1))
    queries = busy[(np.linspace(0.3, 0.98, 6) * (len(busy) - 1)).astype(int)]
    near = {
        "looks": -np.linalg.norm(looks[queries][:, None] - looks, axis=2),
        "compatibility": pair_scores(pairs, known, np.arange(s.vocab_size))[queries],
        **{n: unit_rows(t)[queries] @ unit_rows(t).T for n, t in tables.items()},
    }
    rows = {name: nearest_symbols(value, queries) for name, value in near.items()}
    drawn = np.unique(np.concatenate([queries, *(r.reshape(-1) for r in rows.values())]))
    result["nearest"] = {"queries": known[queries], **{n: known[r] for n, r in rows.items()}}
    pictures = {str(known[i]): patch_picture(vectors[i], s) for i in drawn}
    result["patch_shape"] = pictures[str(known[drawn[0]])].shape[:2]
    result["patches"] = {symbol: picture.tobytes().hex() for symbol, picture in pictures.items()}
    return result


def patch_picture(vector: NDArray[Any], settings: TokenizerSettings, longest: int = 12) -> Pixels:
    """Draw a centroid in pixel space (D,) at most `longest` pixels long: (height, width, 3).

    A strip lies along its side, with the border on top.
    """
    from PIL import Image

    pixels = np.clip(np.rint(vector.reshape(settings.patch_side, -1, 3)), 0, 255).astype(np.uint8)
    if settings.strips:  # their first axis runs along the side
        pixels = np.ascontiguousarray(pixels.swapaxes(0, 1))
    height, width = pixels.shape[:2]
    scale = min(1.0, longest / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))


def analyze_set(part: TokenSet, labels: Ints | None, seed: int = 0) -> Result:
    """Every number of one token set."""
    sequences, k = part.sequences, part.settings.codes
    flat, cells = sequences.reshape(len(sequences), -1), sequences.shape[1]
    lengths = sorted({1, cells, *(m for m in (2, 4, 9, 16) if m < cells)})
    borders: Result = {"skipped": "needs the symbols' looks: give a model or tokenizer folder"}
    if labels is not None:
        try:
            borders = border_information(part.tokens, part.grid, part.settings, labels)
        except SettingsError as error:  # no border symbols, or one a piece: nothing faces anything
            borders = {"skipped": str(error)}
    return {
        "name": part.name,
        "grid": part.grid,
        "gap": part.gap,
        "vocab_size": part.vocab_size,
        "puzzles": len(flat),
        "tokens": flat.size,
        "tokenizer": asdict(part.settings),
        "entropy": entropy_growth(sequences, k, lengths, seed),
        "zipf": zipf(flat, k, seed=seed),
        "heaps": heaps(flat, seed=seed),
        "equal_super_tokens": equal_super_tokens(part.tokens),
        "borders": borders,
    }


def analyze(
    token_paths: Sequence[str | Path],
    out: str | Path,
    model: str | Path | None = None,
    seed: int = 0,
) -> Result:
    """Analyse token files; write analysis.json, analysis.png/.svg and analysis-beyond.png/.svg.

    `model` is a trained model's folder, or a tokenizer's: it gives looks and embeddings. The
    figure of the paper shows the first file of each group, the second one every gap.
    """
    from puzlm.study.analysis_plots import beyond, sequence_analysis

    if not token_paths:
        raise TokensError("no token files given; make one with: puzlm tokenize")
    sets = [read_tokens(path) for path in token_paths]
    labels, embeddings = None, {"skipped": "no model folder given"}
    if model is not None:
        tokenizer = PieceTokenizer.from_pretrained(model)
        for path, part in zip(token_paths, sets, strict=True):
            if _reading(part.settings) != _reading(tokenizer.settings):
                raise TokensError(f"{path}: written by another tokenizer than that of {model}")
        labels = looks_classes(tokenizer.codebooks_[0].centroids, seed)
        try:
            embeddings = analyze_embeddings(sets, Path(model), tokenizer, labels, seed)
        except SettingsError as error:
            embeddings = {"skipped": str(error)}
    k = sets[0].settings.codes
    lengths = [2**power for power in range(3, 13)]
    result: Result = _plain(
        {
            "version": 1,
            "seed": seed,
            "sets": [analyze_set(part, labels, seed) for part in sets],
            "uniform": {
                "vocab_size": k,
                "tokens": lengths,
                "bound": np.log2(k),
                **dict(
                    zip(
                        ("mean", "low", "high"),
                        np.array([uniform_entropy(k, n) for n in lengths]).T,
                        strict=True,
                    )
                ),
            },
            "english": analyze_english(seed),
            "embeddings": embeddings,
        }
    )
    folder = Path(out)
    write_bytes(folder / "analysis.json", (json.dumps(result) + "\n").encode())
    for suffix in ("png", "svg"):
        sequence_analysis(result, folder / f"analysis.{suffix}")
        beyond(result, folder / f"analysis-beyond.{suffix}")
    return result


def looks_classes(centroids: NDArray[Any], seed: int = 0) -> Ints:
    """A class (k,) for each symbol: k-means of the centroids, CLASSES of them at most."""
    if len(centroids) <= CLASSES:
        return np.arange(len(centroids))
    from puzlm.tokenizer.kmeans import KMeans

    return KMeans(CLASSES, random_state=seed).fit(centroids).labels_


def _reading(settings: TokenizerSettings) -> TokenizerSettings:
    """The settings that decide symbols; those of sentences do not count."""
    return replace(settings, lexicographic=True, separator=True, max_cells=25)


def _plain(value: Any) -> Any:
    """Turn arrays to lists and round to five digits, for JSON."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.5g}") if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
