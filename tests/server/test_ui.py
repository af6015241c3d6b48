"""The page's own routes: what is served, to whom, under which headers."""

from __future__ import annotations

import re

import pytest

from radixlm.server.pages.ui_routes import PAGE, parts
from tests.server_support import Client, refused

KEY = "sk-page"


@pytest.fixture(scope="module")
def locked(fake: Client) -> Client:
    return Client(fake.engine, api_key=(KEY,))


def test_the_page_may_load_from_here_only(fake):
    answer = fake.get("/ui")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert fake.request("HEAD", "/ui").status_code == 200


def test_nothing_on_the_page_is_inline_or_from_elsewhere():
    text = parts()[PAGE].content.decode()
    assert re.findall(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=|https?://", text) == []


def test_every_part_that_is_named_is_served(fake):
    named = set(re.findall(r'(?:src|href)="ui/([^"]+)"', parts()[PAGE].content.decode()))
    for name, part in parts().items():
        if name.endswith(".js") and "/" not in name:
            named |= set(re.findall(r'(?:from|import) "\./([^"]+)"', part.content.decode()))
    assert len(named) > 20
    for name in named:
        assert fake.get(f"/ui/{name}").status_code == 200, name
    assert named | {PAGE, "vendor/d3-hierarchy.LICENSE"} == parts().keys()


def test_a_part_that_is_known_is_not_sent_again(fake):
    tag = fake.get("/ui/main.js").headers["etag"]
    again = fake.request("GET", "/ui/main.js", headers={"If-None-Match": tag})
    assert again.status_code == 304
    assert again.content == b""


@pytest.mark.parametrize(
    "path", ["/ui/../app.py", "/ui/%2e%2e/app.py", "/ui/nothing.js", "/ui//etc"]
)
def test_only_the_page_s_parts_are_served(fake, path):
    refused(fake.get(path), 404)


def test_the_page_below_itself_leads_back(fake):
    answer = fake.get("/ui/")
    assert answer.status_code == 307
    assert answer.headers["location"] == "../ui"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_server_s_address_leads_to_the_page(fake, locked, method):
    for client in (fake, locked):
        answer = client.request(method, "/")
        assert answer.status_code == 307
        assert answer.headers["location"] == "ui"  # relative: a proxy may stand before it


def test_without_the_key_the_page_asks_for_it(locked):
    asking = locked.get("/ui")
    assert asking.status_code == 401
    assert asking.headers["www-authenticate"] == "Bearer"
    assert "needs an API key" in asking.text
    assert locked.get("/ui/main.js").status_code == 200
    keyed = locked.request("GET", "/ui", headers={"Authorization": f"Bearer {KEY}"})
    assert keyed.status_code == 200
    for path in ("/cache/tree", "/cache/events", "/uix"):
        refused(locked.get(path), 401)


# What stands in what: each text is read on each of these. `--label` is of bars, by state.
_READ_ON = {
    "quiet": ("bg", "surface", "low", "ghost"),
    "ink": ("bg", "surface", "low"),
    "label": ("cached", "running", "pinned"),
    "mark": ("surface", "low"),
    "alarm": ("surface", "low"),
    "surface": ("accent",),
}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_can_be_read(theme):
    """WCAG's level AA: 4.5 to 1."""
    style = parts()["style.css"].content.decode()
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root[^{]*{([^}]*)}", style)
    )
    colours = dark if theme else light
    for text, grounds in _READ_ON.items():
        for ground in grounds:
            a, b = sorted((_luminance(colours[text]), _luminance(colours[ground])))
            assert (b + 0.05) / (a + 0.05) >= 4.5, (text, ground)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
