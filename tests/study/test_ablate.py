"""Plans are checked before anything runs; rows learn, fail, are skipped and go on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from puzlm.cli.main import app
from puzlm.errors import ImageError, SettingsError
from puzlm.images import write_image
from puzlm.study.ablate import chosen, main, options, read_rows, run_plan
from puzlm.study.plan import Plan, tokenizer_settings
from puzlm.study.timed import Draws
from puzlm.study.trial import Gallery, Kind
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.training.recipes import Recipe

ROOT = Path(__file__).parents[2]
PLAN = """
[plan]
steps = 3
puzzles = 64
few = 2
side_steps = 2
decode = ["valid", "head"]
[base.cut]
grid = 2
[base.tokenizer]
granularity = 2
vocab_size = 32
pca_dim = 8
piece_size = 16
max_cells = 4
[base.model]
size = "tiny"
d_model = 32
heads = 2
feed_forward = 64
encoder_layers = 1
decoder_layers = 1
[base.train]
batch = 8
warmup = 2
fit_puzzles = 64
[[kinds]]
name = "plain"
train = ["photos"]
val = ["photos"]
puzzles = 6
[[kinds]]
name = "worn"
train = ["photos"]
val = ["photos"]
gap = 0.5
puzzles = 4
"""
COMMANDS = {
    "python -m puzlm.study.ablate": main,
    "puzlm ablate": lambda arguments: app(["ablate", *arguments], standalone_mode=False),
}
ROW = '\n[[rows]]\nname = "{}"\n{}\n'


@pytest.fixture(scope="module")
def data(crops, tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for number, crop in enumerate(crops[:24]):
        write_image(root / "photos" / f"{number:02d}.png", crop)
    return root


def plan_file(folder, *rows):
    path = folder / "plan.toml"
    path.write_text(PLAN + "".join(ROW.format(name, text) for name, text in rows))
    return path


def run(path, folder, data, **more):
    return run_plan(path, folder, data=data, device="cpu", report=lambda text: None, **more)


def test_one_order_is_the_same_each_time_a_puzzle_is_drawn():
    recipe = Recipe.from_overrides(["train.batch=64", "cut.grid=3"])
    tokens = torch.zeros((20, 9, 12, 1), dtype=torch.int32)

    def orders(one_order):
        draws = Draws(tokens, PieceTokenizer(), recipe, "cpu", one_order)
        seen = {}
        for step in range(6):
            draws.turn(step)
            for row, cells in zip(draws.rows.tolist(), draws.cells.tolist(), strict=True):
                assert sorted(cells) == [*range(9)]
                seen.setdefault(row, set()).add(tuple(cells))
        return seen

    once = orders(True)
    assert len(once) == 20 and all(len(found) == 1 for found in once.values())
    assert len(set.union(*once.values())) == 20  # but each puzzle has its own
    assert all(len(found) > 5 for found in orders(False).values())


# ---- plans ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["study", "smoke", "regime"])
def test_the_plans_in_the_box_are_readable(name):
    plan = Plan.load(ROOT / "plans" / f"{name}.toml")
    for row in plan.rows:
        tokenizer_settings(row, plan.recipe(row, 0))


def test_the_study_has_every_row_of_the_paper():
    rows = {row.name: row for row in Plan.load(ROOT / "plans" / "study.toml").rows}
    for group, values in {
        "granularity": (1, 2, 3, 5, 6),
        "dimension": (16, 64, 512, 0),
        "vocabulary": (256, 1024, 8192, 16384),
    }.items():
        assert {f"{group}-{v}" for v in values} <= set(rows)
    assert {
        "no-border",
        "no-order",
        "raster",
        "no-separator",
        "vqvae-64",
        "titok-32",
        "titok-64",
        "titok-128",
        "backbones-128-t5",
        "backbones-256-pegasus",
        "backbones-256-encoder",
        "backbones-256-decoder",
        "no-heads",
        "side-start",
        "strips",
    } <= set(rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('set = ["tokenizer.granularty=3"]', "did you mean 'granularity'"),
        ('set = ["train.lr=fast"]', "lr = 'fast' must be of type float"),
        ('set = ["tokenizer.granularity=9"]', "granularity 9: must be 1 to 8"),
        ("seed = [1]", "did you mean 'seeds'"),
        ('puzzles = "many"', "puzzles = 'many' must be of type int"),
        ("puzzles = 0.5", "puzzles = 0.5 must be of type int"),
        ("seconds = -1", "seconds -1: must be a number from 0 on"),
        ("seconds = nan", "seconds nan: must be a number from 0 on"),
        ("seeds = [0, 0]", "seeds .0, 0.: must be from 0 on, each once"),
        ("seeds = [-1]", "seeds .-1.: must be from 0 on, each once"),
        ("seeds = 1", "seeds = 1 must be a list of type int"),
        ('seeds = ["a"]', "must be a list of type int"),
        ('learned = "x"', "learned = 'x' must be of type dict"),
        ('start = "side"', "did you mean 'sides'"),
        ('decode = ["head"]\nset = ["train.heads=0"]', "decode 'head' needs train.heads above 0"),
        ('decode = ["veiws-2"]', "did you mean 'views-2'"),
        ('learned = { kind = "vqvea" }', "did you mean 'vqvae'"),
        ('learned = { kind = "vqvae", tokns = 64 }', "did you mean 'tokens'"),
        ('learned = { kind = "vqvae", tokens = 10 }', "has 64"),
        ('set = ["model.backbone=brat"]', "row 'odd': backbone 'brat' .* did you mean 'bart'"),
        ('set = ["model.size=smal"]', "row 'odd': model size 'smal' .* did you mean 'small'"),
        ('set = ["model.d_model=33"]', "d_model 33: must be a multiple of 2"),
        (
            'set = ["model.backbone=lstm", "model.d_model=33"]',
            "d_model 33: must be a multiple of 2",
        ),
        ('set = ["model.dropout=2.0"]', "dropout 2.0: must be below 1"),
        ('set = ["model.encoder_layers=-1"]', "encoder_layers -1: must be at least 1"),
        ('set = ["cut.grid=3"]', "row 'odd': tokenizer.max_cells must be at least 9 for 3"),
        ('set = ["cut.grid=0"]', "row 'odd': grid 0x0"),
        ('[[rows]]\nname = "odd"', "two rows of this name"),
        ('[[rows]]\nname = "../a"', "row '../a': a name is printable text without /"),
        ('[[rows]]\nname = "a\\nb"', r"row 'a\\nb': a name is printable text"),
        ('[[rows]]\nname = ""', "row '': a name is printable text .* not empty"),
        ('[[rows]]\ngroup = "a"', "rows.. number 2: name is missing"),
        ('[[sweeps]]\ngroup = "a"\nvalues = [1]', "sweeps.. number 1: key is missing"),
        ("[bass]", "unknown key 'bass'"),
    ],
)
def test_mistakes_in_a_plan_are_named_before_anything_runs(text, message, tmp_path):
    with pytest.raises(SettingsError, match=message) as caught:
        Plan.load(plan_file(tmp_path, ("odd", text)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 3", "seconds = -1", "plan.: seconds -1: must be a number above 0"),
        ("steps = 3", "seconds = inf", "seconds inf: must be a number above 0"),
        ("steps = 3", "steps = -3", "steps -3: must be a number from 0 on"),
        ("steps = 3", "seeds = []", "seeds = ..: needs at least one"),
        ("steps = 3", "seeds = [1, 1]", "seeds .1, 1.: must be from 0 on, each once"),
        ("puzzles = 64", "puzzles = 0", "plan.: puzzles 0: must be a number from 1 on"),
        ("few = 2", "few = 0", "few 0: must be a number from 1 on"),
        ("side_steps = 2", "side_steps = 0", "side_steps 0: must be a number from 1 on"),
        ('decode = ["valid", "head"]', "decode = []", "decode = ..: needs at least one"),
        ('decode = ["valid", "head"]', 'decode = ["vlaid"]', "plan.: .* did you mean 'valid'"),
        ('name = "worn"', 'name = "plain"', "kind 'plain': there are two kinds of this name"),
        ('name = "worn"\n', "", "kinds.. number 2: name is missing"),
        ('train = ["photos"]', "train = []", "kind 'plain': name, train and val must not be"),
        ("gap = 0.5", "gap = -0.5", "kind 'worn': gap -0.5: a fraction of the piece"),
        ("gap = 0.5", "gap = 1.5", "kind 'worn': gap 1.5: a fraction of the piece"),
        ("puzzles = 4", "puzzles = 0", "kind 'worn': puzzles 0: must be a number from 1 on"),
        ("puzzles = 4", "limit = -1", "kind 'worn': limit -1: must be a number from 0 on"),
    ],
)
def test_mistakes_in_what_rows_share_are_named_too(old, new, message, tmp_path):
    path = plan_file(tmp_path, ("a", ""))
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(SettingsError, match=message):
        Plan.load(path)


def test_a_sweep_over_folders_makes_names_without_slashes(tmp_path):
    path = plan_file(tmp_path)
    sweep = '[[sweeps]]\ngroup = "from"\nkey = "train.start"\nvalues = ["models/a", "models/b"]\n'
    path.write_text(path.read_text() + sweep)
    plan = Plan.load(path)
    assert [row.name for row in plan.rows] == ["from-models-a", "from-models-b"]
    assert plan.recipe(plan.rows[1], 0).train.start == "models/b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows = 3", "'rows' are tables: write"),
        ('sweeps = ["x"]', "'sweeps' are tables"),
        ("base = 3", "'base' is a section"),
        ('[[sweeps]]\ngroup = "g"\nkey = "train.lr"\nvalues = 3', "values = 3 must be a list"),
        ('[plan]\nseconds = "x"', "seconds = 'x' must be of type float"),
    ],
)
def test_a_plan_of_another_shape_is_refused(text, message, tmp_path):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        Plan.load(tmp_path / "plan.toml")


def test_only_takes_names_groups_and_patterns(tmp_path):
    plan = Plan.load(plan_file(tmp_path, ("a-1", 'group = "g"'), ("a-2", 'group = "h"'), ("b", "")))
    assert [r.name for r in chosen(plan, ["a-*"])] == ["a-1", "a-2"]
    assert [r.name for r in chosen(plan, ["h", "b"])] == ["a-2", "b"]
    assert [r.name for r in chosen(plan, ["b", "a-*", "*"])] == ["b", "a-1", "a-2"]  # in that order
    assert len(chosen(plan, [])) == 3
    with pytest.raises(SettingsError, match="--only a-3: no such row; did you mean 'a-"):
        chosen(plan, ["a-3"])


def test_command_prints_one_line_for_a_mistake(tmp_path, capsys):
    assert main([str(tmp_path / "none.toml")]) == 2
    assert "no such plan" in capsys.readouterr().err
    path = plan_file(tmp_path, ("a", ""), ("odd", 'set = ["model.backbone=brat"]'))
    assert main([str(path), "-o", str(tmp_path / "o")]) == 2
    told = capsys.readouterr().err
    assert "row 'odd': backbone 'brat'" in told and told.count("\n") == 1
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_both_commands_take_rows_and_device(command, data, tmp_path):
    path = plan_file(tmp_path, ("a", ""), ("b", ""), ("c", ""))
    arguments = [str(path), "-o", str(tmp_path / "o"), "--data", str(data), "--device", "cpu"]
    assert COMMANDS[command]([*arguments, "--only", "c", "--only", "a"]) == 0
    assert [x["name"] for x in read_rows(tmp_path / "o" / "rows.jsonl")] == ["c", "a"]
    assert COMMANDS[command]([*arguments, "--stop-after", "0"]) == 0  # no row would end in time
    assert len(read_rows(tmp_path / "o" / "rows.jsonl")) == 2


def test_both_commands_have_options_of_the_same_names():
    from typer.main import get_command

    ours = {name for one in get_command(app).commands["ablate"].params for name in one.opts}
    theirs = {name for one in options()._actions for name in one.option_strings or [one.dest]}
    assert ours - {"--json"} == theirs - {"-h", "--help"}


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "--device gpu: must be cpu, cuda"),
        pytest.param(
            "cuda",
            "--device cuda: there is no such GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
def test_a_device_that_is_not_there_is_named(device, message, data, tmp_path):
    path = plan_file(tmp_path, ("a", ""))
    with pytest.raises(SettingsError, match=message):
        run_plan(path, tmp_path / "o", data=data, device=device, report=lambda text: None)
    assert not (tmp_path / "o").exists()


# ---- rows -----------------------------------------------------------------------------------


def test_rows_run_fail_and_are_skipped(data, tmp_path):
    """One line a run with every fact; a failed row does not stop the others, and is tried again."""
    path = plan_file(
        tmp_path,
        ("base", 'seeds = [0, 1]\nkeep = true\ndecode = ["valid", "head", "views-2", "fusion"]'),
        ("broken", 'set = ["tokenizer.vocab_size=30000"]'),
        ("no-heads", 'set = ["train.heads=0", "train.average=0.9", "tokenizer.separator=false"]'),
        ("one-stack", 'set = ["model.backbone=decoder"]'),
        ("sides", 'start = "sides"'),
    )
    lines = {(x["name"], x["seed"]): x for x in run(path, tmp_path / "out", data)}
    assert list(lines) == [
        ("base", 0),
        ("broken", 0),
        ("no-heads", 0),
        ("one-stack", 0),
        ("sides", 0),
        ("base", 1),
    ]
    base = lines["base", 0]
    assert base["status"] == "done" and base["device"] == "CPU"
    assert (base["steps"], base["puzzles_seen"]) == (3, 24)
    assert set(base["results"]["plain"]) == {"valid", "head", "views-2", "fusion"}
    score = base["results"]["plain"]["valid"]
    assert score["puzzles"] == 6 and base["results"]["worn"]["valid"]["puzzles"] == 4
    assert base["results"]["plain"]["views-2"]["puzzles"] == 2
    assert len(score["right"]) == 6 and 100 * sum(score["right"]) / 24 == pytest.approx(
        score["absolute"]["value"], abs=0.01
    )
    assert score["absolute"]["low"] <= score["absolute"]["value"] <= score["absolute"]["high"]
    assert base["parameters"] > 0 and base["tokenise_ms"] > 0 and base["seconds"] > 0
    assert base["settings"]["recipe"]["tokenizer"]["vocab_size"] == 32
    assert "head" not in lines["no-heads", 0]["results"]["plain"]
    assert lines["broken", 0]["status"] == "failed"
    assert "vocab_size k = 30000 is larger" in lines["broken", 0]["error"]
    kept = tmp_path / "out" / "models" / "base-0"
    from puzlm.study.analyze import read_embeddings

    tables = read_embeddings(kept, PieceTokenizer.from_pretrained(kept), 0)
    assert np.abs(tables["learned"]).max() > 0

    said: list[str] = []
    again = run_plan(path, tmp_path / "out", data=data, device="cpu", report=said.append)
    assert said[0] == "6 runs, 5 done already"  # the failed one is tried again
    assert [x for x in again if x["status"] == "done"] == [
        x for x in lines.values() if x["status"] == "done"
    ]
    assert len(read_rows(tmp_path / "out" / "rows.jsonl")) == 6
    assert len((tmp_path / "out" / "rows.jsonl").read_text().splitlines()) == 7


@pytest.mark.parametrize("command", COMMANDS)
def test_failed_rows_are_counted_at_the_end(command, data, tmp_path, capsys):
    """After all others, with exit code 1; also when they failed in an earlier part."""
    path = plan_file(
        tmp_path, ("a", ""), ("broken", 'set = ["tokenizer.vocab_size=30000"]'), ("b", "")
    )
    arguments = [str(path), "-o", str(tmp_path / "o"), "--data", str(data)]
    told = "puzlm: 1 of 3 runs failed: broken (seed 0)\n"
    for _ in range(2):
        assert COMMANDS[command](arguments) == 1
        assert capsys.readouterr().err == told
    assert [x["status"] for x in read_rows(tmp_path / "o" / "rows.jsonl")].count("done") == 2
    assert COMMANDS[command]([*arguments, "--only", "a"]) == 0
    assert capsys.readouterr().err == ""


def test_changed_settings_are_run_again_and_time_is_kept(data, tmp_path):
    path = plan_file(tmp_path, ("a", ""))
    path.write_text(path.read_text().replace("steps = 3", "seconds = 0.3"))
    first = run(path, tmp_path, data)[0]
    assert first["steps"] >= 1 and first["seconds"] >= 0.3
    assert run(path, tmp_path, data)[0] == first
    other = run(path, tmp_path, data, seconds=0.2)[0]
    assert other["settings"]["seconds"] == 0.2 and other != first
    assert run(path, tmp_path / "none", data, stop_after=0.1) == []  # no row would end in time


def test_a_row_may_have_more_puzzles(data, tmp_path):
    """A library of its own, so what it learns is other than the same row with the plan's."""
    path = plan_file(tmp_path, ("a", ""), ("more", "puzzles = 256"))
    plain, more = run(path, tmp_path, data)
    assert (plain["settings"]["puzzles"], more["settings"]["puzzles"]) == (64, 256)
    assert plain["loss"] != more["loss"]


