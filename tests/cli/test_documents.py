"""`puzlm solve` of shredded pages: found by itself, names tell nothing, nothing is left behind."""

import json

import numpy as np
import pytest
from drawn_pages import cut_page, draw_page
from typer.testing import CliRunner

from puzlm.cli.main import app
from puzlm.errors import PuzlmError
from puzlm.images import read_image, write_image


@pytest.fixture
def heap(tmp_path):
    """Strips of a page whose names tell a wrong order; the true numbers by name."""
    strips = cut_page(draw_page(7), 14)
    truth = {}
    for number, at in enumerate(np.random.default_rng(3).permutation(14)):
        write_image(tmp_path / "heap" / f"strip{number:02d}.png", strips[at].pixels)
        truth[f"strip{number:02d}.png"] = int(at)
    return tmp_path / "heap", truth


def run(*words):
    result = CliRunner().invoke(app, [*map(str, words)])
    if isinstance(result.exception, PuzlmError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_strips_are_known_and_put_together_whatever_their_names(heap, tmp_path):
    folder, truth = heap
    told = json.loads(run("solve", folder, "-o", tmp_path / "page.png", "--json"))
    (page,) = told["pages"]
    order = [truth[name] for name in page["strips"]]
    assert told["kind"] == "page" and order == sorted(order)
    assert {*page["strips"], *told["blank"]} == set(truth)
    assert read_image(tmp_path / "page.png").shape[0] == 825


def test_nothing_is_written_but_the_page(heap, tmp_path, monkeypatch):
    folder, _ = heap
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path / "HOME")
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    text = run("solve", folder, "-o", tmp_path / "out" / "page.pdf")
    after = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert set(after) - set(before) == {tmp_path / "out", tmp_path / "out" / "page.pdf"}
    assert {p: t for p, t in after.items() if p in before and p != tmp_path} == {
        p: t for p, t in before.items() if p != tmp_path
    }
    assert (tmp_path / "out" / "page.pdf").read_bytes().startswith(b"%PDF")
    assert "page 1: " in text


def test_blank_paper_alone_is_one_clear_line(tmp_path):
    for k in range(3):
        write_image(tmp_path / "heap" / f"{k}.png", np.full((300, 30 + k, 3), 250, np.uint8))
    with pytest.raises(PuzlmError, match="all strips are blank"):
        run("solve", tmp_path / "heap", "--kind", "page", "-o", tmp_path / "page.png")
    assert not (tmp_path / "page.png").exists()


def test_an_unknown_kind_is_refused(heap):
    with pytest.raises(PuzlmError, match="--kind book"):
        run("solve", heap[0], "--kind", "book")
