"""Put results files of `puzlm evaluate` among the published ones: a summary each, answers packed.

    python -m tools.pack_results runs/jpwleg-3.auto.json ...   # named PROTOCOL.SOLVER.json

`puzlm compare results/*.json` reads both kinds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from puzlm.harness.results_files import pack, read_results

RESULTS = Path(__file__).parents[1] / "results"

if __name__ == "__main__":
    pack(RESULTS, {Path(name).stem: read_results(name) for name in sys.argv[1:]})
