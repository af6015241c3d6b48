"""What of Ray others on the machine can not reach."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.aside import Aside

pytest.importorskip("ray", reason="Ray has no wheel for this platform")
CHECK = """
import json, sys
from pathlib import Path
from radixlm.core.errors import ConfigError
from radixlm.ray.private_ray import check_token

for environment, make in json.loads(sys.argv[2]):
    try:
        print(check_token(environment, Path(sys.argv[1]), make=make))
    except ConfigError as error:
        print(error)
"""
SESSIONS = """
import sys
from radixlm.core.errors import ConfigError
from radixlm.ray.private_ray import folder_for_sessions

for _ in range(2):
    try:
        print(folder_for_sessions({"RAY_TMPDIR": sys.argv[1]}))
    except ConfigError as error:
        print(error)
"""


@pytest.mark.slow
def test_the_token_is_for_this_user_alone(aside: Aside, tmp_path: Path) -> None:
    def checked(*, make: bool = True, **environment: str) -> str:
        return aside.run(CHECK, str(tmp_path), json.dumps([(environment, make)])).strip()

    folder, token = tmp_path / ".ray", tmp_path / ".ray/auth_token"
    assert checked(make=False) == "None"
    for name, value in (("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "x")):
        assert checked(**{name: value}) == "None"
    assert not folder.exists()
    assert checked() == "None"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, token)] == [0o700, 0o600]
    text = token.read_text()
    assert len(text) == 64
    assert checked() == checked(make=False) == "None"
    assert (token.read_text(), list(folder.iterdir())) == (text, [token])

    token.chmod(0o640)
    for make in (True, False):
        assert f"(mode 0640): chmod go= {token}; or delete it, if" in checked(make=make)
    assert "(mode 0640)" in checked(RAY_AUTH_TOKEN_PATH=str(token))
    assert token.read_text() == text
    token.chmod(0o600)
    folder.chmod(0o770)
    assert f"others may write into its folder: chmod go= {folder}" in checked()


@pytest.mark.slow
def test_sessions_are_where_others_can_not_enter(aside: Aside, tmp_path: Path) -> None:
    first, again = aside.run(SESSIONS, str(tmp_path)).splitlines()
    assert first == again
    own = Path(first).parent
    assert (own.parent, stat.S_IMODE(own.stat().st_mode)) == (tmp_path, 0o700)
    own.chmod(0o755)
    said = aside.run(SESSIONS, str(tmp_path))
    assert f"{own}: others may read or write it (mode 0755): chmod go= {own}; or set RAY_" in said
