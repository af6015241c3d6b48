"""Makes the embedded demo model from nothing: writes its text, trains it, measures it.

    python scripts/train_demo_model.py                  # everything, under an hour on two cores
    python scripts/train_demo_model.py --evaluate-only  # measures the folder as it is

This file only prepares the process; the work is in `scripts/demo_model/`.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # Before torch is loaded: threads that wait soon sleep, so that a shared machine is no stall.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    runpy.run_module("scripts.demo_model.main", run_name="__main__", alter_sys=True)
