"""A person at the page: what the tests in the browser do with it.

Importing this without Chromium or Playwright skips the tests of the file that does.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
from PIL import Image

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
CHROMIUM = "/usr/bin/chromium"
if not Path(CHROMIUM).exists():
    pytest.skip("chromium is not installed (apt-get install chromium)", allow_module_level=True)

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]
SCREENS = Path(__file__).parents[2] / "docs" / "screens"
SECONDS = 60_000  # milliseconds that a solve may take on a busy machine
DESKTOP = {"viewport": {"width": 1360, "height": 900}}
PHONE = {"viewport": {"width": 360, "height": 780}, "has_touch": True, "is_mobile": True}


def solve(page) -> None:
    page.click("#solve")
    expect(page.locator("#status")).to_contain_text("sure.", timeout=SECONDS)


def cells(page) -> list[int]:
    """Where each piece lies, by its label."""
    found = []
    columns = int(page.input_value("#columns"))
    for i in range(page.locator(".piece").count()):
        label = page.locator(f'.piece[data-piece="{i}"]').get_attribute("aria-label")
        row, column = map(int, re.search(r"row (\d+), column (\d+)", label).groups())
        found.append((row - 1) * columns + column - 1)
    return found


def screenshot(page, name: str, **options) -> None:
    """Keep a picture of the page, under 300 kB."""
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(150)
    data = page.screenshot(**options)
    if os.environ.get("PUZLM_SCREENS") != "1":
        return
    SCREENS.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image.save(SCREENS / f"{name}.webp", quality=90, method=6)
    assert (SCREENS / f"{name}.webp").stat().st_size < 300_000


def drag(page, piece: int, cell: int) -> None:
    """Drag a piece with the mouse to a cell of a board with 3 columns."""
    a = page.locator(f'.piece[data-piece="{piece}"]').bounding_box()
    b = page.locator("#board").bounding_box()
    page.mouse.move(a["x"] + a["width"] / 2, a["y"] + a["height"] / 2)
    page.mouse.down()
    page.mouse.move(b["x"] + b["width"] / 2, b["y"] + b["height"] / 2, steps=4)
    page.mouse.move(
        b["x"] + b["width"] * (cell % 3 + 0.5) / 3,
        b["y"] + b["height"] * (cell // 3 + 0.5) / 3,
        steps=4,
    )
    page.mouse.up()


def touch(page, path: list[tuple[float, float]], hold_ms: int = 0) -> None:
    """Put a finger down, rest, move it along a path and lift it, as the screen reports it."""
    line = page.context.new_cdp_session(page)

    def send(kind: str, points: list) -> None:
        shown = [{"x": x, "y": y} for x, y in points]
        line.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": shown})

    send("touchStart", path[:1])
    page.wait_for_timeout(hold_ms)
    for point in path[1:]:
        send("touchMove", [point])
        page.wait_for_timeout(16)
    send("touchEnd", [])
    page.wait_for_timeout(250)
