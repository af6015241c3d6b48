"""`cd model; radixlm serve .`: nothing in a checkpoint's folder is run, or says what is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from radixlm.cli import commands as cli
from radixlm.core.errors import ModelError
from radixlm.text.model_folder import DEMO_MODEL

SETTINGS = (".env", ".netrc", "pyvenv.cfg", "matplotlibrc", "pyproject.toml")
# As the command is installed: its own folder comes first where modules are looked for.
ANSWERS = """
import json, multiprocessing, os, sys
opened = []
def heard(event, args):
    if event == "open" and not isinstance(args[0], int):  # a handle was opened by its name before
        opened.append(os.fsdecode(args[0]))
sys.addaudithook(heard)
multiprocessing.set_start_method("spawn")  # as other systems do: it starts a Python

from radixlm.cli.commands import main
sys.argv = ["radixlm", "generate", ".", "a", "--max-tokens", "2"]
try:
    main()
finally:
    names = {os.path.relpath(name) for name in opened if not name.startswith("<")}
    found = sorted(name for name in names if not name.startswith(".."))
    sys.stderr.write("\\n" + json.dumps(found))
"""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `main` sets is taken back."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setattr(sys, "argv", ["radixlm", "--version"])


def main() -> None:
    with pytest.raises(SystemExit):
        cli.main()


@pytest.mark.usefixtures("environment")
def test_a_python_that_a_library_starts_imports_nothing_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap.py").touch()
    monkeypatch.chdir(tmp_path)
    main()
    done = subprocess.run([sys.executable, "-c", "import trap"], capture_output=True, check=False)
    assert b"No module named 'trap'" in done.stderr


@pytest.mark.usefixtures("environment")
def test_numba_takes_no_settings_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".numba_config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    main()
    assert "NUMBA_... in the environment" in capsys.readouterr().err


@pytest.mark.usefixtures("environment")
def test_names_in_a_checkpoint_do_nothing_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise ModelError("it lacks\n \x1b]0;title\x07 \u202e and ü")

    monkeypatch.setattr(cli, "cli", fail)
    main()
    assert capsys.readouterr().err == ("radixlm: it lacks \\x1b]0;title\\x07 \\u202e and ü\n")


@pytest.mark.slow
def test_of_a_model_s_folder_only_the_model_s_files_are_opened(tmp_path: Path) -> None:
    """Whatever is imported, and each kind of settings file, lies there as a trap."""
    folder, program = tmp_path / "model", tmp_path / "program.py"
    shutil.copytree(DEMO_MODEL, folder)
    model_s = {path.name for path in folder.iterdir()} | {"chat_template.jinja"}
    program.write_text(ANSWERS)
    for name in {*sys.stdlib_module_names, "numpy", "torch", "tqdm", "radixlm", "sitecustomize"}:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'caught')!r}, 'w')\n")
    for name in SETTINGS:
        (folder / name).touch()
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(program)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "caught").exists()
    opened = set(json.loads(done.stderr.splitlines()[-1]))
    assert "config.json" in opened <= model_s
