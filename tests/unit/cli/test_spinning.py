"""How long the command's threads wait awake: what libgomp says that it took."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from radixlm.core.processors import bound_spinning

PROGRAM = [sys.executable, "-c", "from radixlm.cli import main; main()"]
OURS: dict[str, str] = {}
bound_spinning(OURS)


@pytest.mark.slow  # torch is imported, by whose libgomp it is said
@pytest.mark.skipif(sys.platform != "linux", reason="torch brings another OpenMP")
@pytest.mark.parametrize(
    ("users", "spins"),
    [
        ({}, OURS["GOMP_SPINCOUNT"]),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "passive"}, "0"),
    ],
)
def test_spinning_is_bounded_unless_the_user_says_how(users: dict[str, str], spins: str) -> None:
    mine = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    plain = {name: value for name, value in os.environ.items() if name not in mine}
    done = subprocess.run(  # noqa: S603
        [*PROGRAM, "generate", "--max-tokens", "1", "Hello"],
        env={**plain, "OMP_DISPLAY_ENV": "verbose", **users},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)) == {spins}
