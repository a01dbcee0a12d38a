"""Work on a corpus spread over processes and machines: a Ray Data pipeline over plain functions.

    read (one task, on this machine) -> chunks -> tasks on every core there is -> results, in order

Chunks, functions and order are those of a single process, so the results are equal to its. A chunk
is read when there is room for it: memory does not grow with the corpus. When a worker dies, Ray
gives its chunk to another. Every machine needs puzlm[ray]; the corpus is read on this one only.
"""

from __future__ import annotations

import logging
import os
import pickle
import platform
import re
import socket
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from puzlm import __version__, manifest
from puzlm.errors import PuzlmError, SettingsError, missing
from puzlm.files import temporary
from puzlm.puzzle import Grid
from puzlm.solver import files_of, load_solver, model_folders
from puzlm.tokenizer.piece_tokenizer import PieceTokenizer
from puzlm.tokenizer.token_files import Tokens, chunks, tokenize_blobs

Chunk = Any
Result = Any
Work = Callable[[Chunk], Result]

PATIENCE = 5  # seconds to wait for a cluster to answer
RETRIES = 3  # workers that one chunk may outlive; left alone, Ray would try for ever


class ClusterError(PuzlmError):
    """A Ray cluster that cannot be reached, or that a piece of work keeps killing."""


def tokenize(
    sources: Sequence[str | Path],
    tokenizer: PieceTokenizer,
    grid: Grid,
    gap: float,
    limit: int | None = None,
    address: str | None = None,
) -> Iterator[Tokens]:
    """Tokens of a corpus, part by part, for `write_tokens(parts=...)`."""
    read = partial(chunks, sources, limit)
    return spread(read, partial(_tokenizing, tokenizer, grid, gap), address)


def _tokenizing(tokenizer: PieceTokenizer, grid: Grid, gap: float) -> Work:
    return lambda blobs: tokenize_blobs(blobs, tokenizer, grid, gap)


class Solving:
    """A solver for `evaluate(spread=True)`: every process loads it for itself.

    A model folder of one's own is sent to the workers; of a shipped one they must hold the same
    files.
    """

    def __init__(self, solver: str, model: str | None, decoding: str, address: str | None) -> None:
        self.solver, self.model, self.decoding, self.address = solver, model, decoding, address
        folders = model_folders(solver, model)
        self.digests = manifest.of_folders(folders)
        self.sent: dict[str, bytes] = {}
        if model is not None and folders and folders[0].resolve().parent != manifest.BOX:
            names = [*manifest.digests(folders[0]), manifest.NAME]
            paths = [folders[0] / name for name in names]
            self.sent = {path.name: path.read_bytes() for path in paths if path.exists()}

    def files(self) -> dict[str, str]:
        """SHA-256 of every file that its answers depend on; see evaluate."""
        own = ":" in self.solver  # a function of the user's: evaluate notes its source file
        return {} if own else files_of(model_folders(self.solver, self.model))

    def __call__(self, read: Callable[[], Iterable[Chunk]]) -> Iterator[Result]:
        work = partial(_answering, self.solver, self.model, self.decoding, self.sent, self.digests)
        return spread(read, work, self.address)


def _answering(
    solver: str, model: str | None, decoding: str, sent: dict[str, bytes], digests: dict[str, str]
) -> Work:
    """Load a solver in a worker, from the files that were sent or from this machine's own."""
    from puzlm.harness.evaluate import replying

    if not sent:
        if manifest.of_folders(model_folders(solver, model)) != digests:
            raise ClusterError(
                f"node {socket.gethostname()}: its shipped models are not those of the driver; "
                "install the same puzlm everywhere"
            )
        return replying(load_solver(solver, model, decoding))
    # A folder of this name and no other: answers may name it.
    with temporary(Path(tempfile.gettempdir()) / "puzlm-model", folder=True) as part:
        folder = part / Path(str(model)).resolve().name
        folder.mkdir()
        for name, data in sent.items():
            (folder / name).write_bytes(data)
        loaded = load_solver(solver, str(folder), decoding)
    return replying(loaded)


