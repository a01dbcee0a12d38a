"""Results on original files: the page follows from them, and what a codec gives away is refused."""

import json
from pathlib import Path

import pytest

from puzlm.errors import PuzlmError
from puzlm.harness.compare import compare, recompressed
from puzlm.harness.protocols import PROTOCOLS
from tools import make_clean

RESULTS = Path(__file__).parents[2] / "results"
LEAKING = [name for name, protocol in PROTOCOLS.items() if protocol.leaks]


@pytest.fixture(scope="module")
def rows():
    return make_clean.load()


def test_the_page_follows_from_the_files():
    text = (RESULTS.parent / "docs" / "results.md").read_text()
    assert make_clean.page(text) == text and "| `imagenet-lsej-10x10-5` |" in text


def test_protocols_that_leak_are_marked_and_no_others(rows):
    """A protocol leaks if any solver gains by compression before the cut."""
    found = {(r.protocol, r.images, r.solver, r.codec): r.result for r in rows}
    gains = {}
    for (protocol, images, solver, codec), result in found.items():
        if codec == "picture":
            paired = make_clean.gain(found[protocol, images, solver, ""], result)
            gains[protocol] = gains.get(protocol, False) or make_clean.leaks(paired)
    assert {name for name, leaks in gains.items() if leaks} == set(LEAKING)


def test_rows_come_from_originals_and_say_so(rows):
    for row in rows:
        data = row.result["data"]
        assert (
            sum(data["stored"].values()) == row.result["puzzles"] and "WEBP" not in data["stored"]
        )
        if PROTOCOLS[row.protocol].resize:
            assert row.result["protocol"]["filter"] == "area"
        assert row.result["protocol"].get("codec", "") == row.codec
        assert not recompressed(row.result)


def test_no_published_row_of_a_leaking_protocol_is_recompressed():
    for path in RESULTS.glob("*.json"):
        record = json.loads(path.read_text())
        assert not recompressed(record), path.name


@pytest.mark.parametrize("stored", [None, {"WEBP": 24}, {"JPEG": 23, "WEBP": 1}])
def test_results_of_recompressed_images_are_refused(tmp_path, rows, stored):
    row = next(r for r in rows if r.protocol in LEAKING and not r.codec)
    path = tmp_path / "originals.json"
    path.write_text(json.dumps(row.result))
    assert compare([path]).rows[0][0] == row.solver
    data = {**row.result["data"], "stored": stored}
    path.write_text(json.dumps({**row.result, "data": data}))
    with pytest.raises(PuzlmError, match="compressed again before cutting"):
        compare([path])
    harmless = {**row.result, "data": data, "protocol": {"name": "imagenet-3x3"}}
    path.write_text(json.dumps(harmless))
    assert compare([path]).rows


def test_make_clean_pairs_the_same_puzzles(rows):
    paired = make_clean.gain(
        *[
            next(
                r.result
                for r in rows
                if (r.protocol, r.codec) == ("imagenet-lsej-10x10-5", codec)
                and r.solver == "auto-before"
            )
            for codec in ("", "picture")
        ]
    )
    assert paired.puzzles >= 24 and make_clean.leaks(paired)
    swapped = make_clean.gain(*[rows[0].result] * 2)
    assert not make_clean.leaks(swapped)
