"""Uploads: a form's file goes to disk as it comes; its other fields are short."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from fastapi import Request
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from radixlm.core.errors import InvalidRequestError
from radixlm.server.batches.file_store import FileStore, FileTable
from radixlm.server.http.http_errors import BodyTimeoutError, BodyTooLargeError

_LONGEST_FIELD = 1_024
_MOST_PARTS = 16
_LONGEST_HEADER = 8_192
# Bytes that are read, then written off the event loop; and until it is looked again what room the
# disk's limit leaves, since others write, too.
_AT_ONCE = 2**20
_LOOK_BYTES = 64 * 2**20


class Upload(NamedTuple):
    """path: where the content lies, until it gets its place. fields: all others of the form."""

    path: Path
    name: str
    size: int
    fields: dict[str, str]


class FormReader:
    """Reads a form, bit by bit, and writes its `file` to `path`. Raises InvalidRequestError."""

    def __init__(self, boundary: bytes, folder: Path) -> None:
        handle, path = tempfile.mkstemp(dir=folder, prefix="upload-")
        self._file = os.fdopen(handle, "wb", buffering=0)
        self.path = Path(path)
        self.size = 0
        self.name: str | None = None
        self.fields: dict[str, str] = {}
        self.ended = False
        self._parts = 0
        self._field = self._disposition = self._header = b""
        self._value = bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_begin": self._begin_header,
                "on_header_field": self._add_header,
                "on_header_value": self._add_value,
                "on_headers_finished": self._begin_data,
                "on_part_data": self._add_data,
                "on_part_end": self._end,
                "on_end": self._end_all,
            },
        )

    def push(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise InvalidRequestError(f"the body is no form: {error!s:.200}") from None

    def close(self) -> None:
        self._file.close()

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise InvalidRequestError(f"the form has more than {_MOST_PARTS} fields")
        self._disposition = self._field = b""
        self._value.clear()

    def _begin_header(self) -> None:
        self._header = b""

    def _add_header(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header + data[start:end])[:_LONGEST_HEADER]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = (self._disposition + data[start:end])[:_LONGEST_HEADER]

    def _begin_data(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._field = options.get(b"name", b"")
        if self._field == b"file":
            if self.name is not None:
                raise InvalidRequestError("the form has two files", param="file")
            self.name = options.get(b"filename", b"file").decode(errors="replace")[:_LONGEST_FIELD]

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._field == b"file":
            self._file.write(data[start:end])
            self.size += end - start
            return
        self._value += data[start:end]
        if len(self._value) > _LONGEST_FIELD:
            name = self._field.decode(errors="replace")[:80]
            raise InvalidRequestError(f"{name} is longer than {_LONGEST_FIELD} bytes", param=name)

    def _end(self) -> None:
        if self._field != b"file":
            self.fields[self._field.decode(errors="replace")] = self._value.decode(errors="replace")

    def _end_all(self) -> None:
        self.ended = True


async def uploaded(request: Request, store: FileStore, silence: float) -> Upload:
    """Read the form of a request, its file to disk, which is the caller's to move or take away.

    silence: seconds without a byte after which it is given up, 0 for never. Raises
    InvalidRequestError, BodyTooLargeError, BodyTimeoutError; nothing is left then.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise InvalidRequestError("the body must be multipart/form-data, with a boundary")
    reader = FormReader(options[b"boundary"][:256], store.table.folder)
    try:
        await _read(request, reader, store, silence)
        if not reader.ended or reader.name is None:
            what = "is cut short" if not reader.ended else "has no file"
            raise InvalidRequestError(f"the form {what}", param="file")
    except BaseException:
        reader.path.unlink(missing_ok=True)
        raise
    finally:
        reader.close()
    return Upload(reader.path, reader.name, reader.size, reader.fields)


async def _read(request: Request, reader: FormReader, store: FileStore, silence: float) -> None:
    limits = store.limits
    chunks = request.stream().__aiter__()
    waiting = bytearray()
    looked, end = -_LOOK_BYTES, 0
    more = True
    while more:
        try:
            async with asyncio.timeout(silence or None):
                waiting += await anext(chunks)
        except StopAsyncIteration:
            more = False
        except TimeoutError:
            raise BodyTimeoutError(f"nothing came for --body-timeout {silence:g} s") from None
        if waiting and (len(waiting) >= _AT_ONCE or not more):
            if reader.size - looked >= _LOOK_BYTES:
                looked = reader.size
                end = looked + limits.total - await store.call(FileTable.used)
            if reader.size + len(waiting) > end:
                raise BodyTooLargeError(
                    f"all files would take more than --max-files-bytes {limits.total}; delete some"
                )
            await asyncio.to_thread(reader.push, bytes(waiting))
            waiting.clear()
        if reader.size + len(waiting) > limits.file + _AT_ONCE:
            break
    if reader.size > limits.file:
        raise BodyTooLargeError(f"the file is longer than --max-file-bytes {limits.file}")
