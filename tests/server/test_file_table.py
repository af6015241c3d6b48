"""The table of files: what stays, what goes, and what a sudden end leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from radixlm.server.batches import file_store
from radixlm.server.batches.batch_routes import BatchBody, new_batch
from radixlm.server.batches.file_store import FileTable, Json, file_object, results_of

DAY = 86_400.0


class Calendar:
    now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def calendar() -> Calendar:
    return Calendar()


@pytest.fixture
def table(tmp_path: Path, calendar: Calendar) -> Iterator[FileTable]:
    made = FileTable(tmp_path / "files", calendar)
    yield made
    made.close()


def put(table: FileTable, name: str, created: float = 1e9) -> None:
    table.content(name).write_text("{}")
    table.put_files("a", [file_object(name, 2, "in", "batch", created)])


def batch_of(file: str) -> Json:
    made = new_batch(
        BatchBody(input_file_id=file, endpoint="/v1/embeddings", completion_window="24h")
    )
    return made | {"status": "in_progress"}


def test_what_is_old_goes_unless_a_batch_reads_it(table: FileTable, calendar: Calendar):
    put(table, "file-1")
    put(table, "file-2")
    batch = batch_of("file-1")
    table.put_batch("a", batch)
    calendar.now += 31 * DAY
    assert table.count() == 1
    assert table.content("file-1").exists()
    assert not table.content("file-2").exists()
    table.put_batch("a", batch | {"status": "cancelled"})
    assert table.count() == 0


def test_a_start_takes_away_what_a_sudden_end_left(tmp_path: Path, calendar: Calendar):
    folder = tmp_path / "files"
    table = FileTable(folder, calendar)
    put(table, "file-1")
    batch = batch_of("file-1")
    table.put_batch("a", batch)
    kept = {"file-1", *results_of(batch)}
    for name in (*results_of(batch), "file-2", "upload-3"):
        table.content(name).write_text("x")
    table.close()
    FileTable(folder, calendar).close()
    assert {path.name for path in folder.glob("*-[0-9a-f]*")} - {"index.sqlite-shm"} == kept


def test_what_goes_while_it_is_counted_is_no_error(table: FileTable, monkeypatch):
    put(table, "file-1")
    gone = table.content("upload-2")
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [*glob(self, pattern), gone])
    assert table.used() >= 2


def test_an_owner_has_so_many_batches_that_ended(table: FileTable, monkeypatch):
    monkeypatch.setattr(file_store, "MOST_BATCHES", 3)
    put(table, "file-1")
    running = batch_of("file-1")
    table.put_batch("a", running)
    other = batch_of("file-1") | {"status": "failed"}
    table.put_batch("b", other)
    made = [batch_of("file-1") | {"status": "failed"} for _ in range(5)]
    for each in made:
        table.put_batch("a", each)
    names = [each["id"] for each in table.page("batches", "a", None, 100) or ()]
    assert names == [each["id"] for each in (*made[:1:-1], running)]
    assert table.get("batches", "b", other["id"]) is not None
