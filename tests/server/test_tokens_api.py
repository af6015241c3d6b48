"""/tokenize, /detokenize, /tokenizer_info: as vLLM shapes them."""

from __future__ import annotations

import pytest

from tests.server_support import CHATML
from tests.text_samples import SAMPLES

MESSAGES = [{"role": "user", "content": "hello"}]


def test_a_text_is_tokenized(fake):
    body = fake.post("/tokenize", prompt="hello the", model="test-model").json()
    tokens = fake.engine.tokenizer.encode("hello the").tolist()
    assert body == {
        "count": len(tokens),
        "max_model_len": 2000,
        "tokens": tokens,
        "token_strs": None,
    }


def test_tokens_come_as_the_vocabulary_spells_them(fake):
    body = fake.post("/tokenize", prompt="hello é<|end|>", return_token_strs=True).json()
    assert body["token_strs"] == ["hello", "Ġ", "Ã©", "<|end|>"]
    assert len(body["tokens"]) == body["count"] == 4


def test_detokenizing_as_vllm_and_sglang_have_it(fake):
    ids = fake.post("/tokenize", prompt="hello<|end|>").json()["tokens"]
    for fields, one in (
        ({}, "hello<|end|>"),
        ({"skip_special_tokens": False}, "hello<|end|>"),
        ({"skip_special_tokens": True}, "hello"),
    ):
        body = fake.post("/detokenize", tokens=ids, **fields).json()
        assert body == {"prompt": one, "text": one}
        body = fake.post("/detokenize", tokens=[ids, [], ids], **fields).json()
        assert body == {"prompt": [one, "", one], "text": [one, "", one]}
    assert fake.post("/detokenize", tokens=[]).json()["text"] == ""


def test_no_text_is_no_tokens(fake):
    assert fake.post("/tokenize", prompt="").json()["tokens"] == []


def test_messages_are_tokenized_as_a_chat_s(fake):
    body = fake.post("/tokenize", messages=MESSAGES).json()
    assert body["count"] == fake.chat("hello", max_tokens=1).json()["usage"]["prompt_tokens"]
    text = fake.post("/detokenize", tokens=body["tokens"]).json()["prompt"]
    assert text == "<|start|>user\nhello<|end|><|start|>assistant\n"
    body = fake.post("/tokenize", messages=MESSAGES, add_generation_prompt=False).json()
    text = fake.post("/detokenize", tokens=body["tokens"]).json()["prompt"]
    assert text == "<|start|>user\nhello<|end|>"
    body = fake.post("/tokenize", messages=MESSAGES, continue_final_message=True).json()
    text = fake.post("/detokenize", tokens=body["tokens"]).json()["prompt"]
    assert text == "<|start|>user\nhello"


@pytest.mark.parametrize(
    ("body", "special"),
    [
        ({"prompt": "a"}, True),
        ({"prompt": "a", "add_special_tokens": False}, False),
        ({"messages": MESSAGES}, False),
        ({"messages": MESSAGES, "add_special_tokens": True}, True),
    ],
)
def test_special_tokens_are_added_where_no_template_writes_them(fake, monkeypatch, body, special):
    asked = []
    encode = fake.engine.tokenizer.encode

    def spy(text, *, add_special_tokens, **options):
        asked.append(add_special_tokens)
        return encode(text, add_special_tokens=add_special_tokens, **options)

    monkeypatch.setattr(fake.engine.tokenizer, "encode", spy)
    assert fake.post("/tokenize", **body).is_success
    assert asked == [special]


@pytest.mark.parametrize("text", [*SAMPLES, "<|start|>a<think><|end|>"])
def test_detokenizing_gives_the_text_back(fake, text):
    tokens = fake.post("/tokenize", prompt=text).json()["tokens"]
    assert fake.post("/detokenize", tokens=tokens).json()["prompt"] == text


def test_no_tokens_are_no_text(fake):
    assert fake.post("/detokenize", tokens=[]).json()["prompt"] == ""


def test_the_tokenizer_tells_its_configuration(fake, real):
    assert fake.get("/tokenizer_info").json() == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHATML,
    }
    info = real.get("/tokenizer_info").json()
    assert info["chat_template"] == real.engine.chat_template.source
    assert info.items() >= {**real.engine.tokenizer.config}.items()
