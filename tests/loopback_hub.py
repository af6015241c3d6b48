"""A Hub of our own: huggingface_hub's protocol on loopback, for files in memory."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef" * 2 + "01234567"
_REFUSED = {
    "gated": (403, "GatedRepo"),
    "private": (401, "RepoNotFound"),
    "revision": (404, "RevisionNotFound"),
}


@dataclass
class LoopbackHub:
    """Models by OWNER/NAME, of each the files by name. asked: method, path and range of requests.
    breaks: bytes after which the first download of a file breaks off. pages: by names of models,
    what is said in place of their files' names.
    """

    models: dict[str, dict[str, bytes]]
    refused: dict[str, str] = field(default_factory=dict)
    breaks: dict[str, int] = field(default_factory=dict)
    pages: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    url: str = ""

    def downloaded(self) -> set[str]:
        """Names of files whose bytes were asked for."""
        return {
            path.rpartition("/")[2]
            for method, path, _ in self.asked
            if method == "GET" and "/resolve/" in path
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[LoopbackHub]:
        """Serve; `url` is what HF_ENDPOINT takes."""
        hub = self

        class Handler(_Handler):
            served = hub

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: LoopbackHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.served.asked.append((self.command, path, self.headers.get("Range", "")))
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        name = (api or file)[1] if api or file else ""
        revision = api[3] if api else None
        if (why := self.served.refused.get(name)) or name not in self.served.models:
            self._refuse(*_REFUSED[why or "private"])
        elif revision not in (None, "main", SHA):
            self._refuse(*_REFUSED["revision"])
        elif api is not None:
            listed = json.dumps(self._listed(name, tree=api[2] == "tree")).encode()
            self._say(self.served.pages.get(name, listed))
        elif file is not None:
            self._give(file[2], self.served.models[name].get(file[2]))

    def _listed(self, name: str, *, tree: bool) -> object:
        files = self.served.models[name]
        if tree:
            return [
                {"type": "file", "path": path, "size": len(data), "oid": f"{len(data):040x}"}
                for path, data in files.items()
            ]
        siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
        return {"id": name, "modelId": name, "sha": SHA, "siblings": siblings}

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _give(self, path: str, data: bytes | None) -> None:
        if data is None:
            self._refuse(404, "EntryNotFound")
            return
        begun = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(begun[1]) if begun else 0
        self.send_response(206 if begun else 200)
        self.send_header("ETag", f'"{len(data):040x}"')
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("Accept-Ranges", "bytes")
        if begun:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        if self.command == "GET":
            broken = self.served.breaks.pop(path, None)
            self.wfile.write(data[first:broken])
            self.close_connection = broken is not None

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
