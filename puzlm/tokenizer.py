"""PieceTokenizer: pieces -> super-tokens -> sentences. Knows no models.

    piece -> B x B patches -> PCA -> nearest centroid -> border symbols, clockwise = super-token
    puzzle -> super-tokens in lexicographic order, joined by [SEP] = sentence of bN + N - 1 tokens

Token ids: [PAD] 0, [BOS] 1, [EOS] 2, [SEP] 3, then the symbols, then [MASK], then one token for
each cell. [MASK] follows the symbols so that missing pieces sort last.

The same code runs on numpy arrays and, after `on(device)`, on torch tensors: it keeps to what the
two libraries spell alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm.errors import ModelError, SettingsError, nearest
from puzlm.images import Pixels, write_bytes
from puzlm.kmeans import Array, Codebook
from puzlm.puzzle import HOLE, Grid, Puzzle, cut, parse_grid

GROUP = 36  # pieces encoded at a time: what a few puzzles need stays in the cache
PAD, BOS, EOS, SEP, FIRST_SYMBOL = 0, 1, 2, 3, 4


@dataclass(frozen=True)
class TokenizerSettings:
    """Every design choice of the tokenizer; the defaults are the paper's."""

    granularity: int = 4
    """B: patches (or strips) along one side of a piece."""
    pca_dim: int | None = 1024
    """d: dimensions kept by the PCA; None (0 in a recipe) leaves the PCA out."""
    vocab_size: int = 4096
    """k: centroids of each codebook."""
    piece_size: int = 96
    """Pieces of any size are resized to this many pixels a side first."""
    patch: str = "square"
    """'square', 'strip:4' (border strips 4 px deep, B a side), and further symbols a border
    position after a plus sign: 'strip:4+residual' (what the first centroid left over),
    'strip:4+strip:16' (the same place seen deeper)."""
    border: bool = True
    """Keep the border patches only; False keeps all B x B."""
    lexicographic: bool = True
    """Sort the super-tokens; False keeps the input order."""
    clockwise: bool = True
    """Walk the border clockwise from the top left; False reads it in raster order."""
    separator: bool = True
    """Put [SEP] between super-tokens."""
    max_cells: int = 25
    """Largest number of cells a puzzle may have."""

    def __post_init__(self) -> None:
        check = SettingsError
        if not 1 <= self.granularity <= 8:
            raise check(f"granularity {self.granularity}: must be 1 to 8")
        if self.pca_dim is not None and self.pca_dim < 1:
            raise check(f"pca_dim {self.pca_dim}: must be at least 1, or None for no PCA")
        if self.vocab_size < 2:
            raise check(f"vocab_size {self.vocab_size}: must be at least 2")
        if self.piece_size < self.granularity:
            raise check(f"piece_size {self.piece_size}: smaller than the granularity")
        if self.max_cells < 2:
            raise check(f"max_cells {self.max_cells}: must be at least 2")
        for number, term in enumerate(self.terms):
            match = re.fullmatch(r"strip:(\d+)", term)
            if match and not 1 <= int(match[1]) <= self.side:
                raise check(f"patch '{term}': depth must be 1 to {self.side}")
            if not match and term != ("square" if number == 0 else "residual"):
                raise check(
                    f"patch '{self.patch}': use 'square' or 'strip:DEPTH', then '+residual' or "
                    "'+strip:DEPTH'"
                )
            if match and number and self.terms[0] == "square":
                raise check(f"patch '{self.patch}': strips cannot follow squares")
        if self.strips and not self.border:
            raise check("border=False: strips lie on the border only; use patch='square'")

    @property
    def terms(self) -> list[str]:
        """The symbols of one border position, first to last."""
        return self.patch.split("+")

    @property
    def strips(self) -> bool:
        """Whether symbols come from border strips."""
        return self.terms[0] != "square"

    @property
    def patch_side(self) -> int:
        """Pixels of a patch along the side."""
        return max(1, round(self.piece_size / self.granularity))

    @property
    def side(self) -> int:
        """Canonical piece size: piece_size, rounded to a multiple of the granularity."""
        return self.granularity * self.patch_side

    @property
    def border_length(self) -> int:
        """b: positions of a super-token."""
        if self.strips:
            return 4 * self.granularity
        return max(1, 4 * self.granularity - 4) if self.border else self.granularity**2

    @property
    def codes(self) -> int:
        """Symbols of all codebooks together."""
        return self.vocab_size * len(self.terms)


