"""The live tree in a real browser: what it shows is what the cache says."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from scripts.browser import fire, opened
from tests.browser_support import agrees, number, snapshot, tree, wait
from tests.server_support import fake_engine, live, until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

KEY = "sk-page"
EVIL = (
    "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>\u202egnp.evil\u2066 x"
)


def test_an_empty_cache_says_what_to_do(page, url):
    assert page.is_visible("text=The cache is empty")
    assert agrees(page, url)["nodes"] == []
    words = (
        "import('./ui/text.js').then(({ counted }) => [counted(1, 'hit'), counted(2000, 'hit')])"
    )
    assert page.evaluate(words) == ["1 hit", "2,000 hits"]


def test_agents_share_their_prompt(page, url):
    assert "24 of 24 requests" in fire(page, "agents")
    told = agrees(page, url)
    [shared] = [node for node in told["nodes"] if node["tokens"] > 300]
    assert shared["hits"] == 23
    assert sum(node["parent_id"] == shared["id"] for node in told["nodes"]) == 6
    assert number(page, "saved") > 15 * shared["tokens"]
    assert page.is_hidden("#empty")


def test_raw_prompts_fill_the_pool_and_evict(page, url):
    assert "40 of 40 requests" in fire(page, "raw")
    told = agrees(page, url)
    assert number(page, "evicted") > 0
    assert any(node["state"] == "ghost" for node in told["nodes"])
    assert "ghost tokens" in page.text_content("#n-shown")


def test_a_miss_is_explained(page, url):
    """As the tree has it: what all share, and two of its continuations; as the advice says it."""
    assert "6 of 6 requests" in fire(page, "clock")
    told = agrees(page, url)["nodes"]
    [shared] = [node for node in told if "It is 14:07:1" in node["text"]]
    ends = [node["text"] for node in told if node["parent_id"] == shared["id"]]
    miss = page.locator("#miss-list li").first
    assert miss.get_attribute("data-cause") == "date_time"
    assert miss.get_attribute("data-times") == "5"
    parted = [miss.locator(mark).text_content() for mark in ("del", "ins")]
    assert parted == ["14:07:14.", "14:07:15."]
    for part in parted:
        assert [end for end in ends if (shared["text"] + end).find(f"It is {part} You are") >= 0]
    text = miss.text_content()
    assert f"message 0 (system), token {shared['tokens']}, where a date or time changes" in text
    assert text.count("14:07:14.") == 1
    assert "move it to the end of the system prompt" in text
    assert advice_agrees(page, url) >= {"date_time"}


def advice_agrees(page: Any, url: str) -> set[str]:
    """Wait until the page shows the server's advice; its causes."""
    told = httpx.get(f"{url}/cache/advice", timeout=30).json()
    listed = told["advice"][:5]
    texts = page.locator("#advice-list li").all_text_contents
    assert until(lambda: texts() == [entry["text"] for entry in listed])
    rates = [f"{100 * size['hit_rate']:.0f}" for size in told["capacity"]]
    shown = page.locator("#curve tbody td").all_text_contents()
    assert [f"{float(rate.removesuffix(' %')):.0f}" for rate in shown] == rates
    return {entry["cause"] for entry in listed}


def test_a_load_can_be_stopped(page, url):
    page.click("[data-load=raw]")
    wait(page, "Number(document.getElementById('n-running').dataset.value) > 0")
    page.click("[data-load=raw]")
    page.wait_for_selector("[data-load=raw] + p[data-state=stopped]")
    agrees(page, url)


def test_what_a_prompt_holds_is_shown_and_never_run(page, url):
    httpx.post(f"{url}/generate", json={"text": EVIL}, timeout=30)
    agrees(page, url)
    shown = page.text_content("#table tbody button")
    assert shown.startswith("<script>window.pwned = 1</script>")
    page.click("#table tbody button")
    wait(page, "document.getElementById('node-text').textContent.includes('U+2066')")
    whole = page.text_content("#node-text")
    assert EVIL.replace("\u202e", "‹U+202E›").replace("\u2066", "‹U+2066›") in whole
    page.mouse.move(400, 260)
    page.wait_for_selector("#tip:not([hidden])")
    page.fill("#query", "<script>window")
    page.wait_for_selector("#found button")
    assert page.text_content("#found mark") == "<script>window"
    body = page.text_content("body")
    assert "\u202e" not in body
    assert "\u2066" not in body
    assert page.evaluate("window.pwned") is None
    assert page.locator("script").count() == 1
    assert page.locator("img[src=x]").count() == 0


