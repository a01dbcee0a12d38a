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
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puzlm import manifest
from puzlm.devices import check_device
from puzlm.errors import ModelError, SettingsError
from puzlm.files import write_bytes
from puzlm.images import Pixels
from puzlm.model_files import read_json, read_safetensors, read_settings
from puzlm.puzzle import Grid, Puzzle, cut, parse_grid
from puzlm.tokenizer import codebooks
from puzlm.tokenizer.arrays import checksum, concatenate, lexicographic_order, take_along, where
from puzlm.tokenizer.kmeans import Array, Codebook
from puzlm.tokenizer.patches import cut_patches, draw_patches, resized, side_symbols, walk
from puzlm.tokenizer.settings import (
    BOS,
    EOS,
    FIRST_SYMBOL,
    PAD,
    SEP,
    TokenizerSettings,
    is_part,
    is_residual,
)

# The tokenizer's door: what others need of its parts (settings, patches, files) is here, too.
__all__ = [
    "BOS",
    "EOS",
    "FIRST_SYMBOL",
    "PAD",
    "SEP",
    "PieceTokenizer",
    "TokenizerSettings",
    "is_part",
    "is_residual",
    "lexicographic_order",
    "read_json",
    "read_safetensors",
    "resized",
    "side_symbols",
    "walk",
]

