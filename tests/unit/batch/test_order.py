"""The order of a batch: by keys, in runs on disk."""

from __future__ import annotations

import json
import random
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest

from radixlm.batch.lines import BatchLine, LineError, raw_lines
from radixlm.batch.order import in_order, plan


def written(path: Path, *prompts: str, **more: object) -> Path:
    lines = [
        {"custom_id": f"r{n}", "url": "/v1/completions", "body": {"prompt": prompt} | more}
        for n, prompt in enumerate(prompts)
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    return path


def key_of(**body: object) -> bytes:
    return BatchLine("a", "/v1/chat/completions", body).key()


@pytest.mark.parametrize("run_bytes", [1, 2_000, 1 << 20])
def test_runs_on_disk_give_the_same_order(tmp_path, run_bytes):
    draw = random.Random(0)
    shots = ["".join(draw.choice("ab") for _ in range(draw.randrange(60))) for _ in range(20)]
    entries = [((draw.choice(shots) + draw.choice(shots)).encode(), n) for n in range(300)]
    found = list(in_order(iter(entries), tmp_path, run_bytes))
    assert found == sorted(entries)
    assert list(tmp_path.iterdir()) == []


def test_what_is_shared_is_stored_once(tmp_path, monkeypatch):
    sizes: list[int] = []
    made = tempfile.TemporaryFile

    def watched(**options):
        file = made(**options)
        write = file.write

        class Watched:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                file.close()

            def write(self, data):
                sizes.append(len(data))
                return write(data)

            seek, read = file.seek, file.read

        return Watched()

    monkeypatch.setattr(tempfile, "TemporaryFile", watched)
    entries = [(b"x" * 3_000 + f"{n:04}".encode(), n) for n in range(200)]
    assert len(list(in_order(iter(entries), tmp_path, 100_000))) == 200
    assert 0 < sum(sizes) < 40_000


def test_lines_with_equal_prefixes_stand_together(tmp_path):
    shots = [f"{'example ' * 3_000}{n}" for n in range(5)]  # all of them share 24,000 bytes
    asked = [shot + f" question {n}" for n in range(4) for shot in shots]
    random.Random(1).shuffle(asked)
    found = plan(written(tmp_path / "in", *asked), 1 << 20)
    assert len(found) == len(asked)
    order = [asked[place].split(" question")[0] for place in found.places]
    assert sum(a != b for a, b in pairwise(order)) == len(shots) - 1


def test_a_mark_in_front_of_the_first_line_is_no_part_of_it(tmp_path):
    path = written(tmp_path / "in", "b", "a")
    plain = path.read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + plain)
    found = plan(path, 1 << 20)
    with path.open("rb") as file:
        lines = [found.read(file, place).strip() for place in range(2)]
    assert lines == plain.split(b"\n\n")


def test_numbers_and_offsets_are_those_of_the_file(tmp_path):
    found = plan(written(tmp_path / "in", "b", "a"), 1 << 20)
    assert (list(found.numbers), list(found.places)) == ([0, 2], [1, 0])
    with found.path.open("rb") as file:
        assert json.loads(found.read(file, 1))["custom_id"] == "r1"


def test_the_mark_is_of_the_content(tmp_path):
    marks = [plan(written(tmp_path / name, name[0]), 1 << 20).mark for name in ("a1", "a2", "b")]
    assert marks[0] == marks[1] != marks[2]


def test_keys_begin_with_what_templates_write_first():
    tools = [{"type": "function", "function": {"name": "f"}}]
    said = [{"role": "user", "content": "a"}]
    turned = [{"content": "a", "role": "user"}]
    assert key_of(messages=said) == key_of(messages=turned, temperature=1)
    assert key_of(messages=said) != key_of(messages=said, tools=tools)
    longer = [*said, {"role": "assistant", "content": "b"}]
    assert key_of(messages=longer).startswith(key_of(messages=said)[:-3])


def test_long_keys_are_told_apart_by_blocks():
    keys = [
        key_of(messages=[{"role": "user", "content": "x" * 1_000_000 + str(n)}]) for n in (1, 2)
    ]
    assert all(len(key) < 270_000 for key in keys)
    assert keys[0] != keys[1]
    assert keys[0][:262_200] == keys[1][:262_200]


def test_a_line_that_is_too_long_is_not_read(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(b"{}\n" + b" " * 101 + b"\n")
    with pytest.raises(LineError, match="line 2: is longer than 100 bytes"):
        list(raw_lines(path, 100))


def test_nesting_that_python_does_not_read_is_an_error(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(b'{"custom_id": "a", "body": ' + b"[" * 100_000)
    with pytest.raises(LineError, match="line 1: is not valid JSON"):
        plan(path, 1 << 20)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_parts_are_cut_where_least_is_shared(tmp_path, count):
    """A hundred trees under one root; a cut inside one would compute it twice."""
    shots = [f"{'rules ' * 50}{n} {'example ' * 50}" for n in range(100, 200)]
    asked = [f"{shot}question {n}" for n in range(10) for shot in shots]
    random.Random(2).shuffle(asked)
    found = plan(written(tmp_path / "in", *asked), 1 << 20)
    parts = found.parts(count)
    assert [at for part in parts for at in part] == [*range(1000)]
    for part in parts:
        assert 0.88 < count * len(part) / 1000 < 1.12
        first, before = (asked[found.places[at]] for at in (part.start, part.start - 1))
        assert first.split("question")[0] != before.split("question")[0]


def test_there_are_as_many_parts_as_lines_at_most(tmp_path):
    found = plan(written(tmp_path / "in", "a", "b"), 1 << 20)
    assert [len(each) for each in found.parts(4)] == [1, 1]
