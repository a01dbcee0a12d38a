"""The shredder's strips of thiagopx/deeprec-cvpr20 (CVPR 2020), with the weights of its repository.

It takes scans of real strips at 300 pixels an inch. The path through its distances is found here
(exactly, as Concorde finds it for the authors): Concorde cannot be installed from packages.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from typing import Any

import numpy as np

from peers import Peer, needed
from peers.shortest_path import shortest_path
from puzlm.pieces.strips import Strip

PEER = Peer(
    "deeprec",
    "thiagopx/deeprec-cvpr20",
    "74fa173e75f96ceb5a3f027489325cbd9675db1a",
    "docrec/compatibility/proposed.py",
)
MODEL = "cdip_0.2_1000_32x64_128_fire3_1.0_0.1"  # the default of its demo, and these settings, too
INPUT = (3000, 64)
SHIFT = 10
FEATURES = 128
LAYER = "fire3"

_folder = PEER.checkout()
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # its layers are those of TensorFlow 1
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(_folder))
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("tf_keras")  # TensorFlow would only say that a layer is gone
        from docrec.compatibility.proposed import Proposed
        from docrec.strips import Strip as TheirStrip
        from docrec.strips import Strips
except ImportError as error:
    raise needed("deeprec", error) from error


def _network() -> Any:
    trained = _folder / "traindata" / MODEL
    facts = json.loads((trained / "info.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Proposed(
            str(_folder / facts["best_model_left"]),
            str(_folder / facts["best_model_right"]),
            SHIFT,
            INPUT,
            feat_dim=FEATURES,
            feat_layer=LAYER,
            activation="sigmoid",
            sample_height=facts["sample_height"],
            thresh_method="sauvola",
        )


_net = _network()


def solve(strips: list[Strip]) -> list[int]:
    """Strips in any order -> their numbers from left to right."""
    theirs = Strips(path=None)
    theirs.strips = [
        TheirStrip(strip.pixels.copy(), number, (strip.paper * np.uint8(255)))
        for number, strip in enumerate(strips)
    ]
    return shortest_path(_net.run(theirs).compatibilities)


_settings = f"{MODEL}, vertical shift of {SHIFT}; the path by an integer program, not Concorde"
solve.about = PEER.about(_folder) | {"settings": _settings}  # type: ignore[attr-defined]
