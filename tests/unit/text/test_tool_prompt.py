"""Tools told in plain text."""

from __future__ import annotations

from radixlm.text.chat_template import tools_as_text


def test_roles_take_turns_where_the_user_speaks_behind_results() -> None:
    said = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "tool", "name": "f", "content": "1"},
        {"role": "tool", "name": "g", "content": "2"},
        {"role": "user", "content": [{"type": "text", "text": "c"}]},
        {"role": "user", "content": "d"},
    ]
    told = tools_as_text(said, [], takes_system=True)
    assert [message["role"] for message in told] == ["user", "assistant", "user", "user"]
    assert told[2]["content"] == "Result of f:\n1\n\nResult of g:\n2\n\nc"
    assert tools_as_text(said[2:4], [], takes_system=True) == [
        {"role": "user", "content": "Result of f:\n1\n\nResult of g:\n2"}
    ]
