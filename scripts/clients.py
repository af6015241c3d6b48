"""Let clients that nobody here wrote use a server with the demo model, and say what came of it.

    make clients                                     # installs them first
    python scripts/clients.py [--examples 10] [--only openai ...]

Ends in a table and one JSON line; exits with 1 when something is not as it should be.
docs/history/clients.md has the last table, docs/clients.md what each client needs.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    runpy.run_module("scripts.try_clients.main", run_name="__main__", alter_sys=True)
