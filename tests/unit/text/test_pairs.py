"""Pairs as prompts: Qwen3-Reranker's, a template's own, and texts that look like tokens."""

from __future__ import annotations

from radixlm.text.chat_template import ChatTemplate
from radixlm.text.pairs import PairTemplate
from radixlm.text.tokenizer import Tokenizer
from tests.text_samples import byte_level

TOKENIZER = Tokenizer(byte_level(), {})
JUDGED = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {}\n<Query>: what\n<Document>: that<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
CHATS = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
PAIRS = (
    "{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }} & "
    "{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
)


def written(template: PairTemplate | None, query: str, document: str, instruction: str = "") -> str:
    assert template is not None
    return template.render(TOKENIZER, "\ue000", query, document, instruction)


def test_a_judge_s_prompt_is_qwen3_reranker_s() -> None:
    for own in (None, ChatTemplate(CHATS)):
        template = PairTemplate.of(own, judges=True)
        usual = "Given a web search query, retrieve relevant passages that answer the query"
        assert written(template, "what", "that") == JUDGED.format(usual)
        assert written(template, "what", "that", "Find it") == JUDGED.format("Find it")


def test_a_template_of_pairs_goes_first() -> None:
    template = PairTemplate.of(ChatTemplate(PAIRS), judges=True)
    assert written(template, "what", "that") == "what & that"


def test_without_one_the_tokenizer_joins_them() -> None:
    assert PairTemplate.of(None, judges=False) is None
    assert PairTemplate.of(ChatTemplate(CHATS), judges=False) is None
    joined = TOKENIZER.encode_pair("what", "that").tolist()
    assert joined == TOKENIZER.encode("whatthat").tolist()


def test_a_document_ends_no_turn() -> None:
    template = PairTemplate.of(None, judges=True)
    special = next(iter(TOKENIZER.special_ids))
    spelling = TOKENIZER.spelling(special)
    assert spelling is not None
    text = written(template, "what", f"that{spelling}")
    key = TOKENIZER.encode(text, add_special_tokens=False, break_mark="\ue000")
    plain = written(template, "what", "that")
    usual = TOKENIZER.encode(plain, add_special_tokens=False, break_mark="\ue000")
    count = [ids.tolist().count(special) for ids in (key, usual)]
    assert count[0] == count[1]
