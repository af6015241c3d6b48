"""Two requests' bodies compared, as the server would read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from radixlm.core.errors import ConfigError, InvalidKeyError, InvalidRequestError
from radixlm.core.keys import Key, as_key, common_prefix
from radixlm.core.misses import MissReason, MissReport
from radixlm.formats.model_files import files_of
from radixlm.observe.causes import Outline, find
from radixlm.parsers.style import AnswerStyle
from radixlm.server import explain_body
from radixlm.server.anthropic import messages_conversation as messages
from radixlm.server.bodies.billing_header import without_billing_header
from radixlm.server.bodies.chat_conversation import chat_of
from radixlm.server.bodies.conversation import Conversation
from radixlm.server.responses import responses_conversation as responses
from radixlm.text.chat_template import ChatTemplate, require_template
from radixlm.text.model_folder import resolve_model
from radixlm.text.thinking_switch import ThinkingSwitch
from radixlm.text.tokenizer import Tokenizer, new_mark

# What is said where there is no fix, because nothing is wrong.
_ALL_CACHED = "nothing to do: all of the second prompt is cached, but its last token"
_GOES_ON = "nothing to do: the second prompt goes on where the first one ends"
_OWN_TEXTS = (
    "nothing to do if the two are meant to differ from here on; what both need belongs in front"
)


class _Prompt(NamedTuple):
    key: Key
    outline: Outline | None


def compared(first: str, second: str, model: str | None) -> dict[str, Any]:
    """Compare the prompts of two files; where they part, as JSON. Raises ConfigError."""
    files = files_of(resolve_model(model))
    tokenizer, template = Tokenizer.load(files), ChatTemplate.load(files)
    (ours, _), theirs = (_prompt(Path(name), tokenizer, template) for name in (first, second))
    same = common_prefix(ours, theirs.key)
    common: dict[str, Any] = {"shared_tokens": same, "prompt_tokens": int(theirs.key.size)}
    if same == min(ours.size, theirs.key.size):
        what = "one prompt begins with the other" if ours.size != theirs.key.size else "the same"
        advice = _ALL_CACHED if same == theirs.key.size else _GOES_ON
        none = dict.fromkeys(("cause", "where", "context"))
        return common | none | {"what": what, "advice": advice}
    miss = MissReport(
        int(theirs.key.size),
        same,
        MissReason.DIVERGED,
        same,
        shared=ours[:same].tobytes(),
        cached_next=ours[same:].tobytes(),
        requested_next=theirs.key[same:].tobytes(),
    )
    found = find(tokenizer, miss, theirs.key, theirs.outline)
    return common | {
        "cause": found.cause.value,
        "where": found.place,
        "what": found.what,
        "context": None if found.difference is None else found.difference.marked,
        "advice": found.fix or _OWN_TEXTS,
    }


def _prompt(path: Path, tokenizer: Tokenizer, template: ChatTemplate | None) -> _Prompt:
    """The prompt of a request's file. Raises ConfigError for one that holds none, or several."""
    try:
        prompt = _prompt_of(explain_body.explain_body(path.read_bytes()), tokenizer, template)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (InvalidKeyError, InvalidRequestError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not prompt.key.size:
        raise ConfigError(f"{path}: the prompt has no tokens")
    return prompt


def _prompt_of(
    body: explain_body.ExplainBody, tokenizer: Tokenizer, template: ChatTemplate | None
) -> _Prompt:
    """The prompt of a body as its route reads it; what of it makes no prompt is not looked at."""
    match body:
        case explain_body.ExplainChat():
            return _chat(chat_of(body), tokenizer, template)
        case explain_body.ExplainMessages():
            return _chat(messages.conversation_of(body), tokenizer, template)
        case explain_body.ExplainResponse():
            if body.previous_response_id is not None:
                raise InvalidRequestError(
                    "previous_response_id is of a server that stores it; write what it continues "
                    "into input"
                )
            return _chat(responses.conversation_of(body), tokenizer, template)
        case explain_body.ExplainCompletion():
            special = body.add_special_tokens is not False
        case explain_body.ExplainGenerate():
            special = True
    prompts = body.to_prompts()
    if len(prompts) != 1:
        raise InvalidRequestError(f"there are {len(prompts)} prompts; give each a file of its own")
    [prompt] = prompts
    if isinstance(prompt, str):
        return _Prompt(tokenizer.encode(prompt, add_special_tokens=special), None)
    return _Prompt(as_key(prompt), None)


def _chat(chat: Conversation, tokenizer: Tokenizer, known: ChatTemplate | None) -> _Prompt:
    template, mark = require_template(known), new_mark()
    switch = ThinkingSwitch.of(template)
    chat = without_billing_header(chat).asking(switch)
    text = chat.render(template, AnswerStyle.found(template, switch=switch), tokenizer, mark)
    special = chat.add_special_tokens
    key = tokenizer.encode(text, add_special_tokens=special, break_mark=mark)
    return _Prompt(key, chat.outline(text, mark))
