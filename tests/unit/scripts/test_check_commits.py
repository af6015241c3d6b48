"""Commits whose messages are too long or say no reason are named; without git none is looked at."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.check_commits import BEFORE, Commit, broken_rules, check

GIT = shutil.which("git")
needs_git = pytest.mark.skipif(GIT is None, reason="git is not installed")


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = [str(GIT), *who, *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout  # noqa: S603


def commit(root: Path, *paragraphs: str) -> str:
    messages = [word for text in paragraphs for word in ("-m", text)]
    git(root, "commit", "-q", "--allow-empty", *messages)
    return git(root, "rev-parse", "HEAD").strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    """A repository, and its first commit, which is older than the rule."""
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q")
    return root, commit(root, "x" * 100)


@pytest.mark.parametrize(
    ("subject", "body", "message"),
    [
        ("x" * 73, "Why.", "its subject has 73 characters, 72 are allowed"),
        ("Do it", " \n", "it has no body: say why, after an empty line"),
    ],
)
def test_a_rule_bites(subject: str, body: str, message: str) -> None:
    assert list(broken_rules(Commit("1a2b", subject, body))) == [message]


def test_a_good_message_breaks_nothing() -> None:
    assert not list(broken_rules(Commit("1a2b", "é" * 72, "Why.\n\nAnd more.")))


@needs_git
def test_commits_after_the_first_are_checked(
    repository: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    root, first = repository
    commit(root, "Do it", "Because.", "And more.")
    assert check(first, root) == 0
    commit(root, "Do more")
    assert check(first, root) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"1 commits after {first} were looked at"
    assert lines[1].endswith(" 'Do more': it has no body: say why, after an empty line")
    assert lines[2:] == [f"2 commits after {first} were looked at"]


@needs_git
def test_a_merge_needs_no_body(repository: tuple[Path, str]) -> None:
    root, first = repository
    git(root, "checkout", "-q", "-b", "side")
    commit(root, "Do it", "Because.")
    git(root, "checkout", "-q", "-")
    git(root, "merge", "-q", "--no-ff", "-m", "Merge side", "side")
    assert check(first, root) == 0


@needs_git
def test_without_the_first_commit_none_is_looked_at(
    repository: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In a shallow clone, and in a copy that stands in somebody else's repository."""
    root, first = repository
    commit(root, "Do it")
    git(root.parent, "clone", "-q", "--depth", "1", root.as_uri(), "shallow")
    assert check(first, root.parent / "shallow") == 0
    (root / "copy").mkdir()
    assert check(BEFORE, root / "copy") == 0
    assert capsys.readouterr().out.count("no commit was looked at: ") == 2


def test_without_git_none_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(BEFORE, tmp_path) == 0  # a folder without history
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check(BEFORE, tmp_path) == 0
    assert capsys.readouterr().out.count("no commit was looked at: ") == 2