def versions() -> dict[str, str]:
    """What must be equal on every machine, or results would depend on where a chunk went."""
    found = {"puzlm": __version__, "python": platform.python_version()}
    for name in ("numpy", "pillow", "scipy", "onnxruntime", "torch"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def spread(
    read: Callable[[], Iterable[Chunk]], build: Callable[[], Work], address: str | None = None
) -> Iterator[Result]:
    """Results of the work on every chunk, in order: `map(build(), read())` on many cores.

    Both callables are pickled. `read` is called once, on this machine; `build` once a process.
    """
    with _cluster(address) as ray:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = context.print_on_execution_start = False
        context.target_max_block_size = 1  # a chunk is a block: else small ones wait for more
        build, read = (partial(_inside, os.getcwd(), versions(), x) for x in (build, read))
        kept, key = ray.put(build), uuid.uuid4().hex
        rows = ray.data.read_datasource(_source(ray.data, read), num_cpus=0)
        with warnings.catch_warnings():  # Ray 2.64 will have another word for max_retries
            warnings.simplefilter("ignore", DeprecationWarning)
            rows = rows.map(_Task(kept, key), num_cpus=1, max_retries=RETRIES)
        try:
            for number, row in enumerate(rows.iter_rows()):
                found = pickle.loads(row["data"])
                if isinstance(found, Exception):
                    raise found
                assert row["number"] == number, "Ray changed the order of the parts"
                yield found
        except ray.exceptions.RayError as error:
            raise ClusterError(f"ray: {_last_line(error)}") from error


class _Task:
    """What a worker does with a chunk. An error of the user's is a result, not a crash."""

    works: dict[str, Work] = {}  # of this process: a model is loaded once, not for every chunk

    def __init__(self, build: Any, key: str) -> None:
        self.build, self.key = build, key

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        import ray

        found = pickle.loads(row["data"])
        if not isinstance(found, Exception):
            try:
                if self.key not in _Task.works:
                    _Task.works.clear()
                    _Task.works[self.key] = ray.get(self.build)()
                found = _Task.works[self.key](found)
            except PuzlmError as error:
                found = error
        return {"number": row["number"], "data": pickle.dumps(found)}


def _source(data: Any, read: Callable[[], Iterable[Chunk]]) -> Any:
    """A Ray Data source of one task, which yields a row for each chunk."""

    def rows() -> Iterator[Any]:
        import pyarrow

        for number, chunk in enumerate(_with_error(read)):
            yield pyarrow.table({"number": [number], "data": [pickle.dumps(chunk)]})

    class Chunks(data.Datasource):  # type: ignore[misc]
        supports_distributed_reads = False  # other machines need not see the corpus

        def estimate_inmemory_data_size(self) -> None:
            return None

        def get_read_tasks(self, *_: Any, **__: Any) -> list[Any]:
            return [data.ReadTask(rows, data.block.BlockMetadata(None, None, None, None))]

    return Chunks()


def _inside(folder: str, wanted: dict[str, str], function: Callable[[], Any]) -> Any:
    """Call a function in the folder the command was given in, where this machine has it."""
    here = versions()
    if different := [name for name in wanted if here.get(name) != wanted[name]]:
        name = different[0]
        raise ClusterError(
            f"node {socket.gethostname()}: has {name} {here.get(name, 'not at all')}, the driver "
            f"{wanted[name]}; install the same versions everywhere"
        )
    if os.path.isdir(folder):
        os.chdir(folder)
    return function()


def _with_error(read: Callable[[], Iterable[Chunk]]) -> Iterator[Chunk]:
    try:
        yield from read()
    except PuzlmError as error:
        yield error


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Join a cluster, or start one on this machine's cores for the length of a block."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _check(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or Ray reports to its makers
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise missing(error) from error
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its tracebacks are raised, too
    more = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", **more)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        # Ray sends its token to no address unless it is told to.
        hint = "" if address == "local" else "; if it asks for a token, set RAY_AUTH_MODE=token"
        raise ClusterError(f"address {address}: {_last_line(error)}{hint}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check(address: str) -> None:
    """Knock at the door: Ray itself tries for many minutes, and `auto` may find a dead cluster."""
    if address == "local":
        return
    match = re.fullmatch(r"([^/]+):(\d+)", address)
    if not match:
        raise SettingsError(f"address '{address}': write HOST:PORT of the cluster's head")
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"address {address}: no Ray cluster answers there ({error})") from error


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
