"""Generalisation matrix and costs: the same puzzles for all, gaps that mean gaps, resuming."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from typer.testing import CliRunner

from bench import costs
from puzlm.errors import SettingsError
from puzlm.harness import figures
from puzlm.harness.generalise import GAPS, Source, erode, generalise, parse_kinds, split_name
from puzlm.images import read_image
from puzlm.models import pretrained as checkpoints
from puzlm.puzzle import assemble, cut


@pytest.fixture(scope="module")
def kinds(tmp_path_factory, crops):
    """Photos in a folder, and the same ones as ready-made puzzles: test.csv and test/*.png."""
    root = tmp_path_factory.mktemp("kinds")
    (root / "photos").mkdir()
    (root / "made" / "test").mkdir(parents=True)
    lines = [",image,label"]
    for number, crop in enumerate(crops[:6]):
        crop = np.asarray(Image.fromarray(crop).resize((90, 90)))
        Image.fromarray(crop).save(root / "photos" / f"{number}.png")
        order = np.random.default_rng(number).permutation(9)
        shuffled = assemble(cut(crop, (3, 3))[order], np.arange(9), (3, 3))
        Image.fromarray(shuffled).save(root / "made" / "test" / f"{number}.png")
        lines.append(f"{number},{number}.png,{' '.join(map(str, order))}")
    (root / "made" / "test.csv").write_text("\n".join(lines) + "\n")
    return {"photos": root / "photos", "ready-made": root / "made"}


@pytest.mark.parametrize("gap", GAPS)
def test_eroded_pieces_are_those_of_a_cut_with_gaps(photo, gap):
    image = photo[:201, :201]
    assert np.array_equal(erode(cut(image, (3, 3)), gap), cut(image, (3, 3), gap))


def test_ready_made_puzzles_keep_their_truth(kinds):
    made, photos = Source(kinds["ready-made"], 6), Source(kinds["photos"], 6)
    for grid in ((3, 3), (5, 5)):
        for gap in (0.0, 0.25):
            for (_, a), (_, b) in zip(made.cut(grid, gap), photos.cut(grid, gap), strict=True):
                # Other permutations, but put together by the truth the same picture.
                assert np.array_equal(
                    assemble(a.pieces, a.truth, grid), assemble(b.pieces, b.truth, grid)
                )


def test_matrix_is_written_resumed_and_extended(kinds, tmp_path):
    output, said = tmp_path / "deep" / "matrix.json", []
    settings = {"gaps": (0.0, 0.5), "limit": 4, "report": said.append}
    made = generalise(["random", "classic"], kinds, output, **settings)
    stored = json.loads(output.read_text())
    assert len(stored["cells"]) == len(said) == 2 * 2 * 2 and stored["cells"] == made["cells"]
    by = {(c["solver"], c["kind"], c["gap"]): c for c in stored["cells"]}
    for kind in kinds:
        fine, worn = (by["classic", kind, gap] for gap in (0.0, 0.5))
        assert fine["absolute"]["value"] == 100 > by["random", kind, 0.0]["absolute"]["value"]
        assert fine["right"] == [9, 9, 9, 9] and worn["piece"] == [20, 20]
        assert by["random", kind, 0.5]["fingerprint"] == worn["fingerprint"] != fine["fingerprint"]
    # What was measured stays: a number put there by hand would otherwise be gone.
    stored["cells"][1]["absolute"]["value"] = 12.5
    output.write_text(json.dumps(stored))
    again = generalise(["classic"], kinds, output, **settings)
    assert again["cells"][0]["absolute"]["value"] == 12.5 and len(again["cells"]) == 4
    assert len(json.loads(output.read_text())["cells"]) == 8  # the other solver's are still there
    fresh = generalise(["classic"], kinds, output, **{**settings, "limit": 5})
    assert fresh["cells"][0]["puzzles"] == 5 and fresh["cells"][0]["absolute"]["value"] == 100


def test_a_solver_that_does_not_take_a_grid_is_left_out(kinds, tmp_path):
    made = generalise(
        ["classic", "seq2seq@puzlm-3x3"],
        {"photos": kinds["photos"]},
        tmp_path / "m.json",
        grids=["4"],
        gaps=[0.0],
        limit=2,
        report=lambda line: None,
    )
    assert [c["solver"] for c in made["cells"]] == ["classic"]
    assert "4x4" in made["refused"]["seq2seq@puzlm-3x3, 4x4"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"gaps": [1.0]}, "gap 1.0"),
        ({"limit": 0}, "limit 0"),
        ({"solvers": []}, "no solver"),
        ({"solvers": ["auto@"]}, "NAME@MODEL"),
        ({"output": "foreign.json"}, "not a file of"),
    ],
)
def test_bad_settings_are_named(kinds, tmp_path, change, text):
    (tmp_path / "foreign.json").write_text('{"cells": [{"a": 1}]}')
    settings = {"solvers": ["classic"], "kinds": kinds, "output": "m.json", **change}
    settings["output"] = tmp_path / settings["output"]
    with pytest.raises(SettingsError, match=text):
        generalise(**settings)


def test_kinds_and_names_are_read():
    assert parse_kinds(["a=b/c.tar", "d=e=f"]) == {"a": Path("b/c.tar"), "d": Path("e=f")}
    for wrong in (["photos"], ["=x"], ["a="], ["a=b", "a=c"], []):
        with pytest.raises(SettingsError):
            parse_kinds(wrong)
    assert split_name("classic") == ("classic", None)
    assert split_name("auto@models/mine") == ("auto", "models/mine")


def test_command_writes_matrix_and_figure(kinds, tmp_path):
    from puzlm.cli.main import app

    words = [
        "generalise",
        "--kind",
        f"photos={kinds['photos']}",
        "--solver",
        "classic",
        "--solver",
        "random",
        "--limit",
        "1",
        "--grid",
        "2",
        "--grid",
        "3",
        "-o",
        str(tmp_path / "m.json"),
        "--figure",
        str(tmp_path / "m.png"),
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "photos, gap 0.5, classic, 3x3: " in done.output
    both = read_image(tmp_path / "m.png").shape
    record = json.loads((tmp_path / "m.json").read_text())
    record["cells"] = [c for c in record["cells"] if c["grid"] == "3x3"]
    figures.generalisation(record, tmp_path / "one.png")
    assert read_image(tmp_path / "one.png").shape[0] < both[0]  # a grid less is a row less


def test_costs_are_measured_beside_classic(tmp_path):
    grids, output = ((2, 2), (3, 4)), tmp_path / "costs.json"
    made = costs.measure(
        ["random", "seq2seq@puzlm-3x3"], output, grids=grids, seconds=0.5, report=lambda line: None
    )
    assert json.loads(output.read_text()) == made
    solvers = made["solvers"]
    assert list(solvers) == ["classic", "random", "seq2seq@puzlm-3x3"]
    assert solvers["seq2seq@puzlm-3x3"]["sizes"] == {}
    assert "3x4" in solvers["seq2seq@puzlm-3x3"]["refused"]
    for found in (solvers["classic"], solvers["random"]):
        assert [s["pieces"] for s in found["sizes"].values()] == [4, 12]
        assert all(s["peak_mb"] > 10 and s["cold_seconds"] > 0 for s in found["sizes"].values())
    assert all(s["against_classic"]["median"] == 1 for s in solvers["classic"]["sizes"].values())
    figures.time_against_pieces(made, tmp_path / "costs.png")
    assert read_image(tmp_path / "costs.png").shape[1] > 300


def test_weights_are_counted_as_they_are():
    folder = checkpoints.find("puzlm-3x3")
    for name in ("tokenizer", "sides"):
        path = folder / f"{name}.safetensors"
        assert costs.parameters(path) == sum(a.size for a in load_file(path).values())
    both = costs.weights("bigram", "puzlm-3x3")["parameters"]
    assert costs.weights("auto", "puzlm-3x3")["parameters"] > 10 * both > 0
    assert costs.weights("classic", None) == {"parameters": 0, "megabytes": 0.0}