class PieceTokenizer:
    """Read pieces as symbols. `fit` learns the codebooks; calling it writes sentences.

    >>> tokenizer = PieceTokenizer(vocab_size=64, pca_dim=16).fit([image])
    >>> tokenizer([Puzzle.from_image(image, 3)])["input_ids"].shape
    (1, 116)
    """

    def __init__(self, settings: TokenizerSettings | None = None, **changes: Any) -> None:
        self.settings = replace(settings or TokenizerSettings(), **changes)

    codebooks_: list[Codebook]
    walk_: Array

    # ---- vocabulary -------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """Number of symbols, without special tokens (len() counts all)."""
        return self.settings.codes

    def __len__(self) -> int:
        return self.cell_token_id(self.settings.max_cells)

    pad_token_id, bos_token_id, eos_token_id, sep_token_id = PAD, BOS, EOS, SEP

    @property
    def mask_token_id(self) -> int:
        """Stands for every symbol of a missing piece."""
        return FIRST_SYMBOL + self.settings.codes

    def cell_token_id(self, cell: int) -> int:
        """Token that says "in this cell"."""
        return self.mask_token_id + 1 + cell

    def sentence_length(self, cells: int) -> int:
        """T(N) = bN + N - 1, or bN without separators."""
        b = self.settings.border_length
        return b * cells + (cells - 1 if self.settings.separator else 0)

    # ---- pieces to symbols ------------------------------------------------------------------

    def canonical(self, pieces: Array) -> Array:
        """Resize pieces (n, height, width, 3) to the canonical side, in whole grey levels."""
        return resized(pieces, self.settings.side)

    def patches(self, x: Array, term: str) -> Array:
        """Border patches of canonical pieces x (n, side, side, 3): (n, b, D), in walking order."""
        s, B = self.settings, self.settings.granularity
        if term == "square":
            grid = x.reshape(len(x), B, s.patch_side, B, s.patch_side, 3).swapaxes(2, 3)
            flat = grid.reshape(len(x), B * B, s.patch_side**2 * 3)
            return _pick(flat, walk(B, s.border, s.clockwise), getattr(self, "walk_", None))
        depth = int(term.split(":")[1])
        # First axis along the side in raster direction, second from the border inwards: two sides
        # that touch show the same picture.
        top, bottom = x[:, :depth].swapaxes(1, 2), _flip(x[:, -depth:], 1).swapaxes(1, 2)
        left, right = x[:, :, :depth], _flip(x[:, :, -depth:], 2)
        shape = (len(x), B, s.patch_side * depth * 3)
        top, right, bottom, left = (a.reshape(shape) for a in (top, right, bottom, left))
        if s.clockwise:
            return _concatenate([top, right, _flip(bottom, 1), _flip(left, 1)], 1)
        return _concatenate([top, left, right, bottom], 1)

    def encode_canonical(self, x: Array) -> Array:
        """Symbols (n, b, symbols a position) of canonical pieces (n, side, side, 3)."""
        columns: list[Array] = []
        terms, books = self.settings.terms, self._fitted()
        rest: Array = None
        for number, (term, book) in enumerate(zip(terms, books, strict=True)):
            if term == "residual":
                vectors = rest
            else:
                patches = self.patches(x, term)
                vectors = patches.reshape(-1, patches.shape[-1])
            columns.append(book.assign(vectors))
            if terms[number + 1 : number + 2] == ["residual"]:
                rest = book.project(vectors) - book.centroids[columns[-1]]
        b = self.settings.border_length
        return _concatenate([c.reshape(-1, b, 1) for c in columns], 2)

    def encode(self, pieces: Array) -> Array:
        """Symbols (n, b, symbols a position) of pieces (n, height, width, 3) of any size."""
        if not isinstance(pieces, np.ndarray) or len(pieces) <= GROUP:
            return self.encode_canonical(self.canonical(pieces))
        parts = [self.encode(pieces[i : i + GROUP]) for i in range(0, len(pieces), GROUP)]
        return np.concatenate(parts)

    # ---- symbols to sentences ---------------------------------------------------------------

    def sentences(self, symbols: Array, present: Array = None) -> tuple[Array, Array]:
        """Sort and join: symbols (batch, cells, b, F) -> input_ids, order.

        `present` (batch, cells) is False for missing pieces, whose symbols become [MASK] and which
        come last. input_ids is (batch, T), or (batch, T, F) with F > 1 symbols a position.
        order[batch, slot] is the piece that stands in that slot of the sentence.
        """
        s = self.settings
        count = symbols.shape[3]
        columns = [symbols[..., f] + (FIRST_SYMBOL + f * s.vocab_size) for f in range(count)]
        if present is not None:
            gone = ~present[:, :, None]
            columns = [_where(gone, self.mask_token_id if f == 0 else PAD, column)
                       for f, column in enumerate(columns)]  # fmt: skip
        keys = columns if s.lexicographic else [columns[0][..., :1] * 0]
        if present is not None and not s.lexicographic:
            keys = [_where(gone, 1, keys[0])]
        order = lexicographic_order(_concatenate(keys, 2))
        ids = _concatenate([c[..., None] for c in columns], 3)
        ids = _take_along(ids, order[:, :, None, None], 1)
        if s.separator:
            sep = ids[:, :, :1] * 0
            sep[..., 0] += SEP
            ids = _concatenate([ids, sep], 2)
        ids = ids.reshape(len(ids), -1, count)
        if s.separator:
            ids = ids[:, :-1]
        return (ids[..., 0] if count == 1 else ids), order

    def __call__(
        self, puzzles: Puzzle | Sequence[Puzzle], return_tensors: str = "np"
    ) -> dict[str, Any]:
        """Write the sentences of some puzzles: input_ids, attention_mask, order.

        Shorter sentences are padded with [PAD]; slots without a piece have order -1.
        """
        puzzles = [puzzles] if isinstance(puzzles, Puzzle) else list(puzzles)
        if not puzzles:
            raise SettingsError("no puzzles given")
        for puzzle in puzzles:
            if puzzle.cells > self.settings.max_cells:
                raise SettingsError(
                    f"a {puzzle.grid[0]}x{puzzle.grid[1]} puzzle has {puzzle.cells} cells, this "
                    f"model reads at most {self.settings.max_cells}; use a larger model or --solver"
                )
            if len(puzzle.pieces) > puzzle.cells:
                raise SettingsError(f"{len(puzzle.pieces)} pieces for {puzzle.cells} cells")
        symbols = self._encode_all([p.pieces for p in puzzles])
        widest = max(p.cells for p in puzzles)
        count = len(self.settings.terms)
        shape = (len(puzzles), self.sentence_length(widest), count)
        ids, order = np.full(shape, PAD, np.int64), np.full((len(puzzles), widest), -1, np.int64)
        mask = np.zeros(shape[:2], np.int64)
        for row, (puzzle, code) in enumerate(zip(puzzles, symbols, strict=True)):
            full = np.zeros((1, puzzle.cells, *code.shape[1:]), np.int64)
            full[0, : len(code)] = code
            present = (np.arange(puzzle.cells) < len(code))[None]
            one, slots = self.sentences(full, present)
            length = self.sentence_length(puzzle.cells)
            ids[row, :length] = one[0].reshape(length, count)
            mask[row, :length] = 1
            order[row, : puzzle.cells] = np.where(slots[0] < len(code), slots[0], -1)
        result = {"input_ids": ids[..., 0] if count == 1 else ids, "attention_mask": mask,
                  "order": order}  # fmt: skip
        if return_tensors == "pt":
            import torch

            return {key: torch.from_numpy(value) for key, value in result.items()}
        return result

    def _encode_all(self, groups: list[Pixels]) -> list[NDArray[np.int64]]:
        """Encode many puzzles at once; pieces of one size share one matrix product."""
        results: list[Any] = [None] * len(groups)
        for shape in dict.fromkeys(g.shape[1:] for g in groups):
            members = [i for i, g in enumerate(groups) if g.shape[1:] == shape]
            for start in range(0, len(members), 64):  # bounds memory: 64 puzzles at a time
                part = members[start : start + 64]
                codes = self.encode(np.concatenate([groups[i] for i in part]))
                ends = np.cumsum([len(groups[i]) for i in part])[:-1]
                for i, code in zip(part, np.split(codes, ends), strict=True):
                    results[i] = code
        return results

    # ---- fitting ----------------------------------------------------------------------------

    def fit(
        self,
        images: Iterable[Pixels],
        *,
        grid: Grid | int | str = 3,
        gap: float = 0.0,
        seed: int = 0,
        max_pieces: int = 16_384,
        device: str = "cpu",
        max_iter: int = 25,
    ) -> PieceTokenizer:
        """Learn the codebooks from a stream of images of any length.

        A uniform sample of `max_pieces` canonical pieces is kept (27 kB each at 96 px), however
        many images go by.
        """
        rng = np.random.default_rng(seed)
        parsed, side = parse_grid(grid), self.settings.side
        kept = np.empty((0, side, side, 3), np.uint8)
        keys = np.empty(0)
        batch: list[Pixels] = []

        def merge() -> None:
            nonlocal kept, keys
            fresh = np.concatenate([self.canonical(b).astype(np.uint8) for b in batch])
            kept = np.concatenate([kept, fresh])
            keys = np.concatenate([keys, rng.random(len(fresh))])
            if len(keys) > max_pieces:
                smallest = np.sort(np.argpartition(keys, max_pieces)[:max_pieces])
                kept, keys = kept[smallest], keys[smallest]
            batch.clear()

        for image in images:
            batch.append(cut(image, parsed, gap))
            if len(batch) == 64:
                merge()
        if batch:
            merge()
        if not len(kept):
            raise SettingsError("no images to fit the tokenizer on")
        return self.fit_canonical(kept, seed=seed, device=device, max_iter=max_iter)

    def fit_canonical(
        self, pieces: Array, *, seed: int = 0, device: str = "cpu", max_iter: int = 25
    ) -> PieceTokenizer:
        """Learn the codebooks from canonical pieces (n, side, side, 3)."""
        s = self.settings
        x = pieces.astype(np.float32) if isinstance(pieces, np.ndarray) else pieces.float()
        self.codebooks_ = []
        rest: Array = None
        for number, term in enumerate(s.terms):
            if term == "residual":
                vectors, pca_dim = rest, None
            else:
                patches = self.patches(x, term)
                vectors, pca_dim = patches.reshape(-1, patches.shape[-1]), s.pca_dim
            if len(vectors) < s.vocab_size:
                raise SettingsError(
                    f"vocab_size k = {s.vocab_size} is larger than the {len(vectors)} patches to "
                    "learn from; give more images or a smaller k"
                )
            book = Codebook.fit(vectors, s.vocab_size, pca_dim, seed=seed + number, device=device,
                                max_iter=max_iter)  # fmt: skip
            if s.terms[number + 1 : number + 2] == ["residual"]:
                there = book if isinstance(vectors, np.ndarray) else book.on(vectors.device)
                projected = there.project(vectors)
                rest = projected - there.centroids[there.assign(vectors)]
            self.codebooks_.append(book)
        return self

    def _fitted(self) -> list[Codebook]:
        if not hasattr(self, "codebooks_"):
            raise SettingsError("this tokenizer has learned nothing yet: call fit() first")
        return self.codebooks_

    def on(self, device: Any) -> PieceTokenizer:
        """Copy whose codebooks are torch tensors on a device; it then takes torch tensors."""
        import torch

        twin = PieceTokenizer(self.settings)
        twin.codebooks_ = [book.on(device) for book in self._fitted()]
        s = self.settings
        # There already: a list would be copied to the device, and waited for, at every call.
        twin.walk_ = torch.tensor(walk(s.granularity, s.border, s.clockwise), device=device)
        return twin

    def with_cells(self, max_cells: int) -> PieceTokenizer:
        """Copy for larger or smaller puzzles: the symbols are the same."""
        twin = PieceTokenizer(self.settings, max_cells=max_cells)
        twin.codebooks_ = self._fitted()
        return twin

    # ---- for people -------------------------------------------------------------------------

    def text(self, super_token: NDArray[np.int64]) -> str:
        """Print a super-token (b, F): its symbols in walking order.

        >>> tokenizer.text(tokenizer.encode(pieces)[0])
        '0412 1833 0007 2954 ...'
        """
        width = len(str(self.settings.vocab_size - 1))
        return " ".join(":".join(f"{v:0{width}d}" for v in row) for row in super_token)

    def picture(self, super_token: NDArray[np.int64], symbol: int = 0) -> Pixels:
        """Draw what a super-token (b, F) says: every centroid patch at its place in the piece."""
        s, B = self.settings, self.settings.granularity
        canvas = np.full((s.side, s.side, 3), HOLE, np.float32)
        vectors = self._fitted()[symbol].vectors()[super_token[:, symbol]]
        if s.terms[symbol] == "residual":
            raise SettingsError("a residual symbol has no picture of its own; draw symbol 0")
        if s.terms[symbol] == "square":
            for where, vector in zip(walk(B, s.border, s.clockwise), vectors, strict=True):
                top, left = where // B * s.patch_side, where % B * s.patch_side
                patch = vector.reshape(s.patch_side, s.patch_side, 3)
                canvas[top : top + s.patch_side, left : left + s.patch_side] = patch
        else:
            depth = int(s.terms[symbol].split(":")[1])
            strips = vectors.reshape(4, B, s.patch_side, depth, 3)
            if s.clockwise:
                top_, right, bottom, left_ = strips[0], strips[1], strips[2][::-1], strips[3][::-1]
            else:
                top_, left_, right, bottom = strips
            shape = (s.side, depth, 3)
            canvas[:depth] = top_.reshape(shape).swapaxes(0, 1)
            canvas[::-1][:depth] = bottom.reshape(shape).swapaxes(0, 1)
            canvas[:, :depth] = left_.reshape(shape)
            canvas[:, ::-1][:, :depth] = right.reshape(shape)
        return np.clip(np.rint(canvas), 0, 255).astype(np.uint8)

    # ---- files ------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer.safetensors."""
        from safetensors.numpy import save

        tensors: dict[str, Any] = {}
        for number, book in enumerate(self._fitted()):
            tensors[f"{number}.mean"] = np.ascontiguousarray(book.mean)
            tensors[f"{number}.centroids"] = np.ascontiguousarray(book.centroids)
            if book.components is not None:
                tensors[f"{number}.components"] = np.ascontiguousarray(book.components)
        write_bytes(Path(folder) / "tokenizer.safetensors", save(tensors))
        record = json.dumps({"version": 1, **asdict(self.settings)}, indent=1) + "\n"
        write_bytes(Path(folder) / "tokenizer.json", record.encode())

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> PieceTokenizer:
        """Read a saved tokenizer; nothing in the files is executed."""
        record = read_json(Path(folder) / "tokenizer.json")
        record.pop("version", None)
        tensors = read_safetensors(Path(folder) / "tokenizer.safetensors")
        tokenizer = cls(settings_from(TokenizerSettings, record, str(folder)))
        s = tokenizer.settings
        tokenizer.codebooks_ = []
        for number in range(len(s.terms)):
            try:
                book = Codebook(tensors[f"{number}.mean"].astype(np.float32),
                                tensors.get(f"{number}.components"),
                                tensors[f"{number}.centroids"].astype(np.float32))  # fmt: skip
            except KeyError as error:
                raise ModelError(f"{folder}: tokenizer.safetensors lacks {error}") from error
            if book.components is not None:
                book.components = book.components.astype(np.float32)
            if book.centroids.shape[0] != s.vocab_size:
                raise ModelError(f"{folder}: tokenizer.json and tokenizer.safetensors disagree")
            tokenizer.codebooks_.append(book)
        return tokenizer


