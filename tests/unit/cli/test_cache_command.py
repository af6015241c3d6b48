from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from radixlm.cli.cache_command import command
from radixlm.core.errors import ConfigError
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
