"""Make the clean test sets: original files of public repositories, byte for byte, in tars.

    python tools/clean_sets.py OUT SNAPSHOTS [SET ...]

SNAPSHOTS holds a clone of each repository that `clean_sets.json` names, as OWNER+NAME (a work tree,
a bare git folder, or a folder with a bare git folder `repo`). A set lists the files by a pattern of
their paths. Files are taken in the order of a hash of their path, so that the first hundred are a
fair sample. Those that cannot be read, are too small, or stand in `clean_sets_left_out.txt` are
left out. Nothing is scaled and nothing compressed again.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent


def git_folder(snapshots: Path, repository: str) -> Path:
    """Find the git folder of a snapshot."""
    folder = snapshots / repository.replace("/", "+")
    for place in (folder, folder / ".git", folder / "repo"):
        if (place / "HEAD").exists():
            return place
    sys.exit(f"{folder}: no clone of github.com/{repository}; make one there first")


def listed(git: Path, commit: str, pattern: str) -> list[tuple[str, str, Path]]:
    """List the files of a snapshot whose path matches: (path, blob, git folder)."""
    command = ["git", "--git-dir", str(git), "ls-tree", "-r", "-z", commit]
    listing = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    entries = [line.split(maxsplit=3) for line in listing.split("\0") if line]
    return [(path, blob, git) for _, _, blob, path in entries if re.fullmatch(pattern, path)]


def pack(out: Path, snapshots: Path, name: str) -> None:
    """Write one set."""
    recipe = json.loads((HERE / "clean_sets.json").read_text())[name]
    left_out = set((HERE / "clean_sets_left_out.txt").read_text().split())
    least = recipe["least_side"]
    files = []
    for source in recipe["sources"]:
        git = git_folder(snapshots, source["repository"])
        files += listed(git, source["commit"], source["files"])
    files.sort(key=lambda file: hashlib.sha256(file[0].encode()).digest())
    kept = 0
    partial = out / f"{name}.tar.partial"
    with tarfile.open(partial, "w") as tar:
        for path, blob, git in files:
            command = ["git", "--git-dir", str(git), "cat-file", "blob", blob]
            data = subprocess.run(command, capture_output=True).stdout  # nothing if it is not there
            if hashlib.sha256(data).hexdigest()[:16] in left_out or not large(data, least):
                continue
            info = tarfile.TarInfo(f"{kept:05d}{Path(path).suffix.lower()}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            kept += 1
    partial.replace(out / f"{name}.tar")
    print(f"{name}.tar: {kept} originals of at least {least} px, {len(files) - kept} left out")


def large(data: bytes, least: int) -> bool:
    """Say whether a file is a picture that can be read and has `least` pixels on its short side."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if min(image.size) < least or image.format == "WEBP":  # mostly compressed anew
                return False
            image.load()
    except Exception:  # Pillow raises many kinds on damaged files
        return False
    return True


def main() -> None:
    """Make the sets named, or all."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[3:] or json.loads((HERE / "clean_sets.json").read_text()):
        pack(out, Path(sys.argv[2]), name)


if __name__ == "__main__":
    main()
