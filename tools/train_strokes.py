"""Train a network of strokes on pictures of pages: python -m tools.train_strokes PAGES OUTPUT.

PAGES is a folder of pages at 150 pixels an inch. Files whose names begin with one of --check are
kept aside, and those that begin with one of --train are trained on. A run that stopped goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from puzlm.training.train_strokes import Schedule, load_pages, train


def main() -> None:
    """Read the options, train, and print what came."""
    ask = argparse.ArgumentParser(description="Train a network of strokes on pictures of pages.")
    ask.add_argument("pages", type=Path)
    ask.add_argument("output", type=Path, help="the .safetensors to write; .state lies beside it")
    ask.add_argument("--seconds", type=float, default=420)
    ask.add_argument("--total", type=float, default=1500, help="processor seconds of the schedule")
    ask.add_argument("--rate", type=float, default=2e-3)
    ask.add_argument("--across", action="store_true", help="cuts along the lines of text")
    ask.add_argument("--train", nargs="+", required=True)
    ask.add_argument("--check", nargs="+", required=True)
    told = ask.parse_args()
    pages, aside = (
        load_pages(told.pages, names, told.across) for names in (told.train, told.check)
    )
    schedule = Schedule(told.seconds, told.total, told.rate)
    print(train(pages, aside, told.output, schedule), flush=True)


if __name__ == "__main__":
    main()
