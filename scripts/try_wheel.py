"""Build the wheel, and try it where nothing of this folder can help: `make wheel`.

    python -m scripts.try_wheel [--dist dist] [--borrow]

It is built from a copy of what belongs in it, so that nothing older gets in, and must hold every
file of src/radixlm. A fresh environment gets it with the versions of constraints.txt; with
--borrow it sees the packages of this one instead, which proves the same of the wheel and nothing
of its dependencies. There, in another folder, the demo model answers, and
the server shows its page.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import httpx

from radixlm.testing.ports import free_port, until_open

ROOT = Path(__file__).parent.parent
_PARTS = ("src", "pyproject.toml", "README.md", "LICENSE")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")
_GUIDES = {"radixlm/cache/README.md"}  # read here, not where it is installed
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
_PATIENCE = 120.0  # seconds
_PAGES = ("health", "ui", "ui/main.js", "ui/style.css", "openapi.json")


class WheelError(Exception):
    """What is wrong with the wheel."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the wheel goes")
    parser.add_argument("--borrow", action="store_true", help="install no dependencies")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="radixlm-wheel-") as folder:
        scratch = Path(folder)
        wheel = build(scratch, options.dist)
        environment = installed(wheel, scratch / "venv", borrow=options.borrow)
        print(answer(environment, scratch))
        show_pages(environment, scratch)
    print(f"{wheel} is whole, answers and serves")


def build(scratch: Path, dist: Path) -> Path:
    """The wheel, in `dist`. Raises WheelError where a file of the package is not in it."""
    copy = scratch / "copy"
    for part in _PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, copy / part, ignore=_LEFT_OUT)
        else:
            shutil.copy(ROOT / part, copy)
    dist.mkdir(parents=True, exist_ok=True)
    made = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(scratch), str(copy))
    subprocess.run([*_PIP, *made], check=True)
    (wheel,) = scratch.glob("*.whl")
    check(wheel, copy / "src")
    return Path(shutil.copy(wheel, dist))


def check(wheel: Path, source: Path) -> None:
    """Raise WheelError unless the wheel holds each of the package's files, and no other code."""
    files = (source / "radixlm").rglob("*")
    wanted = {str(file.relative_to(source)) for file in files if file.is_file()} - _GUIDES
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if wanted != held:
        missing, more = sorted(wanted - held), sorted(held - wanted)
        raise WheelError(f"{wheel.name} lacks {missing} and has {more} for nothing")


def installed(wheel: Path, environment: Path, *, borrow: bool) -> Path:
    """The folder of programs of a new environment with the wheel in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    programs = environment / "bin"
    more = ["--constraint", str(ROOT / "constraints.txt")]
    if borrow:
        more = ["--no-deps"]
        (packages,) = environment.glob("lib/python3*/site-packages")
        lent = [entry for entry in sys.path if entry.endswith("site-packages")]
        (packages / "lent.pth").write_text("\n".join(lent))
    subprocess.run(
        [*_PIP, "--python", str(programs / "python"), "install", *more, wheel], check=True
    )
    return programs


def answer(programs: Path, scratch: Path) -> str:
    """What the demo model says of France, asked in a folder that has nothing of ours."""
    ask = ("generate", "--temperature", "0", "--max-tokens", "8", "The capital of France is")
    command = [str(programs / "radixlm"), *ask]
    said = subprocess.run(
        command, cwd=scratch, env=_environment(), check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    if "Paris" not in said:
        raise WheelError(f"the demo model does not know the capital of France: {said!r}")
    return said.strip()


def show_pages(programs: Path, scratch: Path) -> None:
    """Raise httpx.HTTPStatusError where its server lacks its page, or what goes with it."""
    port = free_port()
    command = [str(programs / "radixlm"), "serve", "--port", str(port)]
    with subprocess.Popen(command, cwd=scratch, env=_environment()) as server:
        try:
            until_open(port, _PATIENCE)
            for page in _PAGES:
                url = f"http://127.0.0.1:{port}/{page}"
                httpx.get(url, timeout=_PATIENCE).raise_for_status()
        finally:
            server.terminate()


def _environment() -> dict[str, str]:
    """This process's, without what could lead to this folder."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


if __name__ == "__main__":
    main()