def test_markup_can_not_be_made_of_text(browser, url):
    page = opened(browser, url)
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>x</b>'")
    page.close()


def test_the_keys_walk_and_open_the_tree(page, url):
    fire(page, "tree")
    told = agrees(page, url)
    page.focus("#canvas")
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    chosen = int(page.get_attribute("#node", "data-id"))
    below = tree(url, node=chosen)["nodes"]
    assert 1 < len(below) < len(told["nodes"])
    wait(page, f"document.getElementById('canvas').dataset.bars === '{len(below)}'")
    assert page.locator("#path button").count() >= 3
    page.focus("#canvas")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    whole = len(told["nodes"])
    wait(page, f"document.getElementById('canvas').dataset.bars === '{whole}'")


def test_a_search_finds_its_node(page, url):
    fire(page, "tree")
    agrees(page, url)
    page.keyboard.press("/")
    page.keyboard.type("wolf, a goat")
    page.wait_for_selector("#found button")
    page.keyboard.press("Enter")
    wait(page, "document.activeElement.closest('#found') !== null")
    page.keyboard.press("Enter")
    page.wait_for_selector("#node:not([hidden])")
    assert "wolf, a goat" in page.text_content("#node-text")


def test_the_past_can_be_looked_at(page, url):
    httpx.post(f"{url}/generate", json={"text": "What was there before"}, timeout=30)
    before = agrees(page, url)["totals"]["nodes"]
    time.sleep(1.5)
    httpx.post(f"{url}/flush_cache", timeout=30)
    agrees(page, url)
    assert number(page, "nodes") == 0
    page.evaluate("document.activeElement.blur()")
    for _ in range(4):
        page.keyboard.press(",")
    wait(page, f"document.getElementById('n-nodes').dataset.value === '{before}'")
    assert page.is_visible("#past")
    page.keyboard.press(" ")
    wait(page, "document.getElementById('n-nodes').dataset.value === '0'")


def test_the_theme_follows_the_system_and_the_button(browser, url):
    page = opened(browser, url, "dark")
    assert page.get_attribute("html", "data-theme") == "dark"
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "light"
    page.close()


def test_without_the_key_nobody_sees_anything(engine, browser):
    statuses: dict[str, int] = {}
    with live(engine, "demo", api_key=(KEY,)) as locked:
        page = browser.new_page()
        page.on("response", lambda answer: statuses.update({answer.url: answer.status}))
        page.goto(f"{locked}/ui")
        page.wait_for_selector("#gate[open]")
        assert statuses[f"{locked}/ui"] == 401
        assert page.text_content("#n-pool") == "–"
        for key in ("wrong", KEY):
            page.fill("#gate-key", key)
            page.keyboard.press("Enter")
        page.wait_for_selector("#link[data-state=live]")
        wait(page, "document.getElementById('n-pool').dataset.value !== ''")
        assert KEY not in page.url
        page.close()


def beside(page: Any) -> list[str | None]:
    """The ids of the bars below the first one, from left to right, as the keys walk them."""
    if page.is_visible("#node-close"):
        page.click("#node-close")
    page.focus("#canvas")
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    ids = []
    for _ in range(3):
        ids.append(page.get_attribute("#node", "data-id"))
        page.keyboard.press("ArrowRight")
    return ids


def test_what_was_out_of_sight_comes_back_where_it_stood(page, url):
    fire(page, "tree")
    whole = len(agrees(page, url)["nodes"])
    before = beside(page)
    assert len(set(before)) == 3
    page.keyboard.press("Enter")
    wait(page, f"document.getElementById('canvas').dataset.bars < {whole}")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    wait(page, f"document.getElementById('canvas').dataset.bars === '{whole}'")
    assert beside(page) == before


def test_the_past_is_looked_into_as_the_present_is(page, url):
    """Path and facts are those of the moment that is shown."""
    fire(page, "tree")
    whole = len(agrees(page, url)["nodes"])
    beside(page)
    time.sleep(1.5)
    httpx.post(f"{url}/flush_cache", timeout=30)
    agrees(page, url)
    wait(page, "document.getElementById('node-facts').textContent.includes('not in what')")
    for _ in range(4):
        page.keyboard.press(",")
    wait(page, f"document.getElementById('canvas').dataset.bars === '{whole}'")
    wait(page, "document.getElementById('node-facts').textContent.includes('cached')")
    page.click("#node-open")
    wait(page, f"document.getElementById('canvas').dataset.bars < {whole}")
    assert page.is_visible("#past")
    assert page.get_attribute("#path button:last-child", "aria-current") == "page"
    assert page.is_disabled("#node-open")
    page.click("#path button:first-child")
    wait(page, f"document.getElementById('canvas').dataset.bars === '{whole}'")
    page.keyboard.press(" ")
    wait(page, "document.getElementById('n-nodes').dataset.value === '0'")


