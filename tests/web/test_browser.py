"""The page in a real browser: Debian's Chromium, headless, driven by Playwright.

Screenshots go to docs/screens/ when PUZLM_SCREENS=1 (they change with every font).
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import (
    CHROMIUM,
    DESKTOP,
    FLAGS,
    PHONE,
    SECONDS,
    cells,
    drag,
    expect,
    playwright,
    screenshot,
    solve,
    touch,
)
from PIL import Image
from serving import SAMPLE

from bench.requests import png
from puzlm.pieces.poses import QUARTERS, laid
from puzlm.puzzle import Puzzle, shuffled
from puzlm.solver import SOLVERS


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, server, request) -> Iterator:
    """Open the page; at the end nothing may have gone to the console or another host."""
    contexts, noise, away = [], [], []

    def call(link: str = "#sample=poster&grid=3x3&seed=3", wait: bool = True, **options):
        context = browser.new_context(**{**DESKTOP, "reduced_motion": "reduce", **options})
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda m: noise.append(m.text) if m.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda e: noise.append(str(e)))
        local = (server, "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(local) else away.append(r.url))
        page.goto(f"{server}/{link}")
        if wait:
            expect(page.locator("#status")).to_contain_text("Press Solve", timeout=SECONDS)
        return page

    yield call
    for context in contexts:
        context.close()
    expected = getattr(request.node, "expected_noise", ())
    assert [n for n in noise if not any(e in n for e in expected)] == []
    assert away == []


def test_sample_solve_and_look(open_page):
    page = open_page("#sample=shore&grid=3x3&seed=4")
    assert page.locator(".piece").count() == 9
    assert cells(page) == list(range(9))
    solve(page)
    expect(page.locator("#status")).to_contain_text(
        "All 9 pieces in place. On average 99\u00a0% sure"
    )
    expect(page.locator("#score")).to_have_text("9 of 9")
    expect(page.locator("#who")).to_contain_text("auto (")
    assert re.fullmatch(r"[\d.]+ m?s", page.inner_text("#time"))
    assert page.locator(".piece.wrong").count() == 0
    assert page.locator(".piece .badge:not([hidden])").count() == 0  # none is unsure
    expect(page.locator(".story")).to_contain_text("left no doubt, so no sentence was read")
    page.locator('.piece[data-piece="7"]').click()
    expect(page.locator(".ring .chip")).to_have_count(16)
    expect(page.locator(".seam")).to_have_count(4)
    expect(page.locator(".look .seen figcaption")).to_contain_text("Piece 7")
    page.wait_for_timeout(200)
    screenshot(page, "desktop-light")
    screenshot(page, "reading-panel", clip=page.locator("#reading").bounding_box(), full_page=True)
    # Another layer of symbols, and on to a neighbour.
    before = page.locator(".ring .chip").first.inner_text()
    page.locator(".switch.small label").nth(2).click()
    expect(page.locator(".ring .chip").first).not_to_have_text(before)
    page.locator(".seam button.link").first.click()
    expect(page.locator(".look .seen figcaption")).not_to_contain_text("Piece 7")


def test_dark_with_wrong_pieces_and_animation(open_page):
    page = open_page(
        "#sample=mandala&grid=3x3&seed=11", color_scheme="dark", reduced_motion="no-preference"
    )
    solve(page)
    page.wait_for_timeout(600)
    drag(page, 0, (cells(page)[0] + 1) % 9)
    expect(page.locator(".piece.wrong")).to_have_count(2)
    expect(page.locator("#score")).to_have_text("7 of 9")
    page.locator(".thumb").first.click()  # its own answer again
    expect(page.locator(".thumb").first).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#solve")).to_be_enabled()
    expect(page.locator(".piece.wrong")).to_have_count(0)
    drag(page, 3, (cells(page)[3] + 4) % 9)
    expect(page.locator(".piece.wrong")).to_have_count(2)
    page.wait_for_timeout(700)
    screenshot(page, "desktop-dark")


def test_drag_lock_and_solve_the_rest(open_page):
    page = open_page()
    solve(page)
    good = cells(page)
    other = good.index((good[0] + 4) % 9)
    drag(page, 0, good[other])
    swapped = cells(page)
    assert swapped[0] == good[other] and swapped[other] == good[0]
    # Lock one wrong piece with the key and one with the button: both stay through a new solve.
    page.keyboard.press("l")
    expect(page.locator(".piece.locked")).to_have_count(1)
    page.locator(f'.piece[data-piece="{other}"]').click()
    page.click("#lock")
    expect(page.locator("#solve")).to_have_text("Solve around 2 locked")
    drag(page, other, good[other])  # a locked piece does not move
    assert cells(page) == swapped
    page.click("#solve")
    expect(page.locator("#status")).to_contain_text("7 of 9 pieces in place", timeout=SECONDS)
    assert cells(page)[0] == swapped[0] and cells(page)[other] == swapped[other]
    # Unlocked, everything is solved again.
    page.click("#lock")
    page.locator('.piece[data-piece="0"]').click()
    page.click("#lock")
    expect(page.locator("#solve")).to_have_text("Solve")
    page.click("#solve")
    expect(page.locator("#status")).to_contain_text("All 9 pieces in place", timeout=SECONDS)
    expect(page.locator(".piece.locked")).to_have_count(0)
    page.click("#reset")
    assert cells(page) == list(range(9))


def test_alternatives(open_page):
    page = open_page()
    solve(page)
    best = cells(page)
    assert page.locator(".thumb").count() > 1
    page.locator(".thumb").nth(1).click()
    expect(page.locator(".thumb").nth(1)).to_have_attribute("aria-pressed", "true")
    assert cells(page) != best
    page.locator(".thumb").nth(0).click()
    expect(page.locator(".thumb").nth(0)).to_have_attribute("aria-pressed", "true")
    assert cells(page) == best


def test_keyboard_alone(open_page):
    page = open_page()
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "solve":
            break
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("All 9 pieces", timeout=SECONDS)
    before = cells(page)
    for _ in range(10):
        page.keyboard.press("Tab")
        if "piece" in page.evaluate("document.activeElement.className"):
            break
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    first = before.index(0)
    expect(page.locator(f'.piece[data-piece="{first}"]')).to_be_focused()
    expect(page.locator(".look .seen figcaption")).to_contain_text(f"Piece {first},")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("picked up")
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    after = cells(page)
    assert after[first] == 4 and after[before.index(4)] == 0
    assert sum(a != b for a, b in zip(after, before, strict=True)) == 2
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Escape")
    assert cells(page) == after
    page.keyboard.press("l")
    expect(page.locator(f'.piece[data-piece="{first}"]')).to_have_class(re.compile("locked"))
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_downloads_and_link(open_page, server):
    page = open_page("#sample=town&grid=3x4&gap=0.1&missing=1&seed=5")
    assert page.locator(".piece").count() == 11
    assert page.input_value("#gap") == "10" and page.input_value("#missing") == "1"
    assert page.is_checked('input[name=sample][value="town"]')
    solve(page)
    kept = {}
    for button, name in (
        ("#get-png", "puzlm.png"),
        ("#get-json", "puzlm.json"),
        ("#get-gif", "puzlm.gif"),
    ):
        with page.expect_download() as download:
            page.click(button)
        assert download.value.suggested_filename == name
        kept[name] = Path(download.value.path()).read_bytes()
    assert Image.open(io.BytesIO(kept["puzlm.png"])).format == "PNG"
    with Image.open(io.BytesIO(kept["puzlm.gif"])) as animation:
        assert animation.format == "GIF" and animation.n_frames > 3
    record = json.loads(kept["puzlm.json"])
    assert record["grid"] == [3, 4] and len(record["positions"]) == 11
    assert record["settings"]["seed"] == 5
    page.fill("#seed", "77")
    expect(page.locator("#status")).to_contain_text("Press Solve")
    page.wait_for_url(re.compile("seed=77"))
    again = open_page(page.url.removeprefix(f"{server}/"))
    assert again.input_value("#seed") == "77"


def test_upload_photo_pieces_zip_and_shuffled_picture(open_page, tmp_path):
    page = open_page()
    picture = Image.open(SAMPLE).convert("RGB").resize((360, 300))
    picture.save(tmp_path / "photo.jpg")
    page.set_input_files("#photo", tmp_path / "photo.jpg")
    expect(page.locator("#status")).to_contain_text("Press Solve")
    page.wait_for_timeout(300)
    solve(page)
    expect(page.locator("#score")).to_have_text("9 of 9")

    import numpy as np

    puzzle = Puzzle.from_image(np.asarray(picture), 3, seed=2)
    names = [tmp_path / f"{i}.png" for i in range(9)]
    for name, piece in zip(names, puzzle.pieces, strict=True):
        name.write_bytes(png(piece))
    with zipfile.ZipFile(tmp_path / "pieces.zip", "w") as archive:
        for name in names:
            archive.write(name, name.name)
    (tmp_path / "sheet.png").write_bytes(png(shuffled(puzzle)))
    page.locator(".switch label").nth(0).click()
    for files in (names, [tmp_path / "pieces.zip"], [tmp_path / "sheet.png"]):
        page.set_input_files("#own", files)
        expect(page.locator("#outcome")).to_be_hidden()
        expect(page.locator("#status")).to_contain_text("Press Solve")
        solve(page)
        expect(page.locator("#score")).to_have_text("unknown")
        assert cells(page) == puzzle.truth.tolist()


@pytest.mark.parametrize(("grid", "poses"), [((3, 3), QUARTERS), ((3, 4), range(8))])
def test_own_pieces_need_no_grid_and_may_be_turned(open_page, tmp_path, grid, poses):
    import numpy as np

    page = open_page("")
    assert page.is_checked("input[name=mode][value=own]")
    picture = np.asarray(Image.open(SAMPLE).convert("RGB").resize((120 * grid[1], 120 * grid[0])))
    puzzle = Puzzle.from_image(picture, grid, seed=2)
    names = [tmp_path / f"{i}.png" for i in range(len(puzzle.pieces))]
    for k, (name, piece) in enumerate(zip(names, puzzle.pieces, strict=True)):
        name.write_bytes(png(np.ascontiguousarray(laid(piece, poses[k % len(poses)]))))
    page.set_checked("#turned", grid == (3, 3))  # else it is found
    page.set_input_files("#own", names)
    expect(page.locator("#status")).to_contain_text("pieces; their grid will be found")
    solve(page)
    expect(page.locator(".story")).to_contain_text("Nothing was read")
    with page.expect_download() as download:
        page.click("#get-png")
    with Image.open(download.value.path()) as taken:
        pixels = np.asarray(taken.convert("RGB")).astype(int)
    ways = [laid(picture, pose) for pose in range(8)]
    near = [np.abs(pixels - way).mean() for way in ways if way.shape == pixels.shape]
    assert min(near) < 1  # which way up it lies is a guess, said to be one


def test_panel_and_grid_field_fit(open_page):
    page = open_page("#sample=shore&grid=12x15&seed=4")
    for name in ("#rows", "#columns"):
        assert page.evaluate(
            f"(e => e.scrollWidth <= e.clientWidth)(document.querySelector('{name}'))"
        )
    page.goto(page.url.replace("12x15", "3x3"))
    expect(page.locator(".piece")).to_have_count(9)
    solve(page)
    expect(page.locator(".ring .chip")).to_have_count(16)
    panel = page.locator("#reading").bounding_box()
    board = page.locator("#board").bounding_box()
    assert panel["y"] + panel["height"] <= board["y"] + board["height"] + 2


def test_bad_file(open_page, tmp_path, request):
    request.node.expected_noise = ("status of 422",)  # the browser logs every refused request
    page = open_page()
    (tmp_path / "cat.jpg").write_bytes(b"this is no cat")
    page.set_input_files("#photo", tmp_path / "cat.jpg")
    expect(page.locator("#status")).to_have_text("cat.jpg: not a picture that can be read.")
    expect(page.locator("#status")).to_have_class("bad")
    assert page.locator("#status").get_attribute("aria-live") == "polite"
    expect(page.locator("#solve")).to_be_disabled()  # and nothing of the puzzle before is left
    expect(page.locator("#downloads")).to_be_hidden()
    assert page.locator(".piece").count() == 0
    page.locator("#samples label").nth(2).click()  # and on it goes
    expect(page.locator("#status")).to_contain_text("Press Solve")


def test_phone(open_page):
    page = open_page("#sample=town&grid=3x3&seed=9", **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("#solve").tap()
    expect(page.locator("#status")).to_contain_text("sure.", timeout=SECONDS)
    page.locator('.piece[data-piece="4"]').tap()
    expect(page.locator(".ring .chip")).to_have_count(16)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.wait_for_timeout(200)
    screenshot(page, "phone")
    page.locator("#to-reading").tap()
    expect(page.locator("#reading-title")).to_be_in_viewport()
    small = page.evaluate(
        "[...document.querySelectorAll('button:not(.piece):not(.link)')]"
        ".filter(b => b.offsetParent && b.getBoundingClientRect().height < 36).length"
    )
    assert small == 0


def test_a_swipe_scrolls_and_a_held_piece_is_dragged(open_page):
    page = open_page("#sample=town&grid=3x3&seed=9", **PHONE)
    expect(page.locator(".by-touch")).to_be_visible()
    before = cells(page)

    def centre(cell: int) -> tuple[float, float]:
        box = page.locator(f'.piece[data-piece="{cells(page).index(cell)}"]').bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def along(a: tuple[float, float], b: tuple[float, float]) -> list[tuple[float, float]]:
        return [(a[0] + (b[0] - a[0]) * k / 12, a[1] + (b[1] - a[1]) * k / 12) for k in range(13)]

    x, y = centre(7)
    touch(page, along((x, y), (x + 4, y - 220)))
    assert page.evaluate("scrollY") > 100
    assert cells(page) == before
    assert page.locator(".piece.chosen, .piece.dragged").count() == 0
    page.evaluate("scrollTo(0, 0)")
    # Held, the same way up carries the piece, and the page stays.
    first, second = before.index(6), before.index(0)
    touch(page, along(centre(6), centre(0)), hold_ms=450)
    assert page.evaluate("scrollY") == 0
    after = cells(page)
    assert after[first] == 0 and after[second] == 6
    assert page.locator(f'.piece[data-piece="{first}"].chosen').count() == 1
    # Sideways nothing scrolls: no need to hold.
    touch(page, along(centre(0), centre(2)))
    assert cells(page)[first] == 2 and page.evaluate("scrollY") == 0


def test_names_for_everything(open_page):
    page = open_page()
    solve(page)
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, input, select')].filter(e => e.offsetParent && "
        "!(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim()))"
        ".map(e => e.outerHTML)"
    )
    assert nameless == []
    assert page.evaluate("[...document.images].filter(i => !i.hasAttribute('alt')).length") == 0


def test_many_pieces_and_all_solvers(open_page):
    page = open_page("#sample=shore&grid=10x10&seed=1")
    assert page.locator(".piece").count() == 100
    solve(page)
    page.locator("details.more summary").click()
    for kind in ("classic", "bigram", "random"):
        page.select_option("#solver", kind)
        page.click("#solve")
        expect(page.locator("#who")).to_have_text(kind, timeout=SECONDS)
        expect(page.locator("#solve")).to_be_enabled(timeout=SECONDS)


def test_every_solver_can_be_chosen(open_page):
    page = open_page("#sample=shore&grid=3&seed=1")
    page.locator("details.more summary").click()
    options = page.locator("#solver option")
    assert {o.get_attribute("value") for o in options.all()} == set(SOLVERS)
    for kind in ("symbols", "vision-pairs"):
        page.select_option("#solver", kind)
        page.click("#solve")
        expect(page.locator("#who")).to_contain_text(kind, timeout=SECONDS)
        expect(page.locator("#solve")).to_be_enabled(timeout=SECONDS)


def test_first_paint_and_docs(open_page, server):
    page = open_page()
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 1000
    page.goto(f"{server}/docs")
    expect(page.locator(".call")).to_have_count(10)
    expect(page.locator(".docs")).to_contain_text("/api/solve")
