"""Results files: one by itself as `evaluate` writes it, or a summary beside packed answers.

A folder of results holds PROTOCOL.SOLVER.json, a summary of a few kB, and answers/PROTOCOL.json.xz,
the answers of all solvers to that protocol. One archive a protocol, because the solvers were asked
the same puzzles: their names, digests and truths are stored once, in effect.
"""

from __future__ import annotations

import json
import lzma
import typing
from pathlib import Path
from typing import Any

from puzlm.errors import PuzlmError
from puzlm.files import as_record, parse_json, read_json, write_bytes
from puzlm.harness.evaluate import VERSION
from puzlm.metrics import MEASURES

LARGEST = 1 << 30  # bytes of answers in one archive: a small file cannot fill the memory


def read_results(path: str | Path) -> dict[str, Any]:
    """Read a results file of this version, with its answers."""
    record = _read_record(Path(path))
    if "outcomes" not in record and "answers" in record:
        record["outcomes"] = _own(_unpacked(_archive(Path(path), record)), Path(path))
    return _whole(record, Path(path))


def read_folder(folder: str | Path) -> dict[str, dict[str, Any]]:
    """Read all results of a folder by their stems, each archive once."""
    results = {}
    archives: dict[Path, dict[str, Any]] = {}
    for path in sorted(Path(folder).glob("*.json")):
        record = _read_record(path)
        if "outcomes" not in record and "answers" in record:
            archive = _archive(path, record)
            if archive not in archives:
                archives = {archive: _unpacked(archive)}  # the files of a protocol come in a row
            record["outcomes"] = _own(archives[archive], path)
        results[path.stem] = _whole(record, path)
    return results


def pack(folder: str | Path, results: dict[str, dict[str, Any]]) -> None:
    """Write results, by the stem PROTOCOL.SOLVER, as summaries and archives into a folder.

    Answers of other solvers in the same archives stay. Archives are written first: a summary never
    names answers that are not there.
    """
    protocols = {stem.rsplit(".", 1)[0] for stem in results}
    for protocol in sorted(protocols):
        archive = Path(folder) / "answers" / f"{protocol}.json.xz"
        archive.parent.mkdir(parents=True, exist_ok=True)
        answers = _unpacked(archive) if archive.is_file() else {}
        mine = {s: r for s, r in results.items() if s.rsplit(".", 1)[0] == protocol}
        answers.update((stem, result["outcomes"]) for stem, result in mine.items())
        write_bytes(archive, lzma.compress(json.dumps(dict(sorted(answers.items()))).encode()))
        for stem, result in mine.items():
            summary = {key: value for key, value in result.items() if key != "outcomes"}
            summary["answers"] = f"answers/{archive.name}"
            write_bytes(Path(folder) / f"{stem}.json", (json.dumps(summary) + "\n").encode())


def _read_record(path: Path) -> dict[str, Any]:
    record = read_json(path)
    if (version := record.get("version")) is None:
        raise PuzlmError(f"{path}: not a results file")
    if version != VERSION:
        raise PuzlmError(
            f"{path}: a results file of version {version!r:.40}, this PuzLM reads "
            f"{VERSION}; evaluate again"
        )
    return record


def _whole(record: dict[str, Any], path: Path) -> dict[str, Any]:
    needed = {"protocol", "solver", "data", "puzzles", "outcomes", *MEASURES}
    if missing := needed - set(record):
        raise PuzlmError(f"{path}: not a results file (no {', '.join(sorted(missing))})")
    return record


def _archive(path: Path, record: dict[str, Any]) -> Path:
    """The archive of a summary; it lies below the summary's folder, wherever the summary points."""
    return path.parent / "answers" / Path(str(record["answers"])).name


def _own(answers: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    if path.stem not in answers:
        raise PuzlmError(f"{path}: its archive holds no answers of {path.stem}")
    return typing.cast(list[dict[str, Any]], answers[path.stem])


def _unpacked(archive: Path) -> dict[str, Any]:
    try:
        with lzma.open(archive) as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ValueError("too large")
    except (OSError, ValueError, EOFError, lzma.LZMAError) as error:
        raise PuzlmError(f"{archive}: answers cannot be read ({error})") from error
    return as_record(parse_json(text, archive), archive)
