"""Run the programs of examples/ with SGLang's own frontend on our server, and with ours.

    make sglang-frontend                             # installs SGLang's frontend first
    python scripts/sglang_frontend.py [--python .venv-sglang/bin/python]

Ends in a table and one JSON line; exits with 1 when a result differs that should not.
docs/language.md says what is not equal, and why.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    runpy.run_module("scripts.try_sglang.main", run_name="__main__", alter_sys=True)
