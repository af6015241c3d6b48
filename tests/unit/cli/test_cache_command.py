from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from radixlm.cli.cache_command import command
from radixlm.core.errors import ConfigError
from radixlm.core.moves import StoredPath
from radixlm.memory.store_care import verify
from radixlm.memory.store_identity import StoreIdentity
from tests.store_support import blocks_of, found, open_store, path

OTHER = StoreIdentity({"model": "other"})


def run(*arguments: object) -> tuple[str, int]:
    result = CliRunner().invoke(command, [str(each) for each in arguments])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    return result.stdout, result.exit_code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for identity, blocks in ((None, 6), (OTHER, 3)):
        store = open_store(tmp_path, identity) if identity else open_store(tmp_path)
        store.put(blocks_of(path(blocks)))
        store.close()
    return tmp_path


def damage(folder: Path, block: int) -> None:
    """Change a byte in a slot of the larger file."""
    file = max(folder.glob("*.blocks"), key=lambda each: each.stat().st_size)
    content = bytearray(file.read_bytes())
    content[block * 8192 + 100] ^= 1
    file.write_bytes(content)


def test_ls_names_models_and_counts(folder: Path) -> None:
    text, status = run("ls", folder)
    assert status == 0
    assert "24 tokens in 6 blocks of 4\n" in text
    assert "12 tokens in 3 blocks of 4\n" in text
    assert "model: 'other'" in text


def test_verify_finds_what_is_damaged_and_prune_deletes_it(folder: Path) -> None:
    assert run("verify", folder)[1] == 0
    damage(folder, 2)
    text, status = run("verify", folder)
    assert (status, "1 of 6 blocks damaged" in text) == (1, True)
    assert run("prune", folder, "--damaged")[1] == 0
    assert found(open_store(folder), path(6)) == 2


def test_prune_deletes_a_model_and_leaves_others(folder: Path) -> None:
    digest = next(line[:12] for line in run("ls", folder)[0].splitlines() if " 6 blocks" in line)
    run("prune", folder, "--others", digest)
    assert len(list(folder.glob("*.blocks"))) == 1
    assert found(open_store(folder), path(6)) == 6
    assert found(open_store(folder, OTHER), path(3)) == 0


@pytest.mark.parametrize("option", ["--identity", "--others"])
@pytest.mark.parametrize("name", ["", "zz"])
def test_prune_names_what_there_is(option: str, name: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"names \d of what .* has: [0-9a-f]{12}, [0-9a-f]{12}$"):
        run("prune", folder, option, name)
    assert len(list(folder.glob("*.blocks"))) == 2


def test_prune_shrinks_the_files(folder: Path) -> None:
    run("prune", folder, "--to-gb", 5 * 8192 / 1e9)
    assert sum(file.stat().st_size for file in folder.glob("*.blocks")) <= 5 * 8192
    left = found(open_store(folder), path(6)) + found(open_store(folder, OTHER), path(3))
    assert left == 5
    assert run("verify", folder)[1] == 0


@pytest.mark.parametrize("command", ["verify", "prune"])
def test_what_a_server_writes_meanwhile_is_not_damaged(command: str, folder: Path) -> None:
    """It gives slots to other blocks while they are read."""
    server, done = open_store(folder), []

    def step(_done: int, _total: int) -> None:
        if not done:
            server.delete([StoredPath(b"", path(1))])
            assert server.put(blocks_of(path(4, first=900))) == 4
            done.append(True)

    found_now = verify(folder, step, delete=command == "prune")
    assert [each.damaged for each in found_now.values()] == [0, 0]
    assert found(server, path(4, first=900)) == 4


FULL = """
import os, subprocess, sys
from pathlib import Path
place, what, *options = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=True)
from tests.unit.cli.test_cache_command import damage, run
from tests.store_support import blocks_of, found, open_store, path
folder = Path(place) / "kv"
store = open_store(folder)
assert store.put(blocks_of(path(90))) == 90
store.close()
match what:
    case "block":
        damage(folder, 80)
    case "index":
        (folder / "index.sqlite").write_bytes(bytes(9_000))
    case "no index":
        (folder / "index.sqlite").unlink()
with open(Path(place) / "rest", "wb", buffering=0) as rest:
    try:
        while True:
            rest.write(bytes(4096))
    except OSError:
        pass
assert os.statvfs(place).f_bavail == 0
if options:
    digest = next(folder.glob("*.blocks")).stem
    text, code = run(options[0], folder, *options[1:], *[digest] * (options[-1] == "--identity"))
    assert code == 0, text
    print(text)
store = open_store(folder)
print("left", len(store), found(store, path(90)))
"""


def on_a_full_disk(tmp_path: Path, what: str, *options: str) -> list[int]:
    """Blocks, and those that are found, in a file system of its own in which not a page is left.

    what: is damaged before. options: a command of `radixlm cache` that comes before the start.
    """
    unshare = ("unshare", "--user", "--map-root-user", "--mount")
    probe = [*unshare, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if subprocess.run(probe, capture_output=True, check=False).returncode:  # noqa: S603
        pytest.skip("no file system may be mounted here")
    command = [*unshare, sys.executable, "-c", FULL, str(tmp_path), what, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.split("left ")[1].split()]


@pytest.mark.parametrize(
    ("options", "left"), [(["--to-gb", "0.0006"], 73), (["--damaged"], 80), (["--identity"], 0)]
)
def test_prune_works_on_a_full_disk(options: list[str], left: int, tmp_path: Path) -> None:
    assert on_a_full_disk(tmp_path, "block", "prune", *options) == [left, left]


@pytest.mark.parametrize("options", [[], ["repair"]], ids=["start", "repair"])
@pytest.mark.parametrize("what", ["index", "no index"])
def test_an_index_is_made_on_a_full_disk(what: str, options: list[str], tmp_path: Path) -> None:
    """At the cost of some blocks."""
    blocks, reached = on_a_full_disk(tmp_path, what, *options)
    assert blocks == reached
    assert 40 < blocks < 90


@pytest.mark.parametrize("name", ["ls", "verify", "prune"])
def test_a_damaged_index_is_repaired_by_a_command(name: str, folder: Path) -> None:
    (folder / "index.sqlite").write_bytes(bytes(5_000))
    options = ["--damaged"] if name == "prune" else []
    result = CliRunner().invoke(command, [name, str(folder), *options])
    assert f"`radixlm cache repair {folder}`" in str(result.exception)
    text = run("repair", folder)[0]
    assert "the index was damaged" in text
    assert "9 blocks were found in their files" in text
    assert run("verify", folder)[1] == 0
    assert run("repair", folder)[0] == "The index is sound, and so are its files' sizes.\n"


def test_prune_leaves_a_server_its_files(folder: Path) -> None:
    store = open_store(folder)
    digest = next(line[:12] for line in run("ls", folder)[0].splitlines() if " 6 blocks" in line)
    with pytest.raises(ConfigError, match="stop the server first"):
        run("prune", folder, "--identity", digest)
    assert found(store, path(6)) == 6


@pytest.mark.parametrize("options", [(), ("--damaged", "--to-gb", "1"), ("--identity", "zz")])
def test_prune_wants_to_know_what(options: tuple[str, ...], folder: Path) -> None:
    with pytest.raises(ConfigError):
        run("prune", folder, *options)


def test_a_folder_without_a_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it is no disk cache"):
        run("ls", tmp_path)
    assert not list(tmp_path.iterdir())
