"""The service: what it answers; against a real server."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image
from serving import SAMPLE, piece_files, refused

from bench.requests import png, zipped
from puzlm.puzzle import Puzzle, assemble


def test_health_models_samples(client):
    assert client.get("/healthz").json()["status"] == "ok"
    about = client.get("/api/models").json()
    assert about["models"][0]["grids"] == ["3x3"] and "auto" in about["solvers"]
    for sample in client.get("/api/samples").json()["samples"]:
        picture = client.get(sample["url"])
        assert picture.headers["content-type"] == "image/webp" and len(picture.content) < 60_000
        assert Image.open(io.BytesIO(picture.content)).size == (720, 720)


def test_make_is_the_library(client, make):
    answer = make("town", grid="3x4", gap=0.1, missing=2, seed=5)
    picture = np.asarray(Image.open(SAMPLE.with_name("town.webp")).convert("RGB"))
    same = Puzzle.from_image(picture, "3x4", gap=0.1, missing=2, seed=5)
    assert answer["truth"] == same.truth.tolist() and answer["grid"] == [3, 4]
    first = np.asarray(Image.open(io.BytesIO(piece_files(answer)[0][1][1])))
    assert np.array_equal(first, same.pieces[0])
    uploaded = client.post("/api/make", files={"picture": SAMPLE.read_bytes()}, data={"grid": "2"})
    assert uploaded.json()["truth"] == Puzzle.from_image(picture, 2).truth.tolist()


@pytest.mark.parametrize("how", ["pieces", "zip", "saved", "picture"])
def test_solve_pieces_zip_and_picture(client, make, tmp_path, how):
    puzzle = make("poster", grid=3, seed=3)
    files, data = piece_files(puzzle), {"grid": "3"}
    arrays = np.stack([np.asarray(Image.open(io.BytesIO(f[1][1]))) for f in files])
    truth = puzzle["truth"]
    if how == "zip":  # natural order: piece 2 before piece 10
        entries = {f"box/piece_{i + 2}.png": f[1][1] for i, f in enumerate(files)}
        entries["__MACOSX/._piece_2.png"] = entries["notes.txt"] = b"?"
        files, data = {"zip": zipped(entries)}, {}
    elif how == "saved":
        Puzzle(arrays, (3, 3), np.array(truth)).save(tmp_path / "p")
        entries = {f.name: f.read_bytes() for f in (tmp_path / "p").iterdir()}
        files, data = {"zip": zipped(entries)}, {}
    elif how == "picture":
        order = np.arange(9).reshape(3, 3)
        sheet = np.concatenate([np.concatenate(list(arrays[row]), 1) for row in order])
        files, data = {"picture": png(sheet)}, {}  # its seams say the grid
    answer = client.post("/api/solve", files=files, data={**data, "symbols": "1"})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["positions"] == truth
    assert found["clear"] and not found["read"] and found["complete"]
    assert sorted(found["order"]) == list(range(9)) and found["solver"].startswith("auto")
    assert all(0 <= c <= 1 for c in found["confidences"]) and found["seconds"] > 0
    assert all(sorted(p) == list(range(9)) for p in found["alternatives"])
    assert np.array(found["symbols"]).shape == (9, 16, 7)
    opened = client.post("/api/open", files=files, data=data).json()
    assert opened["grid"] == [3, 3] and len(opened["pieces"]) == 9
    assert opened["truth"] == (truth if how == "saved" else None)
    assert opened["symbols"] == found["symbols"]


def test_turned_pieces(client, make):
    puzzle = make("town", grid=3, seed=2)
    turned = []
    for k, (_, (name, data, kind)) in enumerate(piece_files(puzzle)):
        pixels = np.rot90(np.asarray(Image.open(io.BytesIO(data))), -k)
        turned.append(("pieces", (name, png(np.ascontiguousarray(pixels)), kind)))
    found = client.post("/api/solve", files=turned, data={"rotations": "1"}).json()
    assert found["positions"] == puzzle["truth"]
    assert found["turns"] == [k % 4 for k in range(9)]
    fields = {name: json.dumps(found[name]) for name in ("positions", "order", "turns")}
    answer = client.post("/api/gif", files=turned, data={"grid": "3", **fields})
    with Image.open(io.BytesIO(answer.content)) as image:
        image.seek(image.n_frames - 1)
        last = np.asarray(image.convert("RGB")).astype(float)
    pieces = [np.asarray(Image.open(io.BytesIO(file[1][1]))) for file in piece_files(puzzle)]
    picture = Image.fromarray(assemble(np.stack(pieces), np.array(puzzle["truth"]), (3, 3)))
    assert np.abs(np.asarray(picture.resize(last.shape[1::-1])) - last).mean() < 12
    fields["mirrored"] = "[0, 9]"
    refused(client.post("/api/gif", files=turned, data={"grid": "3", **fields}), 422, "bad_field")
    fields["mirrored"] = "[0, 8]"
    assert client.post("/api/gif", files=turned, data={"grid": "3", **fields}).is_success
    refused(
        client.post("/api/solve", files=turned, data={"rotations": "1", "solver": "seq2seq"}),
        422,
        "unusable",
    )


def test_pieces_are_laid_by_a_picture_of_the_whole(client, make):
    puzzle = make("shore", grid="3x4", gap=0.3, seed=2)
    pieces = [np.asarray(Image.open(io.BytesIO(file[1][1]))) for file in piece_files(puzzle)]
    whole = assemble(np.stack(pieces), np.array(puzzle["truth"]), (3, 4))
    lid = png(np.ascontiguousarray(whole[::2, ::2] // 2))  # smaller and darker, with the gaps cut
    turned = [
        ("pieces", (f"{k}.png", png(np.ascontiguousarray(np.rot90(p, 2 * (k % 2)))), "image/png"))
        for k, p in enumerate(pieces)
    ]
    files = [*turned, ("reference", ("lid.png", lid, "image/png"))]
    found = client.post("/api/solve", files=files).json()
    assert found["solver"] == "reference" and found["grid"] == [3, 4]
    assert found["positions"] == puzzle["truth"]
    assert found["turns"] == [2 * (k % 2) for k in range(12)]
    bad = [*turned, ("reference", ("lid.png", b"no picture", "image/png"))]
    refused(client.post("/api/solve", files=bad), 422, "bad_image")
    refused(client.post("/api/open", files=files), 422, "unknown_field")


def test_given_placements_are_kept(client, make):
    puzzle = make("shore", grid=3, seed=3)
    wrong = {"0": puzzle["truth"][1], "4": puzzle["truth"][7]}
    answer = client.post(
        "/api/solve", files=piece_files(puzzle), data={"grid": "3", "given": json.dumps(wrong)}
    ).json()
    assert answer["positions"][0] == wrong["0"] and answer["positions"][4] == wrong["4"]
    assert sorted(answer["positions"]) == list(range(9)) and answer["symbols"] is None


@pytest.mark.parametrize("kind", ["seq2seq", "bigram", "classic", "random"])
def test_other_solvers(client, make, kind):
    puzzle = make("shore", grid=3, seed=8)
    answer = client.post("/api/solve", files=piece_files(puzzle), data={"solver": kind}).json()
    assert answer["solver"].startswith(kind) and sorted(answer["positions"]) == list(range(9))
    assert answer["read"] == (kind == "seq2seq")


def test_read_from_symbols_alone(client, make):
    puzzle = make("shore", grid=3, seed=3)
    at = {cell: piece for piece, cell in enumerate(puzzle["truth"])}
    around = {"top": at[1], "right": at[5], "bottom": at[7], "left": at[3]}
    question = {"symbols": puzzle["symbols"], "piece": at[4], "neighbours": around}
    reading = client.post("/api/read", json=question).json()
    assert len(reading["text"].split()) == 16 and len(reading["walk"]) == 16
    assert reading["picture"].startswith("data:image/png;base64,")
    assert len(json.dumps(reading)) < 60_000
    true = [p["closeness"][0] for side in reading["sides"] for p in side["positions"]]
    assert [side["rank"] for side in reading["sides"]] == [1, 1, 1, 1]
    question["neighbours"] = {"top": at[8], "right": at[0], "bottom": at[2], "left": at[6]}
    reading = client.post("/api/read", json=question).json()
    false = [p["closeness"][0] for side in reading["sides"] for p in side["positions"]]
    assert np.mean(true) > 0.95 > 0.8 > np.mean(false)
    refused(client.post("/api/read", json={**question, "piece": 9}), 422, "bad_piece")
    for layer, size in ((6, 480), (0, 1536)):  # each codebook has its own size
        kept, question["symbols"][0][0][layer] = question["symbols"][0][0][layer], size
        refused(client.post("/api/read", json=question), 422, "bad_symbols")
        question["symbols"][0][0][layer] = kept
    refused(client.post("/api/read", content=b"{"), 422, "bad_json")


def test_gif(client, make):
    puzzle = make("mandala", grid="2x3", missing=1)
    fields = {"grid": "2x3", "positions": json.dumps(puzzle["truth"]), "order": "[4,3,2,1,0]"}
    answer = client.post("/api/gif", files=piece_files(puzzle), data=fields)
    assert answer.headers["content-type"] == "image/gif"
    with Image.open(io.BytesIO(answer.content)) as image:
        assert image.n_frames > 3 and max(image.size) <= 640
    fields["order"] = "[0]"
    refused(client.post("/api/gif", files=piece_files(puzzle), data=fields), 422, "bad_field")
