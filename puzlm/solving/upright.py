"""Which way up: turn a picture put together from turned pieces so that it looks upright to the ViT.

Borders fit in every turn of the whole picture, so pixels cannot tell which way up it is. The ViT
has seen upright pictures only, but of pieces that touch it too sees that they fit. So it is shown
the middle of every ninth, too far apart to fit: then it must go by what lies where in pictures.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from puzlm.images import Pixels
from puzlm.puzzle import cut
from puzlm.solution import Floats, Solution

NINTHS = "3x3"  # the grid in which any picture is shown: the ViT has an output for few others
LEAST = 12  # pixels of a picture's side, of which the ViT sees half; smaller ones show nothing
# Fitted to 200 validation pictures by docs/upright_val.py: docs/runs/upright-val.txt.
TEMPERATURE = 8.7


def eyes(solver: Any) -> Any:
    """The ViT of a solver that may say which way up; None without one, or nothing to run it."""
    if solver.solver != "auto":
        return None
    try:
        seen = solver.vision
    except ImportError:  # classic joins pieces without torch and onnxruntime
        return None
    return seen if seen is not None and NINTHS in seen.settings.grids else None


def learned_edges(solver: Any) -> Any:
    """The encoder of sides that may help to join turned pieces; None without one."""
    if solver.solver != "auto":
        return None
    try:
        return solver.edges
    except ImportError:
        return None


def settled(found: Solution, given: Collection[int], vision: Any) -> Solution:
    """Turn an answer with turned pieces upright; its confidences count whether that is right.

    A given piece has fixed the turn. Without a ViT the answer stays as it lies: one of the two or,
    if the grid is square, four turns that are all as likely.
    """
    if not found.turns or len(given):
        return found
    start = time.perf_counter()
    rows, columns = found.grid
    turns = range(0, 4, 1 if rows == columns else 2)
    picture = found.array
    if vision is None or min(picture.shape[:2]) < LEAST:
        share, how = np.full(len(turns), 1 / len(turns)), "which way up is not known"
    else:
        share, how = chances(vision, picture, turns), "set upright by vision"
    best = int(share.argmax())
    cells = np.rot90(np.arange(rows * columns).reshape(rows, columns), turns[best]).ravel()
    place = np.append(np.argsort(cells), -1)  # the cell that each cell goes to; -1 stays
    return replace(
        found,
        positions=place[found.positions],
        confidences=found.confidences * share[best],
        turns=tuple((turn + turns[best]) % 4 for turn in found.turns),
        upright=float(share[best]),
        used=replace(found.used, note=how),
        seconds=found.seconds + time.perf_counter() - start,
    )


def chances(vision: Any, picture: Pixels, turns: Sequence[int]) -> Floats:
    """Probability of each number of quarter turns counter-clockwise to set a picture upright."""
    told = scores(vision, picture, turns) / TEMPERATURE
    share: Floats = np.exp(told - np.logaddexp.reduce(told))
    return share


def scores(vision: Any, picture: Pixels, turns: Sequence[int]) -> Floats:
    """How upright a picture looks to the ViT after so many quarter turns: (turns,).

    By how much log p(each ninth where it lies) is above the mean over the four turns of that
    arrangement, with the pieces as they are: a plain picture is hard in any turn. Two looks, one of
    the mirror image, which is as upright, make a better score than one.
    """
    looks = []
    for turn in turns:
        whole = np.rot90(picture, turn)
        for look in (whole, whole[:, ::-1]):
            pieces = cut(np.ascontiguousarray(look), (3, 3))
            down, across = (size // 4 for size in pieces.shape[1:3])
            looks.append(pieces[:, down : -down or None, across : -across or None])
    said = vision.read(looks, NINTHS)[0]
    ninths = np.arange(9).reshape(3, 3)
    fits = np.stack([said[:, ninths.ravel(), np.rot90(ninths, k).ravel()] for k in range(4)])
    fits = fits.sum(-1)
    told: Floats = (fits[0] - fits.mean(0)).reshape(len(turns), 2).sum(1)
    return told
