"""The name of the processor that figures are of."""

from __future__ import annotations

import re
from pathlib import Path


def processor() -> str:
    """The processor's name, by Linux."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return found[1] if found else "unknown processor"
