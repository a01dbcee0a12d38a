"""The leaderboard and the first screen follow from the results files, and say whose a row is."""

import re

import pytest

from tools import make_field, make_paper


@pytest.fixture(scope="module")
def results():
    return make_field.load()


def test_the_pages_follow_from_the_files(results):
    for path, text in make_field.pages(results).items():
        assert path.read_text() == text, f"{path.name}: python -m tools.make_field"


def test_the_page_of_the_paper_follows_from_the_files():
    text = (make_paper.ROOT / "docs" / "paper.md").read_text()
    assert make_paper.page(text) == text, "python -m tools.make_paper"


def test_a_loss_of_the_papers_share_is_excluded_only_beyond_the_noise():
    """Said of each choice in words; here from the numbers again."""
    for (choice, kind, budget), one in make_paper.effects().items():
        without, _ = make_paper.CHOICES[choice]
        share = (make_paper.BASE - without) / (make_paper.BASE - make_paper.CHANCE)
        excluded = one.value > one.noise - share * (one.base - make_paper.CHANCE)
        if budget == "15 s" or choice in ("lexicographic order", "border selection"):
            assert excluded, (choice, kind, budget)
        if budget == "110 s" and choice in ("separator", "clockwise walk"):
            assert not excluded, (choice, kind)


def test_rows_of_peers_say_whose_code_ran(results):
    for path in make_field.PEERS.glob("*.json"):
        protocol, images, solver = path.stem.split(".")
        about = results[protocol, images][solver]["settings"].get("about") or {}
        assert solver in make_field.OURS or len(about["commit"]) == 40, path.name


def test_the_first_screen_names_the_best_peer_and_marks_what_is_not_ours(results):
    screen = make_field.first_screen(results)
    lines = {
        re.search(r"`(.*?)`", line)[1]: line for line in screen.splitlines()[2:] if line[:1] == "|"
    }
    assert list(lines) == [protocol for protocol, _ in make_field.FIRST]
    for (protocol, images), line in zip(make_field.FIRST, lines.values(), strict=True):
        rows = results.get((protocol, images), {})
        peers = {s: r for s, r in rows.items() if make_field.is_peer(s, r)}
        if peers:
            best = max(peers.values(), key=lambda r: r["perfect"]["value"])
            assert f"/ {best['perfect']['value']:.1f} [" in line.split("|")[4]
        assert line.split("|")[2].strip() in ("-",) or line.split("|")[2].strip()[0] == "*"


def test_published_numbers_above_ours_are_said(results):
    said = make_field.first_screen(results).splitlines()[-1]
    for protocol, images in make_field.FIRST:
        rows = results.get((protocol, images), {}) or results.get(
            (protocol, make_field.RECOMPRESSED), {}
        )
        known = make_field.PROTOCOLS[protocol].published
        best = max((k.perfect or 0.0 for k in known), default=0.0)
        if "auto" in rows and best > rows["auto"]["perfect"]["value"]:
            assert f"`{protocol}` (" in said


def test_a_row_is_judged_on_the_puzzles_that_both_hold(results):
    rows = results["imagenet-3x3", "imagenet-val-288"]
    board = make_field._board(rows, "imagenet-val-288")
    mine = next(line for line in board.splitlines() if line.startswith("| **gaps** |"))
    won, lost = map(int, re.search(r"; (\d+) / (\d+), p", mine).groups())
    gaps = {r["index"]: r["perfect"] for r in rows["gaps"]["outcomes"]}
    auto = {r["index"]: r["perfect"] for r in rows["auto"]["outcomes"]}
    both = gaps.keys() & auto.keys()
    assert won == sum(gaps[i] > auto[i] for i in both) < lost
    assert lost == sum(gaps[i] < auto[i] for i in both)