def test_the_same_seed_gives_the_same_row(data, tmp_path):
    path = plan_file(tmp_path, ("a", 'set = ["model.dropout=0.1"]'))
    one, two = (run(path, tmp_path / str(i), data)[0] for i in range(2))
    assert (
        one["loss"] == two["loss"]
        and one["results"]["plain"]["valid"]["absolute"]
        == (two["results"]["plain"]["valid"]["absolute"])
    )


def test_a_row_learns(data, tmp_path):
    """Enough steps on 24 pictures, and their own puzzles are solved."""
    path = plan_file(tmp_path, ("long", 'set = ["tokenizer.patch=strip:4"]'))
    text = path.read_text()
    for old, new in {
        "steps = 3": "steps = 250",
        "puzzles = 6\n": "puzzles = 24\n",
        "grid = 2": "grid = 2\nmin_crop = 1.0\nstretch = 0.0\nflip = false",
        "puzzles = 64": "puzzles = 256",
        "batch = 8": "batch = 32\nlr = 3e-3",
        "warmup = 2": "warmup = 20",
        "d_model = 32": "d_model = 64",
    }.items():
        text = text.replace(old, new)
    path.write_text(text)
    line = run(path, tmp_path, data)[0]
    assert line["teacher_forced"] > 80
    assert line["results"]["plain"]["valid"]["perfect"]["value"] > 30  # chance is 4
    assert line["results"]["plain"]["head"]["absolute"]["value"] > 45  # chance is 25


