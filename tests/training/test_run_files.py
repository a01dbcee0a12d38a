"""A run whose files were cut, damaged, or belong to other settings, and one whose disk is full."""

from __future__ import annotations

import resource
from dataclasses import replace

import pytest
from tiny_training import losses, recipe_of

from puzlm.training.run_files import CHECKPOINT, PREVIOUS, TrainingError
from puzlm.training.train_reader import train


@pytest.fixture(scope="module")
def recipe(folder):
    """Six steps, a checkpoint every second one."""
    return recipe_of(folder, steps=6, save_every=2, log_every=1, eval_every=100)


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    where = tmp_path_factory.mktemp("whole")
    train(recipe, where)
    return where


@pytest.fixture
def stopped(recipe, tmp_path):
    """A run that ended after four of the six steps."""
    train(recipe.with_train(steps=4), tmp_path / "run")
    return tmp_path / "run"


def damage(path):
    data = bytearray(path.read_bytes())
    data[-9] ^= 1  # one bit of one tensor: the format itself does not notice
    path.write_bytes(data)


def said(recipe, where):
    lines = []
    train(recipe, where, report=lines.append)
    return [line["note"] for line in lines if "note" in line]


def test_a_cut_last_line_of_the_log_stops_nothing(recipe, stopped):
    log = stopped / "metrics.jsonl"
    log.write_text("\n".join(log.read_text().splitlines()[:4])[:-20])
    assert said(recipe, stopped) == []
    assert [step for step, _ in losses(stopped)] == [1, 2, 3, 5, 6]  # what was cut is lost


def test_a_damaged_checkpoint_gives_way_to_the_one_before(recipe, whole, tmp_path):
    """And the losses are those of the run that nobody disturbed."""
    again = tmp_path / "run"
    train(recipe, again, stop_after=0)  # a checkpoint of step 0
    train(recipe, again)
    assert losses(again) == losses(whole)
    damage(again / CHECKPOINT)
    (note,) = said(recipe, again)
    assert f"{CHECKPOINT}: damaged" in note and f"going on from {PREVIOUS}" in note
    assert losses(again) == losses(whole)
    damage(again / CHECKPOINT)
    damage(again / PREVIOUS)
    with pytest.raises(TrainingError, match=f"{PREVIOUS}: damaged"):
        train(recipe, again)


@pytest.mark.parametrize("text", [b"", b"half of a file", b"\x08" + b"\0" * 7 + b'{"a": {}'])
def test_a_checkpoint_that_is_none_is_one_line(recipe, stopped, text):
    (stopped / PREVIOUS).unlink(missing_ok=True)
    (stopped / CHECKPOINT).write_bytes(text)
    with pytest.raises(TrainingError, match=f"{CHECKPOINT}: damaged") as caught:
        train(recipe, stopped)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [("lr", 1e-3), ("batch", 8), ("weight_decay", 0.5), ("seed", 4)]
)
def test_other_settings_do_not_go_on(recipe, stopped, name, value):
    before = sorted((p.name, p.read_bytes()) for p in stopped.iterdir())
    with pytest.raises(TrainingError, match=f"was begun with train.{name} .*, not {value}"):
        train(recipe.with_train(**{name: value}), stopped)
    assert sorted((p.name, p.read_bytes()) for p in stopped.iterdir()) == before


def test_the_cut_does_not_change_either(recipe, stopped):
    other = replace(recipe, cut=replace(recipe.cut, flip=not recipe.cut.flip))
    with pytest.raises(TrainingError, match="was begun with cut.flip"):
        train(other, stopped)


def test_a_full_disk_while_saving_is_one_line(recipe, stopped):
    """The checkpoint before stays, and nothing else is left behind."""
    before = (stopped / CHECKPOINT).read_bytes()
    names = sorted(p.name for p in stopped.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(TrainingError, match="cannot be saved") as caught:
            train(recipe, stopped)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert (stopped / CHECKPOINT).read_bytes() == before
    assert sorted(p.name for p in stopped.iterdir()) == names
