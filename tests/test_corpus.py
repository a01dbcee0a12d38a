"""Albums, and puzzles cut from them on the device."""

from __future__ import annotations

import numpy as np
import torch

from puzlm.corpus import Album, CutSettings, cut_batch, draw_batch, neighbour_slots
from puzlm.puzzle import cut
from puzlm.tokenizer import PieceTokenizer


def test_device_cut_is_the_tokenizers_cut(crops):
    """Cutting and resizing in one go gives what cutting, then resizing gives."""
    album = Album.of(crops[:8])
    settings = CutSettings(gap_share=0.7, jitter=0.5, flip=False, min_crop=0.6)
    draw = draw_batch(album.sizes.numpy(), 12, settings, (0, 5))
    parts = [torch.from_numpy(np.ascontiguousarray(a)) for a in vars(draw).values()]
    tokenizer = PieceTokenizer(piece_size=40)
    cut_pieces = cut_batch(album, *parts[:-1], side=40).numpy()
    packed = album.with_words(part=1000)
    assert np.array_equal(cut_batch(packed, *parts[:-1], side=40).numpy(), cut_pieces)
    for i in range(12):
        for cell in range(9):
            (top, left), (height, width) = draw.corner[i, cell], draw.piece[i]
            piece = crops[draw.image[i]][top : top + height, left : left + width]
            want = tokenizer.canonical(piece[None])[0]
            assert np.abs(want - cut_pieces[i, cell]).max() <= 1  # rounding of ties


def test_flipped_puzzles_are_puzzles_of_the_mirrored_image(crops):
    settings = CutSettings(min_crop=1.0, stretch=0.0)
    square = [c[:96, :96] for c in crops[:4]]
    draw = draw_batch(np.full((4, 2), 96), 16, settings, (3, 3))
    assert draw.flip.any() and not draw.flip.all()
    parts = [torch.from_numpy(np.ascontiguousarray(a)) for a in vars(draw).values()]
    pieces = cut_batch(Album.of(square), *parts[:-1], side=32).numpy()
    for i in range(16):
        image = square[draw.image[i]]
        assert np.array_equal(pieces[i], cut(image[:, ::-1] if draw.flip[i] else image, (3, 3)))


def test_neighbour_slots_by_hand():
    order = torch.tensor([[3, 0, 2, 1]])  # slot 0 holds cell 3, ...
    present = torch.tensor([[True, True, True, False]])  # the piece of cell 3 is missing
    right, below = neighbour_slots(order, present, (2, 2))
    assert right.tolist() == [[4, 3, 4, 4]]  # cell 0 -> cell 1 is slot 3; 2 -> 3 is missing
    assert below.tolist() == [[4, 2, 4, 4]]  # cell 0 -> cell 2 is slot 2