def test_runs_without_the_packages_of_the_command(data, tmp_path):
    """The machine that trains has torch, transformers, numpy, Pillow and scipy, nothing else."""
    path = plan_file(tmp_path, ("a", 'decode = ["valid", "fusion"]'))
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'matplotlib', 'sklearn', 'fastapi', 'onnxruntime'):\n"
        "    sys.modules[name] = None\n"
        "from puzlm.study.ablate import main\n"
        f"sys.exit(main([{str(path)!r}, '-o', {str(tmp_path / 'o')!r}, '--data', {str(data)!r},"
        " '--device', 'cpu']))\n"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert made.returncode == 0, made.stderr
    assert json.loads((tmp_path / "o" / "rows.jsonl").read_text())["status"] == "done"


def test_other_images_make_another_album(crops, tmp_path):
    for name in ("a", "b"):
        write_image(tmp_path / "in" / "deep" / f"{name}.png", crops[0])
    kinds = [Kind("plain", ("in",), ("in",))]
    first = Gallery(kinds, tmp_path, "cpu")
    again = Gallery(kinds, tmp_path, "cpu")
    assert torch.equal(first.albums[0].pixels, again.albums[0].pixels)
    assert first.contents() == again.contents()
    write_image(tmp_path / "in" / "deep" / "b.png", crops[1])
    other = Gallery(kinds, tmp_path, "cpu")
    assert not torch.equal(other.albums[0].pixels, first.albums[0].pixels)
    assert other.contents() != first.contents()
    with pytest.raises(ImageError, match="typo.tar: no such file"):
        Gallery([Kind("plain", ("in", "typo.tar"), ("in",))], tmp_path, "cpu")