def test_the_tip_is_of_what_lies_below_the_pointer_now(page, url):
    """Also while the pointer rests and the bars move."""
    httpx.post(f"{url}/generate", json={"text": "Below the pointer"}, timeout=30)
    agrees(page, url)
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    wait(page, "document.getElementById('tip').textContent.includes('Below the pointer')")
    httpx.post(f"{url}/generate", json={"text": "Below the pointer"}, timeout=30)
    wait(page, "/Hits[1-9]/.test(document.getElementById('tip').textContent)")
    httpx.post(f"{url}/flush_cache", timeout=30)
    wait(page, "document.getElementById('tip').hidden")


def test_who_hears_the_page_hears_what_matters(page, url):
    """Numbers that change ten times a second are not announced; the chosen node is."""
    httpx.post(f"{url}/generate", json={"text": "Heard of"}, timeout=30)
    agrees(page, url)
    live = "[...document.querySelectorAll('output, [role=status], [aria-live=polite]')]"
    told = page.evaluate(f"{live}.map((part) => part.id).filter(Boolean)")
    assert told == ["link", "summary", "chosen"]
    page.focus("#canvas")
    page.keyboard.press("ArrowDown")
    wait(page, "document.getElementById('chosen').textContent.includes('Heard of')")
    page.click("[data-load=clock]")
    page.wait_for_selector("[data-load=clock] + p[aria-busy=true]")
    page.wait_for_selector("[data-load=clock] + p[aria-busy=false]")


def test_after_a_search_the_keys_go_on_in_the_tree(page, url):
    httpx.post(f"{url}/generate", json={"text": "Found by its text"}, timeout=30)
    agrees(page, url)
    page.fill("#query", "by its")
    page.wait_for_selector("#found button")
    page.keyboard.press("Enter")
    wait(page, "document.activeElement.closest('#found') !== null")
    page.keyboard.press("Enter")
    wait(page, "document.activeElement.id === 'canvas'")


def test_a_server_that_is_gone_is_seen_and_said(browser):
    with live(fake_engine()[0]) as url:
        page = opened(browser, url)
    page.wait_for_selector("body[data-link=lost]")
    page.click("[data-load=chat]")
    failed = page.wait_for_selector("[data-load=chat] + p[data-state=failed]")
    assert failed.text_content() == "the server does not answer"
    page.close()


def test_another_server_in_the_same_place_is_another_tree(browser, url):
    """Its ids mean other nodes: what was chosen in the old one is chosen no more."""
    page = opened(browser, url)
    httpx.post(f"{url}/generate", json={"text": "Chosen"}, timeout=30)
    agrees(page, url)
    page.click("#table tbody button")
    told = tree(url)
    older = told["version"] - 1
    page.route(
        "**/cache/events*", lambda route: route.fulfill(body=snapshot({**told, "version": older}))
    )
    page.evaluate("document.activeElement.blur()")
    page.click("#node-open")
    wait(page, f"document.body.dataset.version === '{older}'")
    assert page.is_hidden("#node")
    page.close()


def test_on_a_phone_the_loads_are_above_the_tree(page, url):
    """Both are seen at once, and nothing is wider than the screen."""
    page.set_viewport_size({"width": 390, "height": 844})
    loads, tree_box = (page.locator(part).bounding_box() for part in ("#try", "#tree"))
    assert loads["y"] + loads["height"] <= tree_box["y"]
    assert tree_box["y"] - loads["y"] < 400
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "24 of 24 requests" in fire(page, "agents")


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (5_000, "Prompts that share nothing. A full pool evicts leaves first."),
        (1_000_000, "at most 4.1 % of this pool. With --kv-tokens 6000 they evict."),
    ],
)
def test_raw_promises_evictions_where_the_pool_is_small_enough(page, pool, words):
    told = page.evaluate(
        "async (pool) => (await import('./ui/sample_loads.js')).LOADS"
        ".find((load) => load.name === 'raw').told(2048, pool)",
        pool,
    )
    assert told.endswith(words)
