"""Small real images for every test: the two photographs in the box."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from puzlm.cli import main as cli
from puzlm.images import Pixels, read_image, write_image
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer

try:
    import torch
except ImportError:  # the tests of the lowest versions run as solving does: without it
    pass
else:
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


@pytest.fixture
def run(capfd, monkeypatch):
    """Run the command here; gives exit code, stdout and stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["puzlm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err

    return call


@pytest.fixture
def refused(run):
    """Run the command, which must end with one line on stderr and exit code 2; gives the line."""

    def call(*arguments):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "") and err.count("\n") == 1 and err.startswith("puzlm: "), err
        return err

    return call


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand in an empty folder; its module my_own is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_own", None)
