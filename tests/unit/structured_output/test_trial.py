"""The process that tries grammars runs no code but ours, wherever the server was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import radixlm
from radixlm.core.grammar import Grammar
from radixlm.structured_output.matcher import Table
from radixlm.structured_output.trial import Trial
from tests.engines import byte_tokenizer

# A module of its own, one of Python's, one of a library's, and ours.
TRAPS = ("llguidance.py", "pickle.py", "numpy.py", "radixlm/__init__.py", "sitecustomize.py")
ROOT = Path(__file__).parents[3]
TRIES = """
from radixlm.structured_output.matcher import Table
from radixlm.structured_output.trial import Trial
from radixlm.core.grammar import Grammar
from tests.engines import byte_tokenizer

trial = Trial(Table.of(byte_tokenizer(), 256, (0,)))
trial.check(Grammar.regex("a"))
trial.close()
"""


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A folder as a stranger's checkpoint may be; `caught` lies in it once its code has run."""
    folder = tmp_path / "model"
    for name in TRAPS:
        trap = folder / name
        trap.parent.mkdir(parents=True, exist_ok=True)
        trap.write_text(f"open({str(folder / 'caught')!r}, 'w')\n")
    return folder


@pytest.mark.parametrize("entry", [None, "", "."], ids=["a console script", "a prompt", "relative"])
def test_the_working_directory_is_no_place_for_code(
    trapped: Path, entry: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trapped)
    monkeypatch.setattr(sys, "path", [*([] if entry is None else [entry]), *sys.path])
    trial = Trial(Table.of(byte_tokenizer(), 256, (0,)))
    trial.check(Grammar.regex("a"))
    trial.close()
    assert not (trapped / "caught").exists()


@pytest.mark.slow
def test_it_finds_our_modules_where_this_process_does(tmp_path: Path) -> None:
    """As users of a checkout start it: a relative PYTHONPATH that nothing was installed into."""
    program = tmp_path / "tries.py"
    program.write_text(TRIES)
    places = [Path(radixlm.__file__).parents[1], ROOT]
    relative = os.pathsep.join(os.path.relpath(place, tmp_path) for place in places)
    environment = {**os.environ, "PYTHONPATH": relative}
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(program)], cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0