def walk(B: int, border: bool = True, clockwise: bool = True) -> list[int]:
    """Patch indices of a super-token in walking order, as raster cells of the B x B patches.

    >>> walk(4)
    [0, 1, 2, 3, 7, 11, 15, 14, 13, 12, 8, 4]
    """
    if not border or B == 1:
        return list(range(B * B))
    if not clockwise:
        return [c for c in range(B * B) if c // B in (0, B - 1) or c % B in (0, B - 1)]
    top, right = list(range(B)), [row * B + B - 1 for row in range(1, B)]
    bottom = [B * (B - 1) + column for column in range(B - 2, -1, -1)]
    return top + right + bottom + [row * B for row in range(B - 2, 0, -1)]


def side_symbols(symbols: Any, tokenizer: PieceTokenizer) -> Any:
    """Split super-tokens (..., b, F) into sides (..., 4, B, F): top, right, bottom, left.

    Every side is read in raster direction, so that two touching sides are read the same way.
    Corner squares belong to both of their sides.
    """
    s, B = tokenizer.settings, tokenizer.settings.granularity
    if not s.border or B == 1:
        raise SettingsError("the side model needs border symbols and a granularity of at least 2")
    if s.strips and s.clockwise:
        index = [range(B), range(B, 2 * B), range(3 * B - 1, 2 * B - 1, -1),
                 range(4 * B - 1, 3 * B - 1, -1)]  # fmt: skip
    elif s.strips:
        index = [range(B), range(2 * B, 3 * B), range(3 * B, 4 * B), range(B, 2 * B)]
    else:
        place = {cell: spot for spot, cell in enumerate(walk(B, True, s.clockwise))}
        cells = [[(0, i) for i in range(B)], [(i, B - 1) for i in range(B)],
                 [(B - 1, i) for i in range(B)], [(i, 0) for i in range(B)]]  # fmt: skip
        index = [[place[r * B + c] for r, c in side] for side in cells]  # type: ignore[misc]
    flat = [i for side in index for i in side]
    picked = symbols[..., flat, :]
    return picked.reshape(*picked.shape[:-2], 4, B, picked.shape[-1])


def lexicographic_order(words: Array) -> Array:
    """Order (batch, n) that sorts words (batch, n, length) of ids below 65536; ties keep order.

    Rank of a word = number of words before it, by comparing all pairs: for a few dozen pieces that
    is faster than sorting, and it is the same arithmetic on every device.
    """
    n, length = words.shape[1:]
    index = (words[0, :, 0] * 0 + 1).cumsum(0)  # 1 .. n, an array or tensor like the words
    before = index[:, None] < index[None, :]  # (.., i, j): does i come before j?
    for end in range(length, 0, -3):
        key = words[:, :, end - 1]
        for back in range(2, min(3, end) + 1):  # three ids of 16 bits to one comparison
            key = key + (words[:, :, end - back] << (16 * (back - 1)))
        first, second = key[:, :, None], key[:, None, :]
        before = (first < second) | ((first == second) & before)
    return before.sum(1).argsort(-1)


def read_json(path: Path) -> dict[str, Any]:
    """Read a settings file, or say what is wrong with it."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent}: {path.name} is missing") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: damaged ({error})") from error
    if not isinstance(record, dict):
        raise ModelError(f"{path}: damaged (no settings in it)")
    return record


DTYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I64": np.int64, "U8": np.uint8}


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Read tensors from a safetensors file; anything else (a pickle, say) is refused.

    The format is a length, a JSON header and plain bytes: read here with numpy, so that solving
    needs no further package, and nothing in the file can be executed.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent}: {path.name} is missing") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        size = int.from_bytes(data[:8], "little")
        if size > len(data) - 8:
            raise ValueError("no header")
        header, body = json.loads(data[8 : 8 + size]), memoryview(data)[8 + size :]
        header.pop("__metadata__", None)
        arrays: dict[str, NDArray[Any]] = {}
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            if not 0 <= start <= end <= len(body):
                raise ValueError(f"{name} lies outside the file")
            array = np.frombuffer(body[start:end], DTYPES[entry["dtype"]])
            arrays[name] = array.reshape(entry["shape"]).copy()
        return arrays
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: not a readable safetensors file ({error})") from error


def settings_from(kind: type[Any], record: dict[str, Any], where: str) -> Any:
    """Build a settings dataclass from a record; an unknown key names the nearest known one."""
    known = [f.name for f in fields(kind)]
    for key in record:
        if key not in known:
            raise SettingsError(f"{where}: unknown setting '{key}'; {nearest(key, known)}")
    try:
        return kind(**record)
    except TypeError as error:
        raise SettingsError(f"{where}: {error}") from error


def _concatenate(parts: list[Array], axis: int) -> Array:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis)
    import torch

    return torch.cat(parts, axis)


def _pick(a: Array, index: list[int], there: Array = None) -> Array:
    """Columns of axis 1; `there` is the index on the device of a, if it is there."""
    if isinstance(a, np.ndarray):
        return a[:, index]
    import torch

    return a.index_select(1, torch.tensor(index, device=a.device) if there is None else there)


def _flip(a: Array, axis: int) -> Array:
    return np.flip(a, axis) if isinstance(a, np.ndarray) else a.flip(axis)


def _take_along(a: Array, index: Array, axis: int) -> Array:
    if isinstance(a, np.ndarray):
        return np.take_along_axis(a, index, axis)
    return a.take_along_dim(index, axis)


def _where(condition: Array, value: int, other: Array) -> Array:
    if isinstance(other, np.ndarray):
        return np.where(condition, value, other)
    return other.masked_fill(condition, value)


def _apply(matrix: Array, x: Array, axis: int) -> Array:
    """Multiply `matrix` (new, old) into one axis of x."""
    if not isinstance(x, np.ndarray):
        import torch

        matrix = torch.from_numpy(matrix).to(x.device)
    return (x.swapaxes(axis, 3) @ matrix.T).swapaxes(axis, 3)


def resized(pieces: Array, side: int) -> Array:
    """Resize pieces (n, height, width, 3) to side x side, in whole grey levels."""
    if pieces.shape[1] == side and pieces.shape[2] == side:
        return pieces
    is_numpy = isinstance(pieces, np.ndarray)
    x = pieces.astype(np.float32) if is_numpy else pieces.float()
    for axis in (1, 2):
        if x.shape[axis] != side:
            x = _apply(_resize_matrix(x.shape[axis], side), x, axis)
    # Whole levels again: rounding errors of the resize must not decide a symbol.
    return x.round().astype(np.uint8) if is_numpy else x.round()


def _resize_matrix(old: int, new: int) -> NDArray[np.float32]:
    """Weights (new, old) of a triangle filter, widened when shrinking so that nothing aliases."""
    scale = old / new
    width = max(1.0, scale)
    centre = (np.arange(new) + 0.5) * scale - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(np.arange(old)[None] - centre[:, None]) / width)
    if old == 1:
        weights[:] = 1.0
    result: NDArray[np.float32] = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return result
