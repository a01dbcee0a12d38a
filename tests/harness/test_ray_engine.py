"""The Ray engine on a real cluster of two workers: equal files, dead workers, clear errors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from bench.ray_nodes import kill, nodes
from puzlm.errors import PuzlmError
from puzlm.harness import ray_engine
from puzlm.images import write_image
from puzlm.manifest import BOX
from puzlm.tokenizer.token_files import CHUNK, write_tokens

pytest.importorskip("ray")

GRID, GAP = (2, 3), 0.1
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}  # of the tests' clusters


def command(*arguments, cwd=None, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "puzlm", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=180,
        env={**os.environ, **TOKEN},
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def corpus(crops, tokenizer, tmp_path_factory):
    """Images of many sizes, three chunks of them, and what a single process makes of them."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(2 * CHUNK + 5):
        crop = crops[number % len(crops)][: 90 + number % 7, : 90 + number % 5]
        write_image(folder / "images" / f"{number:03d}.png", crop)
    tokenizer.save_pretrained(folder / "tokenizer")
    write_tokens([folder / "images"], tokenizer, folder / "one.npy", grid=GRID, gap=GAP)
    return folder


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, each with a temporary folder of its own, that were there before the command."""
    with nodes([1, 1], {**os.environ, **TOKEN}) as found:
        yield found


@pytest.fixture
def address(cluster):
    return cluster[0]


def same_files(folder, other):
    for suffix in (".npy", ".json"):
        one, two = folder / f"one{suffix}", other.with_suffix(suffix)
        assert one.read_bytes() == two.read_bytes(), suffix


def test_tokenize_on_a_cluster_equals_one_process(corpus, address, tmp_path):
    done = command(
        "tokenize",
        "images",
        "--tokenizer",
        "tokenizer",
        "--grid",
        "2x3",
        "--erode",
        GAP,
        "-o",
        tmp_path / "two.npy",
        "--engine",
        "ray",
        "--address",
        address,
        "--json",
        cwd=corpus,
    )
    assert json.loads(done.stdout)["puzzles"] == 2 * CHUNK + 5
    same_files(corpus, tmp_path / "two.npy")


KILLER = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
from bench.ray_nodes import kill_session
from puzlm.harness.ray_engine import _tokenizing, spread
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.tokenizer.token_files import chunks, write_tokens

folder, out, marker = map(Path, sys.argv[1:4])
address, session = (sys.argv[4], int(sys.argv[5])) if len(sys.argv) > 4 else (None, 0)
tokenizer = PieceTokenizer.from_pretrained(folder / "tokenizer")

def build():
    work = _tokenizing(tokenizer, (2, 3), 0.1)

    def killing(blobs):
        if session and os.getsid(0) == session:  # this node is to die, with all its processes
            marker.write_text(str(os.getpid()))
            kill_session(session)
        while session and not marker.exists():  # the other node waits until it has died
            time.sleep(0.02)
        if not marker.exists() and blobs[0][0].endswith("064.png"):  # the second chunk
            marker.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return work(blobs)

    return killing

parts = spread(partial(chunks, [folder / "images"]), build, address)
write_tokens([folder / "images"], tokenizer, out, grid=(2, 3), gap=0.1, parts=parts)
"""


def killed_in_tokenize(corpus, folder, *cluster):
    """Tokenise while a worker, or the node of this session, is killed; tokens must be equal."""
    out, marker = folder / "two.npy", folder / "killed"
    done = subprocess.run(
        [sys.executable, "-c", KILLER, corpus, out, marker, *map(str, cluster)],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **TOKEN},
    )
    assert done.returncode == 0, done.stderr
    state = Path(f"/proc/{marker.read_text()}/stat")  # a dead process stays until it is waited for
    assert not state.exists() or ") Z " in state.read_text()
    same_files(corpus, out)


def test_a_worker_killed_in_tokenize_changes_nothing(corpus, tmp_path):
    """Also: without an address a cluster on this machine's cores is started, and ended."""
    killed_in_tokenize(corpus, tmp_path)


def test_a_node_killed_in_tokenize_changes_nothing(corpus, tmp_path):
    with nodes([1, 1], {**os.environ, **TOKEN}) as (address, (_, second)):
        killed_in_tokenize(corpus, tmp_path, address, second.pid)
        assert second.wait(30) == -signal.SIGKILL


def test_evaluate_on_a_cluster_equals_one_process(corpus, address, tmp_path):
    results = []
    for name, more in (("one", ()), ("two", ("--engine", "ray", "--address", address))):
        command(
            "evaluate",
            "--images",
            "images",
            "--solver",
            "bigram",
            "--limit",
            70,
            "-o",
            tmp_path / name,
            *more,
            cwd=corpus,
        )
        results.append(json.loads((tmp_path / name).read_text()))
        assert results[-1].pop("seconds_per_puzzle") > 0
        assert all(record.pop("seconds") > 0 for record in results[-1]["outcomes"])
        assert not (tmp_path / f"{name}.partial.jsonl").exists()
    assert results[0] == results[1]
    assert results[0]["puzzles"] == 70 and results[0]["failed"] == 0


def test_errors_are_one_line(corpus, address, tmp_path):
    """Also those that happen in a worker, and in the task that reads."""
    (tmp_path / "broken.png").write_bytes(b"no picture")
    out = ("--tokenizer", corpus / "tokenizer", "-o", tmp_path / "t.npy", "--engine", "ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    for source, where, words in (
        (tmp_path / "broken.png", address, "broken.png: not an image that can be read"),
        (tmp_path / "nowhere", address, "nowhere: no such file or folder"),
        (corpus / "images", nobody, f"address {nobody}: no Ray cluster answers there"),
        (corpus / "images", "auto", "address 'auto': write HOST:PORT"),
    ):
        done = command("tokenize", source, *out, "--address", where, code=2)
        assert done.stderr.startswith("puzlm: ") and words in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "t.npy").exists()


