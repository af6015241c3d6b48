"""The answers of a batch, added to files as they come; what is there says which lines are done."""

from __future__ import annotations

import json
import os
import re
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

from radixlm.core.errors import ConfigError

OK = 200
_STATUS = re.compile(rb'"response": \{"status_code": (\d+)')


class LineAnswer(NamedTuple):
    """The answer of a line's route. body: JSON as it was sent."""

    status: int
    request_id: str
    body: bytes


class NoRoomError(ConfigError):
    """The answers would take more room on disk than they may."""


class Results:
    """Adds a line to `output` or, of one that failed, to `errors`, which may be the same file.

    A record's id ends with its line's number, so the files alone say what is done: after a sudden
    end the last record, if it is torn, is cut off, and its line is answered again.

    done: by place of the plan. most_bytes: of both files together; None is no limit.
    """

    def __init__(
        self,
        mark: str,
        numbers: array[int],
        output: Path,
        errors: Path,
        most_bytes: int | None = None,
    ) -> None:
        """Raises ConfigError for a file that holds something else, OSError."""
        self._mark, self._numbers, self._most = mark, numbers, most_bytes
        self._size = self.completed = self.failed = 0
        self.done = bytearray(len(numbers))
        places = {path.resolve(): path for path in (output, errors)}
        for path in places.values():
            if path.exists():
                self._take(path)
        self._files = {path: open_results(path) for path in places.values()}
        self._output = self._files[places[output.resolve()]]
        self._errors = self._files[places[errors.resolve()]]

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)

    def add(self, place: int, custom_id: str, answer: LineAnswer) -> None:
        """Write a line's answer. Raises NoRoomError, OSError; nothing is written then."""
        response = {"status_code": answer.status, "request_id": answer.request_id}
        opening = json.dumps(response)[:-1].encode()
        body = answer.body.replace(b"\n", b" ")  # of JSON a line's end is space
        tail = b'"response": ' + opening + b', "body": ' + body + b'}, "error": null}\n'
        self._write(place, custom_id, tail, failed=answer.status != OK)

    def add_error(self, place: int, custom_id: str, code: str, message: str) -> None:
        """Write that a line was not asked. Raises as `add`."""
        error = json.dumps({"code": code, "message": message}).encode()
        tail = b'"response": null, "error": ' + error + b"}\n"
        self._write(place, custom_id, tail, failed=True)

    def _write(self, place: int, custom_id: str, tail: bytes, *, failed: bool) -> None:
        name = f"batch_req_{self._mark}_{self._numbers[place]}"
        head = json.dumps({"id": name, "custom_id": custom_id})[:-1].encode()
        record = head + b", " + tail
        if self._most is not None and self._size + len(record) > self._most:
            raise NoRoomError(f"the answers would take more than {self._most} bytes on disk")
        _append(self._errors if failed else self._output, record)
        self._size += len(record)
        self._count(place, failed=failed)

    def _count(self, place: int, *, failed: bool) -> None:
        self.done[place] = 1
        self.failed += failed
        self.completed += not failed

    def _take(self, path: Path) -> None:
        """Read what an earlier run has written, and cut off what is torn."""
        record = re.compile(rb'\{"id": "batch_req_%s_(\d+)", ' % self._mark.encode())
        with path.open("rb+") as file:
            whole = 0
            for content in file:
                if not content.endswith(b"\n"):
                    break
                found = record.match(content)
                place = None if found is None else self._place_of(int(found[1]))
                if place is None or self.done[place]:
                    raise ConfigError(
                        f"{path} holds something else than this batch's answers at byte {whole}; "
                        "name another file, or remove it"
                    )
                status = _STATUS.search(content)
                self._count(place, failed=status is None or int(status[1]) != OK)
                whole += len(content)
            file.truncate(whole)
        self._size += whole

    def _place_of(self, number: int) -> int | None:
        place = bisect_left(self._numbers, number)
        known = place < len(self._numbers) and self._numbers[place] == number
        return place if known else None


def open_results(path: Path) -> int:
    """A file of answers, to be written at its end, for this user alone where it is new."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _append(file: int, record: bytes) -> None:
    """Add a whole record, or none of it where the disk is full."""
    before = os.fstat(file).st_size
    left = memoryview(record)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        os.ftruncate(file, before)
        raise
