"""HEAD, where GET is answered."""

from __future__ import annotations

import http.client

import pytest

from tests.server_support import live


@pytest.mark.parametrize("path", ["/health", "/ping", "/v1/models", "/metrics", "/server_info"])
def test_head_is_get_without_a_body(fake, path):
    with live(fake.engine) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        for _ in range(2):  # on one connection: a body would be read as the next answer
            connection.request("HEAD", path)
            answer = connection.getresponse()
            assert answer.status == 200
            assert answer.read() == b""
            assert int(answer.headers["content-length"]) > 0
        connection.close()


def test_what_changes_something_has_no_head(fake):
    assert fake.request("HEAD", "/flush_cache").status_code == 405