MY_OWN = """
import os, signal, time
from pathlib import Path

def solve(pieces, grid):
    Path(f"session-{os.getsid(0)}").touch()
    if Path("deadly").exists() and not Path("killed").exists():
        Path("killed").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    if Path("slow").exists():
        time.sleep(0.05)
    return range(grid[0] * grid[1])
"""


def seen(folder, node):
    """Wait until a node has begun to work."""
    deadline = time.monotonic() + 120
    while not (folder / f"session-{node.pid}").exists():
        assert time.monotonic() < deadline, list(folder.iterdir())
        time.sleep(0.02)


def alike(*paths):
    """Results files without their seconds."""
    results = [json.loads(path.read_text()) for path in paths]
    for result in results:
        assert result.pop("seconds_per_puzzle") > 0
        assert all(record.pop("seconds") > 0 for record in result["outcomes"])
    return results


def test_a_model_folder_of_ones_own_is_sent(corpus, address, tmp_path):
    """The worker solves with what it was sent: on its own machine the folder may not be there."""
    own = tmp_path / "own"
    own.mkdir()
    for name in ("tokenizer", "sides"):
        for kind in ("json", "safetensors"):
            shutil.copy(BOX / "puzlm-3x3" / f"{name}.{kind}", own)
    rules = ["evaluate", "--images", corpus / "images", "--model", "own", "--solver", "bigram"]
    ray = ["--engine", "ray", "--address", address]
    command(*rules, "--limit", 9, "-o", "one", cwd=tmp_path)
    command(*rules, "--limit", 9, "-o", "two", *ray, cwd=tmp_path)
    one, two = alike(tmp_path / "one", tmp_path / "two")
    assert one == two and one["failed"] == 0
    work = ray_engine.Solving("bigram", str(own), "valid", None)
    shutil.rmtree(own)
    solve = ray_engine._answering("bigram", str(own), "valid", work.sent, work.digests)
    assert solve(([], [])) == ([], [])


def test_other_versions_or_models_on_a_node_are_refused():
    wanted = ray_engine.versions()
    assert wanted["puzlm"] and wanted["numpy"]
    assert ray_engine._inside(".", wanted, lambda: 5) == 5
    with pytest.raises(PuzlmError, match=r"has puzlm .*, the driver 0\.0\.9; install the same"):
        ray_engine._inside(".", {**wanted, "puzlm": "0.0.9"}, lambda: 5)
    with pytest.raises(PuzlmError, match="its shipped models are not those of the driver"):
        ray_engine._answering("auto", None, "valid", {}, {"vision/vision.onnx": "another"})


def test_a_worker_killed_in_evaluate_changes_nothing(corpus, address, tmp_path):
    (tmp_path / "my_own.py").write_text(MY_OWN)
    rules = ["evaluate", "--images", corpus / "images", "--solver", "my_own:solve", "-o"]
    command(*rules, tmp_path / "one", cwd=tmp_path)
    (tmp_path / "deadly").touch()
    command(*rules, tmp_path / "two", "--engine", "ray", "--address", address, cwd=tmp_path)
    assert not os.path.exists(f"/proc/{(tmp_path / 'killed').read_text()}")
    one, two = alike(tmp_path / "one", tmp_path / "two")
    assert one == two and one["failed"] == 0


def test_a_node_killed_in_evaluate_changes_nothing(corpus, cluster, tmp_path):
    """The last test of this cluster: one of its two nodes is killed in the middle of `evaluate`."""
    address, (_, second) = cluster
    (tmp_path / "my_own.py").write_text(MY_OWN)
    rules = ["evaluate", "--images", corpus / "images", "--solver", "my_own:solve", "-o"]
    command(*rules, tmp_path / "one", cwd=tmp_path)
    (tmp_path / "slow").touch()
    ray = ["--engine", "ray", "--address", address]
    running = subprocess.Popen(
        [sys.executable, "-m", "puzlm", *map(str, [*rules, tmp_path / "two", *ray])],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **TOKEN},
        text=True,
    )
    seen(tmp_path, second)
    assert running.poll() is None
    kill(second)
    _, said = running.communicate(timeout=150)
    assert running.returncode == 0, said
    one, two = alike(tmp_path / "one", tmp_path / "two")
    assert one == two and one["puzzles"] == 2 * CHUNK + 5


def test_missing_ray_names_the_extra(corpus, tmp_path):
    code = "import sys; sys.modules['ray'] = None; from puzlm.cli.main import main; main()"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "tokenize",
            corpus / "images",
            "--tokenizer",
            corpus / "tokenizer",
            "-o",
            tmp_path / "t.npy",
            "--engine",
            "ray",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == "puzlm: this needs ray: pip install 'puzlm[ray]'\n"


def test_engine_and_address_must_fit(corpus, tmp_path):
    common = ("tokenize", corpus / "images", "--tokenizer", corpus / "tokenizer", "-o", "t.npy")
    done = command(*common, "--engine", "spark", code=2)
    assert "--engine spark: must be single or ray" in done.stderr
    done = command(*common, "--address", "localhost:6379", code=2)
    assert "only --engine ray" in done.stderr
