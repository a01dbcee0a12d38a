"""Results side by side: paired tests, published numbers, what cannot be compared."""

import csv
import io
import json
from dataclasses import replace

import pytest
from evaluating import PLAIN, oracle, truths_of, write_photos

from puzlm.errors import PuzlmError
from puzlm.harness.compare import HEADER, compare, mcnemar
from puzlm.harness.evaluate import evaluate, random_solver
from puzlm.harness.protocols import PROTOCOLS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), 20)


def test_mcnemar_by_hand():
    # 1 puzzle only the first solved, 7 only the second: 2 * (C(8,0) + C(8,1)) / 2^8 = 18 / 256.
    first = [1] + [0] * 7 + [1] * 5 + [0] * 2
    second = [0] + [1] * 7 + [1] * 5 + [0] * 2
    assert mcnemar(first, second) == (1, 7, 18 / 256)
    assert mcnemar(second, first) == (7, 1, 18 / 256)
    assert mcnemar([1, 0], [1, 0]) == (0, 0, 1.0)
    assert mcnemar([1, 0], [0, 1]) == (1, 1, 1.0)
    assert (
        0 < mcnemar([0] * 2000, [1] * 2000)[2] < 1e-300 or mcnemar([0] * 2000, [1] * 2000)[2] == 0
    )


def test_compare_pairs_and_quotes(tmp_path, folder):
    truths = truths_of(folder)
    a, b, c = (tmp_path / f"{name}.json" for name in "abc")
    evaluate(oracle(truths, wrong=range(7)), PLAIN, folder, limit=20, output=a, solver_name="A|a")
    evaluate(oracle(truths, wrong={19}), PLAIN, folder, limit=20, output=b, solver_name="B")
    evaluate(random_solver(), PLAIN, folder, limit=10, output=c, solver_name="random")
    table = compare([a, b, c])
    rows = [dict(zip(HEADER, row, strict=True)) for row in table.rows]
    assert [r["kind"] for r in rows] == ["measured"] * 3 + ["published"] * len(PLAIN.published)
    assert rows[0]["absolute - first"] == "" and rows[0]["perfect"].startswith("65.0 [")
    assert rows[1]["perfect: lost/won, p"] == "1/7, p = 0.07"
    assert rows[1]["absolute - first"].startswith("6.7 [")  # (7 - 1) * 2 / 9 / 20
    assert "other puzzles" in rows[2]["note"] and rows[2]["perfect: lost/won, p"] == ""
    assert rows[0]["note"] == "geometry x 0.333"
    assert rows[3]["solver"] == "PuzLM" and rows[3]["absolute"] == "92.2"
    assert rows[3]["neighbour"] == "-" and "PuzLM paper" in rows[3]["note"]
    assert list(csv.reader(io.StringIO(table.as_csv())))[1:] == [list(r) for r in table.rows]
    markdown = table.as_markdown().splitlines()
    assert len(markdown) == 2 + len(rows) and markdown[2].startswith("| A\\|a | measured | 20 |")
    text = table.as_text().splitlines()
    assert text[0] == "protocol imagenet-3x3" and len(text) == 2 + len(rows)


def test_compare_refuses_what_is_not_alike(tmp_path, folder):
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    evaluate(random_solver(), PLAIN, folder, limit=2, output=a)
    evaluate(random_solver(), PROTOCOLS["imagenet-3x3-eroded"], folder, limit=2, output=b)
    with pytest.raises(PuzlmError, match="b.json: holds protocol imagenet-3x3-eroded, not"):
        compare([a, b])
    evaluate(random_solver(), replace(PLAIN, seed=9), folder, limit=2, output=b)
    with pytest.raises(PuzlmError, match="another form of imagenet-3x3"):
        compare([a, b])
    record = json.loads(a.read_text())
    for text, words in [
        (json.dumps({**record, "version": 99}), "version 99, this PuzLM reads 1"),
        (json.dumps({"version": 1}), "no absolute, data"),
        ("[]", "damaged"),
        ("{", "damaged"),
    ]:
        b.write_text(text)
        with pytest.raises(PuzlmError, match=words):
            compare([a, b])
    with pytest.raises(PuzlmError, match="no such file"):
        compare([a, tmp_path / "none.json"])
    with pytest.raises(PuzlmError, match="at least one"):
        compare([])
