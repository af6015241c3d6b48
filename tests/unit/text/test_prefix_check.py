"""Templates that keep the prefix of a conversation, and ones that do not."""

from __future__ import annotations

import pytest
import tokenizers

from radixlm.text.chat_template import ChatTemplate
from radixlm.text.prefix_check import LONGEST_PROMPT, BrokenPrefix, broken_prefixes, warning_of
from radixlm.text.tokenizer import Tokenizer
from tests.text_samples import byte_level

KEEPS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>\n"
    "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
OTHER_FIELD = KEEPS.replace("reasoning_content", "thinking")
TRIMS = KEEPS.replace("{{ m.content }}", "{{ m.content | trim }}")
DROPS = KEEPS.replace("{% if m.reasoning_content %}", "{% if m.reasoning_content and loop.last %}")
OPENS = KEEPS.replace("[assistant]{% endif %}", "[assistant]<think>\n{% endif %}")
TURNS_BACK = (
    "{% for m in messages[::-1] %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
REFUSES = "{{ raise_exception('no') }}"
CRASHES = "{{ messages[5].content.x.y }}"
LONG = f"{{{{ 'x' * {LONGEST_PROMPT} }}}}" + TRIMS
NOT_UNICODE = r"{{ '\ud800' }}" + TRIMS


def broken(source: str) -> tuple[BrokenPrefix, ...]:
    return broken_prefixes(ChatTemplate(source), Tokenizer(byte_level(), {}))


@pytest.mark.parametrize("source", [KEEPS, OTHER_FIELD, REFUSES, CRASHES, LONG, NOT_UNICODE])
def test_nothing_to_tell(source: str) -> None:
    assert broken(source) == ()


def test_a_tokenizer_that_can_not_read_the_prompt() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}))
    with pytest.raises(Exception, match="UNK"):
        backend.encode("b")
    assert broken_prefixes(ChatTemplate(TRIMS), Tokenizer(backend, {})) == ()


def test_thoughts_that_the_prompt_opens_are_kept() -> None:
    assert "reasoning of earlier turns" not in [entry.what for entry in broken(OPENS)]


def test_what_is_trimmed() -> None:
    [entry] = broken(TRIMS)
    assert entry.what == "white space around an answer"
    assert (entry.written[:5], entry.rendered[:4]) == ("\n Yes", "Yes,")
    assert 0 < entry.tokens[0] < entry.tokens[1]
    assert "previous_response_id" in entry.fix


def test_reasoning_that_is_dropped() -> None:
    [entry] = broken(DROPS)
    assert entry.what == "reasoning of earlier turns"
    assert entry.written.startswith("<think>\nIt may be.")
    assert entry.rendered.startswith("Yes, it is.")
    assert "--chat-template" in entry.fix


def test_another_order() -> None:
    assert "text" in [entry.what for entry in broken(TURNS_BACK)]


def test_the_log_line() -> None:
    line = warning_of(broken(DROPS))
    assert "reasoning of earlier turns: '<think>" in line
    assert "\n" not in line
