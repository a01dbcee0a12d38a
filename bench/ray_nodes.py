"""Two Ray nodes on this machine: are results equal, also when a node dies, and what do they cost?

    python -m bench.ray_nodes -o docs/runs/ray-nodes.json

Each node has a temporary folder and resources of its own. Speed is told by two runs of different
length: what the longer one takes more is work, the rest is overhead. Use a machine that does
nothing else; its load is noted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

SHORT, LONG = 60, 600  # puzzles of the two runs


def start_node(folder: Path, cpus: int, port: int, head: bool, env: dict[str, str]) -> Any:
    """Start one node, in a session of its own so that all its processes can be killed."""
    where = ["--head", f"--port={port}"] if head else [f"--address=127.0.0.1:{port}"]
    where += ["--include-dashboard=false"] if head else []
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", *where]
    command += [f"--num-cpus={cpus}", f"--temp-dir={folder}", "--object-store-memory=100000000"]
    command += ["--node-ip-address=127.0.0.1", "--disable-usage-stats"]
    command += [f"--resources={json.dumps({folder.name: 1})}"]
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=env)


@contextmanager
def nodes(cpus: Sequence[int], env: dict[str, str]) -> Iterator[tuple[str, list[Any]]]:
    """A cluster with these numbers of cores a node: its address, and the nodes' processes."""
    with ExitStack() as stack:
        # Short: Ray's sockets lie in it, and their names have at most 107 characters.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="n", dir="/tmp")))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes: list[Any] = []
        stack.callback(lambda: kill(*processes))
        for number, count in enumerate(cpus):
            own = folder / f"node{number}"
            own.mkdir()
            processes.append(start_node(own, count, port, number == 0, env))
            for _ in range(900):
                said = (folder / f"node{number}.log").read_text()
                if "Ray runtime started" in said:
                    break
                assert processes[-1].poll() is None, said
                time.sleep(0.1)
        yield f"127.0.0.1:{port}", processes


def kill(*nodes: Any) -> None:
    """Kill nodes at once, with all their processes: asked politely they take half a minute."""
    for node in nodes:
        kill_session(node.pid)
        node.wait()


def kill_session(session: int) -> None:
    """Kill all processes of a node, that which calls last."""
    for number in [*(n for n in processes_of(session) if n != os.getpid()), os.getpid()]:
        with suppress(OSError):
            if os.getsid(number) == session:
                os.kill(number, signal.SIGKILL)


def processes_of(session: int) -> Iterator[int]:
    """Numbers of the processes of a node."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                yield int(entry.name)


def command(*arguments: Any, env: dict[str, str], cwd: Path) -> float:
    """Run `puzlm`; gives the seconds that it took."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "puzlm", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - began


def main() -> None:
    """Measure one process, one node of two cores and two nodes of one core each."""
    from puzlm.files import write_bytes
    from puzlm.harness.evaluate import current_commit
    from puzlm.images import read_image, write_image

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output.absolute()
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
    env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    folder = Path(tempfile.mkdtemp(prefix="puzlm-ray."))
    photo = read_image(Path(__file__).parents[1] / "puzlm" / "samples" / "china.jpg")
    for number in range(LONG):
        top, left = 7 * number % 130, 11 * number % 340
        write_image(folder / "i" / f"{number:03d}.png", photo[top : top + 288, left : left + 288])
    tokenize = ["tokenize", "i", "--tokenizer", "puzlm-3x3", "--erode", 0.1]
    evaluate = ["evaluate", "--images", "i", "--solver", "vision-pairs", "--seed", 1]
    record: dict[str, Any] = {"commit": current_commit(), "load": os.getloadavg()[0]}
    record |= {"puzzles": [SHORT, LONG], "runs": {}}
    for name, cpus in (("one process", []), ("1 node", [2]), ("2 nodes", [1, 1])):
        with ExitStack() as stack:
            ray: list[Any] = []
            if cpus:
                address, _ = stack.enter_context(nodes(cpus, env))
                ray = ["--engine", "ray", "--address", address]
            for kind, words, suffix in (("tokenize", tokenize, "npy"), ("evaluate", evaluate, "r")):
                seconds = []
                for limit in (SHORT, LONG):
                    out = ["--limit", limit, "-o", folder / f"{name}.{limit}.{suffix}"]
                    seconds.append(command(*words, *out, *ray, env=env, cwd=folder))
                found: dict[str, Any] = {"seconds": [round(x, 2) for x in seconds]}
                each = (seconds[1] - seconds[0]) / (LONG - SHORT)
                found["overhead_s"] = round(seconds[0] - SHORT * each, 2)
                found["puzzles_per_s"] = round(1 / each, 2)
                record["runs"][f"{kind}, {name}"] = found
                print(kind, name, found, flush=True)
    tokens = {path.read_bytes() for path in folder.glob(f"*.{LONG}.npy")}
    record["equal tokens"] = len(tokens) == 1
    write_bytes(output, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
