"""/v1/responses/{id}/input_items."""

from __future__ import annotations

from openai.types.responses.response_item_list import ResponseItemList

from tests.published import strictly
from tests.responses_support import respond
from tests.server_support import refused


def test_input_items_are_listed_in_pages(fake):
    items = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
    ]
    path = f"/v1/responses/{respond(fake, items).json()['id']}/input_items"
    whole = fake.get(path)
    strictly(ResponseItemList, whole.text)
    found = whole.json()["data"]
    assert [item["type"] for item in found] == [
        *("function_call_output", "function_call", "message", "message"),
    ]
    assert found[-1]["content"] == [{"type": "input_text", "text": "a"}]
    first = fake.get(f"{path}?limit=3&order=asc").json()
    assert first["has_more"]
    rest = fake.get(f"{path}?order=asc&after={first['last_id']}&include[]=").status_code
    assert rest == 400  # of nothing there is nothing to include
    rest = fake.get(f"{path}?order=asc&after={first['last_id']}").json()
    assert [*first["data"], *rest["data"]] == found[::-1]
    assert not rest["has_more"]
    for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("after=x", "after")):
        assert refused(fake.get(f"{path}?{query}"))["param"] == param
    assert refused(fake.get(f"{path}?nonsense=1"))["param"] == "nonsense"
