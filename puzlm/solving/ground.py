"""A picture on a plain ground: pieces cannot tell where on it. Knows no models.

Whole lines of plain pieces at two opposite sides can be shared out between them in any way. What
counts is whether the seams are sharp, and that pictures mostly lie in the middle.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

AWAY = 1.0  # log of how much less likely a picture is for every line that it lies off the middle
# A pair of ground and picture scores -7 to 0 where the picture runs into the ground, -36 and less
# where it ends at the cut (docs/runs/equal-pieces.txt); how far above or below says nothing more.
SHARP = -10.0
EDGE = 2.0  # log of how much less likely a seam is for every sharp pair


def plain_ground(pieces: NDArray[np.uint8], kinds: Ints) -> Ints:
    """Kinds of which there are several pieces, all of one colour."""
    several = np.flatnonzero(np.bincount(kinds) > 1)
    one_colour = (pieces[several] == pieces[several, :1, :1]).all((1, 2, 3))
    found: Ints = several[one_colour]
    return found


def settled(
    boards: Ints, right: Floats, below: Floats, grid: tuple[int, int], ground: Ints, kinds: Ints
) -> tuple[Ints, Floats]:
    """Lay each picture where it is likeliest on its ground: boards (k, n).

    And for the first of them how likely an equal piece lies in each cell, as far as that goes: (n,)
    """
    moved, sure = boards.copy(), np.ones(boards.shape[1])
    for k, positions in enumerate(boards):
        board = np.argsort(positions).reshape(grid)
        rolls, shares = [], []
        for lines, scores in ((board, below), (board.T, right)):
            steps, likely = _ways(lines, scores, ground, kinds)
            rolls.append(steps)
            shares.append(np.exp(likely - likely.max()) / np.exp(likely - likely.max()).sum())
        best = tuple(int(steps[share.argmax()]) for steps, share in zip(rolls, shares, strict=True))
        answer = np.roll(board, best, (0, 1))
        moved[k, answer.ravel()] = np.arange(answer.size)
        if k == 0:
            alike = np.zeros(grid)
            for down, p in zip(rolls[0], shares[0], strict=True):
                for along, q in zip(rolls[1], shares[1], strict=True):
                    other = np.roll(board, (down, along), (0, 1))
                    alike += p * q * (kinds[other] == kinds[answer])
            sure[answer.ravel()] = np.minimum(alike.ravel(), 1.0)
    return moved, sure


def _ways(lines: Ints, scores: Floats, ground: Ints, kinds: Ints) -> tuple[list[int], Floats]:
    """How far a board can be rolled along its first axis over plain lines, and the log-likelihoods.

    Of the two seams between picture and ground the sharper one counts: a picture that ends sharply
    on one side may do so on the other, but one that runs into the ground somewhere should there.
    """
    size = len(lines)
    of = np.where((kinds[lines] == kinds[lines[:, :1]]).all(1), kinds[lines[:, 0]], -1)
    before = after = 0
    for kind in ground.tolist():
        other = np.flatnonzero(of != kind)
        if len(other) and kind in (of[0], of[-1]):
            before, after = int(other[0]), size - 1 - int(other[-1])
            break
    steps = list(range(-before, after + 1))
    likely = np.zeros(len(steps))
    for k, step in enumerate(steps):
        rolled = np.roll(lines, step, 0)
        first, last = before + step, size - (after - step)  # of the picture, and after it
        seams = [scores[rolled[at - 1], rolled[at]] for at in (first, last) if 0 < at < size]
        sharp = max((int((seam < SHARP).sum()) for seam in seams), default=0)
        likely[k] = -EDGE * sharp - AWAY * abs(first - (before + after) / 2)
    return steps, likely
