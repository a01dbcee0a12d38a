"""Solvers of others, asked the same puzzles: `puzlm evaluate --solver peers.NAME:solve`.

Each module is an adapter to a checkout that the variable PEER_DIR names. None of their code is
here; docs/peers.md says what each needs, how it is licensed, and what was changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from puzlm.errors import SettingsError


@dataclass(frozen=True)
class Peer:
    """A public solver: where it comes from, and the commit that our rows were made with."""

    name: str
    repository: str
    commit: str
    needs: str  # a file of the checkout

    def checkout(self) -> Path:
        """The folder of PEER_DIR, made sure to be this solver's; another commit is named."""
        named = os.environ.get("PEER_DIR")
        if not named:
            raise SettingsError(
                f"peers.{self.name}: set PEER_DIR to a checkout of github.com/{self.repository}"
            )
        folder = Path(named).absolute()
        if not (folder / self.needs).is_file():
            raise SettingsError(
                f"PEER_DIR={named}: no checkout of github.com/{self.repository} "
                f"(there is no {self.needs})"
            )
        if (commit := commit_of(folder)) != self.commit:
            print(
                f"peers.{self.name}: the checkout is at {commit or 'an unknown commit'}; "
                f"the published rows were made with {self.commit}",
                file=sys.stderr,
            )
        return folder

    def about(self, folder: Path) -> dict[str, str | None]:
        """What a results file says of the solver."""
        return {"repository": self.repository, "commit": commit_of(folder)}


def commit_of(folder: Path) -> str | None:
    """The commit of a checkout, None if git does not know it."""
    asked = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()


def needed(name: str, error: ImportError) -> SettingsError:
    """Say which module a peer wants that is not installed."""
    return SettingsError(f"peers.{name}: its code needs {error.name}; install it beside PuzLM")
