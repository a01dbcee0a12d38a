"""Settings of a tokenizer and their checks; the ids of its special tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from puzlm.errors import SettingsError

PAD, BOS, EOS, SEP, FIRST_SYMBOL = 0, 1, 2, 3, 4
MOST_CODES = 65_531  # with the special tokens and [MASK], ids stay below 65,536: sorting needs that


LARGEST = 2048  # pixels of a piece's side; what is resized to it must fit into memory

SPLIT = r"split:(\d+):(\d+)x(\d+)"


def is_residual(term: str) -> bool:
    """Whether a symbol stands for what the centroid before it left over."""
    return term.startswith("residual")


def is_part(term: str) -> bool:
    """Whether a symbol stands for some dimensions of what is left over in the end."""
    return term.startswith("part")


def depth_of(term: str) -> int:
    """Pixels inwards of a strip, or of the strip that a part belongs to.

    >>> depth_of("strip:24"), depth_of("part:24:0/32:16")
    (24, 24)
    """
    return int(term.split(":")[1])


@dataclass(frozen=True)
class Split:
    """What the symbols of a strip left over, cut into `count` parts of its dimensions."""

    depth: int
    count: int
    codes: int
    """Centroids of each part."""

    @property
    def terms(self) -> list[str]:
        """Its symbols, as `TokenizerSettings.terms` lists them."""
        return [f"part:{self.depth}:{n}/{self.count}:{self.codes}" for n in range(self.count)]


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
    position after a plus sign: 'strip:4+residual' (what the centroid before it left over),
    'strip:4+residual:512' (the same with 512 centroids instead of k), 'strip:4+strip:16' (the same
    place seen deeper). At the end 'split:4:32x16': what is left over of strip:4 by then, its PCA
    dimensions in 32 equal parts with 16 centroids each, so 32 symbols more."""
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
        if not self.granularity <= self.piece_size <= LARGEST:
            raise check(f"piece_size {self.piece_size}: must be from the granularity to {LARGEST}")
        if self.max_cells < 2:
            raise check(f"max_cells {self.max_cells}: must be at least 2")
        for number, term in enumerate(self.whole):
            match = re.fullmatch(r"strip:(\d+)", term)
            if match and not 1 <= int(match[1]) <= self.side:
                raise check(f"patch '{term}': depth must be 1 to {self.side}")
            allowed = r"residual(:\d+)?" if number else "square"
            if not match and not re.fullmatch(allowed, term):
                raise check(
                    f"patch '{self.patch}': use 'square' or 'strip:DEPTH', then '+residual', "
                    "'+residual:CENTROIDS' or '+strip:DEPTH', at the end "
                    "'+split:DEPTH:PARTSxCENTROIDS'"
                )
            if match and number and self.whole[0] == "square":
                raise check(f"patch '{self.patch}': strips cannot follow squares")
        for split in self.splits:
            if f"strip:{split.depth}" not in self.whole:
                raise check(f"patch '{self.patch}': no strip:{split.depth} to split")
            if split.count < 1 or self.dimensions(split.depth) % split.count:
                raise check(
                    f"patch '{self.patch}': {self.dimensions(split.depth)} dimensions of "
                    f"strip:{split.depth} do not split into {split.count} equal parts"
                )
        if min(self.sizes) < 2:
            raise check(f"patch '{self.patch}': every codebook needs at least 2 centroids")
        _ = self.firsts  # now: torch.compile can read a cached property, but not fill it
        if self.codes > MOST_CODES:
            raise check(
                f"vocab_size {self.vocab_size}, {len(self.terms)} symbols a position: {self.codes} "
                f"centroids, at most {MOST_CODES} in all"
            )
        if self.strips and not self.border:
            raise check("border=False: strips lie on the border only; use patch='square'")

    @cached_property
    def splits(self) -> list[Split]:
        """The splits at the end of `patch`."""
        found = (re.fullmatch(SPLIT, term) for term in self.patch.split("+")[len(self.whole) :])
        return [Split(*map(int, match.groups())) for match in found if match]

    @cached_property
    def whole(self) -> list[str]:
        """The symbols of one border position that stand for all dimensions of something."""
        words = self.patch.split("+")
        while re.fullmatch(SPLIT, words[-1]) and len(words) > 1:
            words.pop()
        return words

    @cached_property
    def terms(self) -> list[str]:
        """The symbols of one border position, first to last."""
        return self.whole + [term for split in self.splits for term in split.terms]

    @cached_property
    def sizes(self) -> list[int]:
        """Centroids of the codebook of each term."""
        own = [term.rpartition(":")[2] if ":" in term else "" for term in self.terms]
        return [
            int(size) if size and not term.startswith("strip") else self.vocab_size
            for term, size in zip(self.terms, own, strict=True)
        ]

    def dimensions(self, depth: int) -> int:
        """Dimensions of a strip's codebook."""
        pixels = self.patch_side * depth * 3
        return pixels if self.pca_dim is None else min(self.pca_dim, pixels)

    @cached_property
    def firsts(self) -> list[int]:
        """Token id of the first symbol of each codebook."""
        return [FIRST_SYMBOL + sum(self.sizes[:number]) for number in range(len(self.terms))]

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
    def depth(self) -> int:
        """Pixels of a canonical piece that are read, from every edge inwards; 0: all of them."""
        if self.strips:
            depth = max(depth_of(term) for term in self.whole if not is_residual(term))
        else:
            depth = self.patch_side if self.border and self.granularity > 2 else 0
        return depth if 2 * depth < self.side else 0

    @property
    def border_length(self) -> int:
        """b: positions of a super-token."""
        if self.strips:
            return 4 * self.granularity
        return max(1, 4 * self.granularity - 4) if self.border else self.granularity**2

    @property
    def codes(self) -> int:
        """Symbols of all codebooks together."""
        return sum(self.sizes)
