"""Small real images for every test: the two photographs in the box."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from puzlm.images import Pixels, read_image, write_image
from puzlm.tokenizer import PieceTokenizer

torch.set_num_threads(1)  # two threads on two busy cores wait for each other most of the time

SAMPLES = Path(__file__).parents[1] / "puzlm" / "samples"


@pytest.fixture(scope="session")
def photo() -> Pixels:
    return read_image(SAMPLES / "china.jpg")


@pytest.fixture(scope="session")
def crops(photo: Pixels) -> list[Pixels]:
    """96 different square crops of the two photographs, 96 to 240 px a side."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(96):
        image = photo if number % 2 else read_image(SAMPLES / "flower.jpg")
        side = int(rng.integers(96, 241))
        top, left = (int(rng.integers(0, s - side)) for s in image.shape[:2])
        made.append(image[top : top + side, left : left + side])
    return made


@pytest.fixture(scope="session")
def tokenizer(crops: list[Pixels]) -> PieceTokenizer:
    """A small tokenizer of the paper's kind."""
    return PieceTokenizer(vocab_size=64, pca_dim=16, piece_size=32, max_cells=9).fit(
        crops, max_iter=8
    )


@pytest.fixture(scope="session")
def folder(crops: list[Pixels], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 32 small images, all of one photograph."""
    path = tmp_path_factory.mktemp("images")
    for number, crop in enumerate(crops[1:64:2]):
        write_image(path / f"{number:02d}.png", crop)
    return path
