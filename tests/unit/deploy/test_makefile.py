"""What `make` installs, and when. Its python and its pip only write down what they are asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOR_CPUS = "https://download.pytorch.org/whl/cpu"
# Fails where its words hold a line of `refused`. A venv gets a copy of it under each name.
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin"
    for name in python radixlm; do cp "$0" "$3/bin/$name"; done
fi
! echo "$*" | grep --quiet --fixed-strings --file={refused}
"""

# What runs at the end of a target; its environment.
RUNS = {
    "serve": ("radixlm serve", ".venv"),
    "clients": ("python scripts/clients.py", ".venv-clients"),
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="where PyPI's torch brings CUDA")


class Clone:
    """A folder with the Makefile, in which nothing is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder / "clone", folder / "log"
        self.refused, self.programs = folder / "refused", folder / "programs"
        for each in (self.folder, self.programs):
            each.mkdir()
        for name in ("Makefile", "constraints.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, self.folder)
        self.refuse("no such words")
        self.program("nvidia-smi", "#!/bin/sh\nexit 9\n")
        self.program("python3", PROGRAM.format(log=self.log, refused=self.refused))

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def refuse(self, *words: str) -> None:
        self.refused.write_text("".join(f"{each}\n" for each in words))

    def make(self, target: str) -> list[str]:
        """The commands of programs that were run for it."""
        self.log.write_text("")
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        command = [shutil.which("make"), "--silent", target, "PYTHON=python3"]
        subprocess.run(command, cwd=self.folder, env={"PATH": path}, check=True)  # noqa: S603
        return [line.rstrip() for line in self.log.read_text().splitlines()]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def torches(commands: list[str]) -> list[bool]:
    """Of each time that a torch for CPUs was asked for: whether of PyTorch's own index."""
    return [FOR_CPUS in command for command in commands if "+cpu" in command]


def test_serving_installs_what_serving_needs_once(clone: Clone) -> None:
    commands = clone.make("serve")
    assert commands[-2].endswith("--constraint constraints.txt --no-build-isolation --editable .")
    assert commands[-1] == "radixlm serve"
    assert not any("dev" in command for command in commands)
    assert clone.make("serve") == ["radixlm serve"]


def test_testing_installs_the_rest(clone: Clone) -> None:
    served = clone.make("serve")[:-1]
    rest, run = clone.make("test")
    assert rest.endswith("--editable .[dev,bench]")
    assert run.split(" -n ")[0] == "python -m pytest"
    shutil.rmtree(clone.folder / ".venv")
    assert clone.make("test") == [*served, rest, run]


@pytest.mark.parametrize("target", RUNS)
@pytest.mark.parametrize(
    ("refused", "asked"),
    [
        pytest.param([], [False], id="the usual index has it"),
        pytest.param(["--no-deps torch"], [False, True], id="only PyTorch's has it"),
        pytest.param(["--no-deps"], [False, True], id="there is none"),
    ],
)
def test_without_a_gpu_torch_comes_without_cuda(
    target: str, refused: list[str], asked: list[bool], clone: Clone
) -> None:
    clone.refuse(*refused, "no such words")
    commands = clone.make(target)
    assert torches(commands) == asked
    assert commands[-1] == RUNS[target][0]


@pytest.mark.parametrize("target", RUNS)
def test_with_a_gpu_torch_is_the_ordinary_one(target: str, clone: Clone) -> None:
    clone.program("nvidia-smi", "#!/bin/sh\n")
    assert torches(clone.make(target)) == []


@pytest.mark.parametrize("target", RUNS)
def test_a_torch_that_is_there_stays(target: str, clone: Clone) -> None:
    pins = (clone.folder / "constraints.txt").read_text().split()
    version = next(pin for pin in pins if pin.startswith("torch==")).removeprefix("torch==")
    packages = clone.folder / RUNS[target][1] / "lib" / "python3.11" / "site-packages"
    (packages / f"torch-{version}+xpu.dist-info").mkdir(parents=True)
    assert torches(clone.make(target)) == []