GROUP = 36  # pieces encoded at a time: what a few puzzles need stays in the cache


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
    rows_: tuple[Array, Array]
    parts_: list[codebooks.Parts]

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
        return cut_patches(x, self.settings, term, getattr(self, "walk_", None))

    def encode_canonical(self, x: Array) -> Array:
        """Symbols (n, b, symbols a position) of canonical pieces (n, side, side, 3)."""
        s, books = self.settings, self._fitted()
        parts = self.parts_ if hasattr(self, "parts_") else codebooks.parts_of(s, books)
        symbols: Array = codebooks.encode(x, s, books, self.patches, parts)
        return symbols

    def encode(self, pieces: Array) -> Array:
        """Symbols (n, b, symbols a position) of pieces (n, height, width, 3) of any size."""
        if not isinstance(pieces, np.ndarray) or len(pieces) <= GROUP:
            return self.encode_canonical(self.canonical(pieces))
        parts = [self.encode(pieces[i : i + GROUP]) for i in range(0, len(pieces), GROUP)]
        return np.concatenate(parts)

    def encode_all(self, groups: list[Pixels]) -> list[NDArray[np.int64]]:
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

    # ---- symbols to sentences ---------------------------------------------------------------

    def sentences(self, symbols: Array, present: Array = None) -> tuple[Array, Array]:
        """Sort and join: symbols (batch, cells, b, F) -> input_ids, order.

        `present` (batch, cells) is False for missing pieces, whose symbols become [MASK] and which
        come last. input_ids is (batch, T), or (batch, T, F) with F > 1 symbols a position.
        order[batch, slot] is the piece that stands in that slot of the sentence.
        """
        s = self.settings
        count = symbols.shape[3]
        firsts, missing = self.rows(symbols)
        ids, gone = symbols + firsts, None
        if present is not None:
            gone = ~present[:, :, None]
            ids = where(gone[..., None], missing, ids)
        if s.lexicographic:
            keys = self._keys(ids)
        else:
            keys = ids[..., :1, 0] * 0
            keys = keys if gone is None else where(gone, keys + 1, keys)
        order = lexicographic_order(keys)
        ids = take_along(ids, order[:, :, None, None], 1)
        if s.separator:
            sep = ids[:, :, :1] * 0
            sep[..., 0] += SEP
            ids = concatenate([ids, sep], 2)
        ids = ids.reshape(len(ids), -1, count)
        if s.separator:
            ids = ids[:, :-1]
        return (ids[..., 0] if count == 1 else ids), order

    def sorted_pieces(self, symbols: Array, present: Array) -> tuple[Array, Array]:
        """Order of pieces whose turns are not known: symbols (batch, cells, turns, b, F) of each
        piece in all its turns -> order (batch, cells), and turns in it (batch, cells, turns).

        The words of a piece are sorted, and pieces by their first word: neither order says how a
        piece lay. Missing pieces come last.
        """
        firsts, missing = self.rows(symbols)
        ids = where(~present[:, :, None, None, None], missing, symbols + firsts)
        batch, cells, turns = ids.shape[:3]
        keys = self._keys(ids.reshape(batch * cells, turns, *ids.shape[3:]))
        turn = lexicographic_order(keys)
        first = take_along(keys, turn[:, :1, None], 1).reshape(batch, cells, -1)
        order = lexicographic_order(first)
        turn = turn.reshape(batch, cells, turns)
        return order, take_along(turn, order[:, :, None], 1)

    def turned_sentence(self, symbols: Array, present: Array) -> tuple[Array, Array, Array]:
        """Sentences of pieces in all their turns: ids (batch, words, b + 1, F), order, turns.

        Arguments, order and turns as `sorted_pieces` has them. Words of one piece lie together, and
        [SEP] follows each.
        """
        order, turn = self.sorted_pieces(symbols, present)
        firsts, missing = self.rows(symbols)
        ids = where(~present[:, :, None, None, None], missing, symbols + firsts)
        ids = take_along(ids, order[:, :, None, None, None], 1)
        ids = take_along(ids, turn[:, :, :, None, None], 2)
        ids = ids.reshape(len(ids), -1, *ids.shape[3:])
        sep = ids[:, :, :1] * 0
        sep[..., 0] += SEP
        return concatenate([ids, sep], 2), order, turn

    def _keys(self, ids: Array) -> Array:
        """What words (batch, n, b, F) are sorted by, (batch, n, keys)."""
        whole = len(self.settings.whole)
        words = ids[..., :whole].swapaxes(2, 3)
        keys = words.reshape(*words.shape[:2], -1)
        if self.settings.splits:
            # Pieces that differ in what splits say only are told apart by a checksum of it:
            # comparing hundreds of symbols more would take longer than all the rest.
            keys = concatenate([keys, checksum(ids[..., whole:])], 2)
        return keys

    def rows(self, like: Array) -> tuple[Array, Array]:
        """Ids (F,) of the first symbol of each codebook, and those of a missing piece."""
        if hasattr(self, "rows_"):
            return self.rows_
        missing = [self.mask_token_id, *[PAD] * (len(self.settings.terms) - 1)]
        rows = np.array(self.settings.firsts), np.array(missing)
        return rows if isinstance(like, np.ndarray) else tuple(map(like.new_tensor, rows))

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
        symbols = self.encode_all([p.pieces for p in puzzles])
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
        result = {
            "input_ids": ids[..., 0] if count == 1 else ids,
            "attention_mask": mask,
            "order": order,
        }
        if return_tensors == "pt":
            import torch

            return {key: torch.from_numpy(value) for key, value in result.items()}
        return result

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
        check_device(device)
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
        self.codebooks_ = codebooks.fit(
            pieces, self.settings, [], self.patches, seed=seed, device=device, max_iter=max_iter
        )
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
        twin.parts_ = codebooks.parts_of(s, twin.codebooks_)
        firsts, missing = (torch.as_tensor(row).to(device) for row in self.rows(np.empty(0)))
        twin.rows_ = firsts, missing
        return twin

    def with_symbols(
        self, patch: str, pieces: Array, *, seed: int = 0, device: str = "cpu", max_iter: int = 25
    ) -> PieceTokenizer:
        """Copy that says more of every position: `patch` begins with this tokenizer's own.

        Further symbols are fitted on canonical pieces (n, side, side, 3). All codebooks are then
        numbers of half precision, by which a few symbols in a thousand become others.
        """
        if not patch.startswith(self.settings.patch + "+"):
            raise SettingsError(f"patch '{patch}': must begin with '{self.settings.patch}+'")
        twin = PieceTokenizer(self.settings, patch=patch)
        known = [book.rounded() for book in self._fitted()]
        books = codebooks.fit(
            pieces, twin.settings, known, twin.patches, seed=seed, device=device, max_iter=max_iter
        )
        twin.codebooks_ = [book.rounded() for book in books]
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
        term = self.settings.terms[symbol]
        if is_residual(term) or is_part(term):
            raise SettingsError("a residual symbol has no picture of its own; draw symbol 0")
        vectors = self._fitted()[symbol].vectors()[super_token[:, symbol]]
        return draw_patches(vectors, self.settings, term)

    # ---- files ------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer.safetensors."""
        from safetensors.numpy import save

        tensors: dict[str, Any] = {}
        for number, book in enumerate(self._fitted()):
            for name in ("mean", "centroids", "components"):
                values = getattr(book, name)
                if values is not None:
                    with np.errstate(over="ignore"):
                        half = values.astype(np.float16)  # where nothing is lost by it
                    kept = half if np.array_equal(half, values) else values
                    tensors[f"{number}.{name}"] = np.ascontiguousarray(kept)
        manifest.drop(Path(folder))
        write_bytes(Path(folder) / "tokenizer.safetensors", save(tensors))
        record = json.dumps({"version": 1, **asdict(self.settings)}, indent=1) + "\n"
        write_bytes(Path(folder) / "tokenizer.json", record.encode())

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> PieceTokenizer:
        """Read a saved tokenizer; nothing in the files is executed."""
        tokenizer = cls(tokenizer_settings(Path(folder)))
        tensors = read_safetensors(Path(folder) / "tokenizer.safetensors")
        if codebooks.shapes(tokenizer.settings) != {k: a.shape for k, a in tensors.items()}:
            raise ModelError(f"{folder}: tokenizer.safetensors does not fit tokenizer.json")
        arrays = {name: array.astype(np.float32) for name, array in tensors.items()}
        tokenizer.codebooks_ = [
            Codebook(arrays[f"{n}.mean"], arrays.get(f"{n}.components"), arrays[f"{n}.centroids"])
            for n in range(len(tokenizer.settings.terms))
        ]
        return tokenizer


def tokenizer_settings(folder: Path) -> TokenizerSettings:
    """The settings of a saved tokenizer."""
    settings: TokenizerSettings = read_settings(TokenizerSettings, folder / "tokenizer.json")
    return settings
