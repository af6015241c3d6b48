"""The wheel as somebody else gets it; its dependencies are those of this environment."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from scripts.try_wheel import WheelError, answer, build, check, installed


@pytest.mark.slow
def test_the_wheel_is_whole_and_answers_elsewhere(tmp_path: Path) -> None:
    wheel = build(tmp_path, tmp_path / "dist")
    assert "Paris" in answer(installed(wheel, tmp_path / "venv", borrow=True), tmp_path)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (["a.py"], r"lacks \['radixlm/ui/a.js'\] and has \[\]"),
        (["a.py", "ui/a.js", "old.py"], r"lacks \[\] and has \['radixlm/old.py'\]"),
    ],
)
def test_a_wheel_with_less_or_more_is_refused(held: list[str], said: str, tmp_path: Path) -> None:
    for name in ("a.py", "ui/a.js"):
        (tmp_path / "radixlm" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "radixlm" / name).touch()
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        for name in held:
            wheel.writestr(f"radixlm/{name}", "")
        wheel.writestr("radixlm-0.1.0.dist-info/METADATA", "")
    with pytest.raises(WheelError, match=said):
        check(tmp_path / "some.whl", tmp_path)
