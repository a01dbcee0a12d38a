"""What the service refuses: bad pictures, puzzles, zips and forms."""

from __future__ import annotations

import io
import struct
import zipfile

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from serving import GOOD, NOISE, piece_files, refused

from bench.requests import pixel_bomb, png, zipped

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"", 422, "bad_image"),
        (b"no picture", 422, "bad_image"),
        (GOOD[: len(GOOD) // 2], 422, "bad_image"),
        (EPS, 422, "bad_image"),
        pytest.param(pixel_bomb(), 413, "too_many_pixels", id="bomb"),
        (zipped({"a.png": GOOD}), 422, "bad_image"),
    ],
)
@pytest.mark.parametrize("path", ["make", "solve", "open"])
def test_bad_pictures(client, path, data, status, code):
    answer = client.post(
        f"/api/{path}", files={"picture": ("../../x.png", data)}, data={"grid": "3"}
    )
    assert ".." not in refused(answer, status, code)


@pytest.mark.parametrize(
    ("files", "fields", "status", "code"),
    [
        ([("pieces", GOOD)] * 9, {"grid": "nine"}, 422, "unusable"),
        ([("pieces", GOOD)] * 9, {"grid": "2"}, 422, "bad_grid"),
        ([("pieces", GOOD)] * 7, {"given": '{"0": 0}'}, 422, "unusable"),
        ([("pieces", GOOD)] * 9, {"grid": "99x99"}, 413, "too_many_pieces"),
        ([("pieces", GOOD)] * 9, {"grid": "9" * 5000}, 422, "bad_grid"),
        ([("pieces", GOOD)] * 1050, {}, 413, "too_many_pieces"),
        ([("pieces", GOOD)] * 3 + [("pieces", png(NOISE[:30]))], {}, 422, "unequal_pieces"),
        ([("pieces", GOOD)] * 4, {"solver": "magic"}, 422, "bad_field"),
        ([("pieces", GOOD)] * 4, {"decode": "bean"}, 422, "bad_field"),
        ([("pieces", GOOD)] * 121, {"solver": "seq2seq"}, 422, "unusable"),
        ([("pieces", GOOD)] * 4, {"given": "{"}, 422, "bad_given"),
        ([("pieces", GOOD)] * 4, {"given": "[1]"}, 422, "bad_given"),
        ([("pieces", GOOD)] * 4, {"given": '{"0": 4}'}, 422, "bad_given"),
        ([("pieces", GOOD)] * 4, {"given": '{"0": 1, "1": 1}'}, 422, "bad_given"),
        ([("pieces", GOOD)] * 4, {"given": "[" * 50_000}, 422, "bad_given"),
        ([("pieces", GOOD)] * 4, {"path": "/etc/passwd"}, 422, "unknown_field"),
        ([("pieces", GOOD), ("zip", GOOD)], {}, 422, "no_pieces"),
        ([("picture", GOOD)], {}, 422, "bad_grid"),
        ([("zip", GOOD)], {}, 422, "bad_zip"),
        ([("zip", zipped({"a.txt": b"a"}))], {}, 422, "bad_zip"),
        ([("zip", zipped({"a.png": GOOD})[:-30])], {}, 422, "bad_zip"),
        ([("zip", zipped({"a.png": GOOD}, zipfile.ZIP_LZMA))], {}, 422, "bad_zip"),
        ([("zip", zipped({f"{i}.png": b"" for i in range(1050)}))], {}, 413, "too_many_pieces"),
        ([("zip", zipped({f"{i}.txt": b"" for i in range(2100)}))], {}, 413, "zip_bomb"),
        ([("zip", zipped({"a.png": bytes(70 << 20)}))], {}, 413, "zip_bomb"),
    ],
)
def test_bad_puzzles(client, files, fields, status, code):
    refused(client.post("/api/solve", files=files, data=fields), status, code)


def test_messages_do_not_speak_of_the_command(client):
    given = {"given": '{"0": 0}'}
    answer = client.post("/api/solve", files=[("pieces", GOOD)] * 7, data=given)
    assert "--" not in refused(answer, 422, "unusable")


def test_zip_that_lies_about_its_size(client):
    data = bytearray(zipped({"a.png": bytes(70 << 20)}))
    for mark, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = data.index(mark) + offset
        data[at : at + 4] = struct.pack("<I", 100)
    answer = client.post("/api/solve", files={"zip": bytes(data)})
    assert answer.status_code in (413, 422)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"sample": "nowhere"}, "unknown_sample"),
        ({"sample": "../index"}, "unknown_sample"),
        ({}, "no_picture"),
        ({"sample": "shore", "gap": "2"}, "bad_field"),
        ({"sample": "shore", "gap": "nan"}, "bad_field"),
        ({"sample": "shore", "seed": "-1"}, "bad_field"),
        ({"sample": "shore", "seed": "1.5"}, "bad_field"),
        ({"sample": "shore", "missing": "9"}, "unusable"),
    ],
)
def test_bad_making(client, fields, code):
    files = {name: (None, value) for name, value in fields.items()} or {"grid": (None, "3")}
    refused(client.post("/api/make", files=files), 422, code)


def test_other_ways_to_be_wrong(client):
    refused(client.post("/api/solve", json={}), 415, "not_a_form")
    refused(client.get("/api/solve"), 405, "not_allowed")
    refused(client.get("/nowhere"), 404, "not_found")
    refused(client.get("/static/../app.py"), 404, "not_found")
    refused(client.get("/static/%2e%2e/app.py"), 404, "not_found")
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    refused(client.post("/api/solve", content=b"--y\r\nrubbish", headers=headers), 400, "bad_form")
    headers = {"Content-Type": "multipart/form-data"}
    refused(client.post("/api/solve", content=b"abc", headers=headers), 400, "bad_form")


def test_a_form_cut_short_is_no_puzzle_with_missing_pieces(client, make):
    """Nine pieces of which the body ends within the sixth: five pieces must not be solved."""
    request = httpx.Request("POST", "http://x/", files=piece_files(make()), data={"grid": "3"})
    body = request.read()
    headers = {"Content-Type": request.headers["content-type"]}
    for share in (0.6, 0.999):
        cut = body[: int(len(body) * share)]
        refused(client.post("/api/solve", content=cut, headers=headers), 400, "bad_form")
    assert client.post("/api/solve", content=body, headers=headers).status_code == 200


IMAGES = []
for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM"):
    held = io.BytesIO()
    Image.fromarray(NOISE).save(held, kind)
    IMAGES.append(held.getvalue())


@st.composite
def broken_images(draw):
    data = bytearray(draw(st.sampled_from(IMAGES)))
    for _ in range(draw(st.integers(1, 6))):
        data[draw(st.integers(0, min(len(data) - 1, 400)))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.one_of(broken_images(), st.binary(max_size=300)))
def test_any_bytes_get_200_or_4xx(client, data):
    answer = client.post(
        "/api/solve", files={"picture": data}, data={"grid": "2", "solver": "classic"}
    )
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
