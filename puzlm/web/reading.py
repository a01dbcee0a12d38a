"""What the machine reads, for people: symbols -> pictures, and how two sides that touch compare.

Everything here starts from symbols: the panel of the page shows what the model gets, no more.
"""

from __future__ import annotations

import base64
import io
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from puzlm.images import Pixels
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer, is_residual, side_symbols, walk
from puzlm.web.answers import Position, Question, Reading, Refused, Side

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

SIDES = ("top", "right", "bottom", "left")
OPPOSITE = {"top": "bottom", "right": "left", "bottom": "top", "left": "right"}


def data_url(pixels: Pixels) -> str:
    """A picture as a PNG data URL."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


class Glass:
    """A reading glass over one tokenizer; keeps the centroids as pictures between calls."""

    def __init__(self, tokenizer: PieceTokenizer, sides: Any = None) -> None:
        self.tokenizer, self.sides = tokenizer, sides
        s = tokenizer.settings
        self.B = s.granularity
        if not s.border or self.B < 2:
            raise ValueError("the page needs a model that reads borders, granularity 2 or more")
        self.layers = list(s.whole)  # parts of splits are too many to look at
        self.index = self._side_index()
        self._closeness = lru_cache(1024)(self._ranks)

    def _side_index(self) -> list[list[int]]:
        """Place in the super-token of each of the B positions of each side, in raster direction."""
        b = self.tokenizer.settings.border_length
        numbered = np.arange(b)[:, None]
        index: list[list[int]] = side_symbols(numbered, self.tokenizer.settings)[..., 0].tolist()
        return index

    def symbols(self, pieces: Pixels) -> Ints:
        """Super-tokens (n, b, F) of pieces, as far as they are shown."""
        return np.asarray(self.tokenizer.encode(pieces)[..., : len(self.layers)])

    def check(self, symbols: list[list[list[int]]]) -> Ints:
        """Super-tokens as an array (n, b, F), or a clear refusal."""
        s = self.tokenizer.settings
        shape, sizes = (len(symbols), s.border_length, len(self.layers)), s.sizes[: len(s.whole)]
        good = all(
            len(token) == shape[1]
            and all(
                len(at) == shape[2] and all(0 <= v < k for v, k in zip(at, sizes, strict=True))
                for at in token
            )
            for token in symbols
        )
        if not good:
            raise Refused(
                422,
                "bad_symbols",
                f"Each super-token must be {shape[1]} positions of {shape[2]} symbols, each from "
                f"0 and below {', '.join(map(str, sizes))}.",
            )
        return np.array(symbols, np.int64)

    # ---- pictures ---------------------------------------------------------------------------

    def strips(self, token: Ints) -> Floats:
        """What the symbols (b, F) of each side say: (4, along, inwards, 3), raster direction.

        Layers are laid over one another: those of one symbol below those that say more, and the
        deepest first, as the finest look at the edge is the shallowest.
        """
        s, books = self.tokenizer.settings, self.tokenizer.codebooks_
        along = s.side
        if not s.strips:
            return self._square_strips(token)
        deepest = max(int(t.split(":")[1]) for t in s.whole if not is_residual(t))
        out = np.zeros((4, along, deepest, 3), np.float32)
        layers: list[tuple[bool, int, Floats]] = []
        for number, term in enumerate(s.whole):
            if is_residual(term):
                continue
            book, chosen = books[number], token[:, number]
            code = book.centroids[chosen]
            follow = number + 1
            while follow < len(s.whole) and is_residual(s.whole[follow]):
                code = code + books[follow].vectors()[token[:, follow]]
                follow += 1
            vectors = code if book.components is None else code @ book.components
            depth = int(term.split(":")[1])
            patches = (vectors + book.mean).reshape(-1, s.patch_side, depth, 3)
            layers.append((follow > number + 1, depth, patches))
        for _, depth, patches in sorted(layers, key=lambda layer: (layer[0], -layer[1])):
            for side in range(4):
                out[side, :, :depth] = patches[self.index[side]].reshape(along, depth, 3)
        return out

    def _square_strips(self, token: Ints) -> Floats:
        s = self.tokenizer.settings
        vectors = self.tokenizer.codebooks_[0].vectors()[token[:, 0]]
        patches = vectors.reshape(-1, s.patch_side, s.patch_side, 3)
        out = np.zeros((4, s.side, s.patch_side, 3), np.float32)
        for side, places in enumerate(self.index):
            picked = patches[places]
            if SIDES[side] in ("top", "bottom"):
                picked = picked.swapaxes(1, 2)
            if SIDES[side] in ("bottom", "right"):
                picked = picked[:, :, ::-1]
            out[side] = picked.reshape(s.side, s.patch_side, 3)
        return out

    def picture(self, token: Ints) -> Pixels:
        """The whole piece as read: pixels mostly from the nearest side, mitred like a frame."""
        n = self.tokenizer.settings.side
        strips = self.strips(token)
        y, x = np.mgrid[0:n, 0:n]
        inwards = np.stack([y, n - 1 - x, n - 1 - y, x])
        weight = np.where(inwards < strips.shape[2], np.exp(-(inwards - inwards.min(0)) / 1.5), 0.0)
        canvas = np.zeros((n, n, 4), np.float32)
        for side, along in enumerate((x, y, x, y)):
            seen = strips[side, along, np.minimum(inwards[side], strips.shape[2] - 1)]
            canvas[..., :3] += weight[side][..., None] * seen
        total = weight.sum(0)
        canvas[..., :3] /= np.maximum(total, 1e-6)[..., None]
        canvas[..., 3] = 255.0 * (total > 0)  # what no symbol covers stays clear
        return _levels(canvas)

    # ---- comparing --------------------------------------------------------------------------

    def _ranks(self, layer: int, symbol: int) -> Floats:
        """Share of the codebook that is farther from `symbol` than each symbol is, (k,)."""
        centroids = self.tokenizer.codebooks_[layer].centroids
        far = ((centroids - centroids[symbol]) ** 2).sum(1)
        order = np.argsort(far, kind="stable")
        share = np.empty(len(order), np.float32)
        share[order] = 1 - np.arange(len(order)) / len(order)
        share[symbol] = 1.0
        return share

    def closeness(self, layer: int, own: int, other: int) -> float:
        """Share of the codebook that is farther from `own` than `other` is; symmetric."""
        both = self._closeness(layer, own)[other], self._closeness(layer, other)[own]
        return round(float(sum(both)) / 2, 4)

    def read(self, question: Question) -> Reading:
        """Answer how one piece is read, and how its sides meet its neighbours'."""
        tokens = self.check(question.symbols)
        piece, around = question.piece, question.neighbours
        if piece >= len(tokens):
            raise Refused(
                422, "bad_piece", f"Piece {piece}: there are pieces 0 to {len(tokens) - 1}."
            )
        for side, other in around.items():
            if side not in SIDES or not 0 <= other < len(tokens) or other == piece:
                raise Refused(
                    422,
                    "bad_neighbours",
                    "Neighbours are other pieces, by the names top, right, bottom and left.",
                )
        scores = self._scores(tokens)
        mine = self.strips(tokens[piece])
        sides: list[Side] = []
        for number, name in enumerate(SIDES):
            own = tokens[piece][self.index[number]]
            strip = data_url(_levels(mine[number].swapaxes(0, 1)[::-1]))
            entry = Side(side=name, symbols=own.tolist(), strip=strip)
            if name in around:
                other = around[name]
                facing = SIDES.index(OPPOSITE[name])
                theirs = tokens[other][self.index[facing]]
                view = self.strips(tokens[other])[facing].swapaxes(0, 1)
                entry.neighbour, entry.other_strip = other, data_url(_levels(view))
                entry.positions = [
                    Position(
                        own=a,
                        other=b,
                        closeness=[
                            self.closeness(k, u, v)
                            for k, (u, v) in enumerate(zip(a, b, strict=True))
                        ],
                    )
                    for a, b in zip(own.tolist(), theirs.tolist(), strict=True)
                ]
                if scores is not None:
                    right, below = scores
                    row = {
                        "top": below[:, piece],
                        "right": right[piece],
                        "bottom": below[piece],
                        "left": right[:, piece],
                    }[name]
                    others = np.delete(row, piece)
                    weight = np.exp(others - others.max())
                    entry.rank = int((others > row[other]).sum()) + 1
                    entry.share = round(float(np.exp(row[other] - others.max()) / weight.sum()), 4)
            sides.append(entry)
        return Reading(
            piece=piece,
            text=self.tokenizer.text(tokens[piece]),
            picture=data_url(self.picture(tokens[piece])),
            granularity=self.B,
            layers=self.layers,
            parts=len(self.tokenizer.settings.terms) - len(self.layers),
            walk=self._walk(),
            sides=sides,
            candidates=len(tokens) - 1,
        )

    def _walk(self) -> list[list[int]]:
        """(row, column) of each symbol around a (B + 2) x (B + 2) frame, in reading order."""
        s, B = self.tokenizer.settings, self.B
        if not s.strips:
            return [[c // B, c % B] for c in walk(B, s.border, s.clockwise)]
        at: dict[int, list[int]] = {}
        for side, places in enumerate(self.index):
            for step, place in enumerate(places):
                at[place] = [[0, step + 1], [step + 1, B + 1], [B + 1, step + 1], [step + 1, 0]][
                    side
                ]
        return [at[place] for place in range(s.border_length)]

    def _scores(self, tokens: Ints) -> tuple[Any, Any] | None:
        """Right and below scores of the side model, if there is one."""
        if self.sides is None or len(tokens) < 2:
            return None
        right, below = self.sides.scores(side_symbols(tokens, self.tokenizer.settings))
        return right, below


def _levels(pixels: NDArray[Any]) -> Pixels:
    return np.ascontiguousarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))
