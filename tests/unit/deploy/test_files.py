"""The Dockerfile and the unit of systemd name what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from radixlm.cli.model_commands import serve

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
UNIT = (ROOT / "deploy" / "radixlm.service").read_text()
FLAGS = {flag for option in serve.params for flag in option.opts}


def steps(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", DOCKERFILE, re.MULTILINE)


def test_what_the_image_runs_is_a_command_of_ours() -> None:
    program, subcommand, *flags = json.loads(steps("ENTRYPOINT")[-1])
    assert (program, subcommand) == ("radixlm", "serve")
    assert set(flags) & FLAGS == {"--host"}


def test_the_image_asks_where_the_server_listens() -> None:
    (port,) = {option.default for option in serve.params if option.name == "port"}
    assert f"127.0.0.1:{port}/health" in DOCKERFILE
    assert steps("EXPOSE") == [str(port)]


def test_the_image_runs_as_nobody_in_particular() -> None:
    (user,) = steps("USER")
    assert int(user) > 0
    assert f"--uid {user} " in DOCKERFILE


def test_what_is_copied_into_the_image_is_there_and_not_left_out() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ignored[0] == "*"
    for step in steps("COPY"):
        for source in step.split()[:-1] if "--from" not in step else ():
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored


def test_the_unit_runs_a_command_of_ours() -> None:
    (command,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    _, subcommand, *flags = command.split()
    assert subcommand == "serve"
    assert {flag for flag in flags if flag.startswith("--")} <= FLAGS


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd's own check")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "radixlm.service"
    unit.write_text(UNIT.replace("/opt/radixlm/bin/radixlm", sys.executable))
    command = [str(shutil.which("systemd-analyze")), "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("hadolint"), reason="needs hadolint")
def test_hadolint_has_nothing_to_say() -> None:
    command = [str(shutil.which("hadolint")), str(ROOT / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    assert (done.returncode, done.stdout) == (0, "")
