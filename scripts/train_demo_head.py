"""Trains the draft head of the embedded demo model, which has to be there.

    python scripts/train_demo_head.py               # a quarter of an hour on two cores
    python scripts/train_demo_head.py --steps 500

This file only prepares the process; the work is in `scripts/demo_model/draft_head.py`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500, help="of 2,048 tokens (default 1500)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=ROOT / "src" / "radixlm" / "demo_model")
    parser.add_argument("--out", type=Path, help="folder of the head (default: eagle3 in --model)")
    args = parser.parse_args()
    # Before torch is loaded: threads that wait soon sleep, so that a shared machine is no stall.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    sys.path.insert(0, str(ROOT))
    draft_head = importlib.import_module("scripts.demo_model.draft_head")
    out = args.out or args.model / "eagle3"
    print(draft_head.trained(args.model, out, args.steps, args.seed))


if __name__ == "__main__":
    main()
