"""Messages to prompt text, by the model's own Jinja template, run in a sandbox."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from radixlm.core.errors import InvalidRequestError, ModelError
from radixlm.core.files import read_text
from radixlm.text.sandbox import Budget, make_environment
from radixlm.text.tokenizer import Tokenizer, read_tokenizer_config, special_token_text

MAX_RENDERED = 32 * 2**20
_MOST_BYTES = 4 * 2**20
_DEFAULT = "default"
_WITH_TOOLS = "tool_use"
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template. Message content is only ever a value in it, never evaluated.

    Content that spells a special token would still be read as that token when the text is
    tokenized: see `as_plain_text`.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        tool_source: str | None = None,
    ) -> None:
        """tool_source: another one, for when there are tools.

        Raise ModelError when a source is not a valid template.
        """
        self.source = source
        self.tool_source = tool_source or source
        self._variables = dict(special_tokens or {})
        self._template = _compiled(source)
        self._with_tools = self._template if tool_source is None else _compiled(tool_source)

    @cached_property
    def takes_system(self) -> bool:
        """Whether a system message's text reaches the prompt."""
        text = uuid.uuid4().hex
        system = {"role": "system", "content": text}
        try:
            return text in self.render([system, {"role": "user", "content": ""}])
        except InvalidRequestError:
            return False

    @classmethod
    def load(cls, folder: Path, override: Path | None = None) -> ChatTemplate | None:
        """The folder's template, or the file `override` with the folder's special tokens.

        chat_template.jinja goes before `chat_template` in tokenizer_config.json, which is a text
        or a list of named ones: `default`, and `tool_use` for when there are tools. None when the
        folder has no template. Raises ModelError when a file cannot be read.
        """
        config = read_tokenizer_config(folder)
        sources = _find_sources(folder, override, config)
        if _DEFAULT not in sources:
            return None
        texts = {name: special_token_text(config, name) for name in _SPECIAL_NAMES}
        special = {name: text for name, text in texts.items() if text is not None}
        return cls(sources[_DEFAULT], special, tool_source=sources.get(_WITH_TOOLS))

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt's text, special tokens included: tokenize it without adding more.

        messages: each has `role` and `content`, a text or a list of {"type": "text", "text": …};
            the assistant's may have `tool_calls`, with their arguments as mappings.
        add_generation_prompt: end with the opening of the assistant's turn; the default, unless
            continue_final_message leaves the last message open to be gone on with.
        kwargs: more variables for the template, such as `tools` or enable_thinking.

        Raises InvalidRequestError with the template's own message when it refuses the messages.
        """
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        plain = [{**message, "content": one_text(message.get("content"))} for message in messages]
        marker = ""
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidRequestError(
                    "continue_final_message and add_generation_prompt exclude each other",
                    param="continue_final_message",
                )
            marker = _mark_end(plain)
        text = self._run({**kwargs, "messages": plain}, add_generation_prompt)
        if not marker:
            return text
        head, found, _ = text.rpartition(marker)
        if not found:
            raise InvalidRequestError(
                "the chat template leaves out the last message, so it cannot be continued",
                param="continue_final_message",
            )
        return head

    def _run(self, variables: Mapping[str, Any], add_generation_prompt: bool) -> str:
        budget = Budget(MAX_RENDERED)
        context = {
            "tools": None,
            "documents": None,
            **self._variables,
            **variables,
            "add_generation_prompt": add_generation_prompt,
            "raise_exception": _refuse,
            "strftime_now": _strftime_now,
            "range": budget.range,
        }
        template = self._with_tools if context["tools"] else self._template
        try:
            return "".join(map(budget.spend_text, template.generate(context)))
        except InvalidRequestError:
            raise
        except Exception as error:  # a template is a program: anything may come out of it
            raise InvalidRequestError(
                f"the chat template refuses these messages: {str(error) or type(error).__name__}",
                param="messages",
            ) from error


def _compiled(source: str) -> jinja2.Template:
    try:
        return make_environment().from_string(source)
    except Exception as error:  # Python compiles it, too: whatever that raises, it is of no use
        reason = str(error) or type(error).__name__
        raise ModelError(f"the chat template is not valid Jinja: {reason:.500}") from error


def as_plain_text(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    mark: str,
    *,
    continue_final_message: bool = False,
) -> list[dict[str, Any]]:
    """The messages with `mark` inside of what spells a special token, for `Tokenizer.encode`.

    Descriptions of tools are such messages too: they come from whoever wrote the tool.
    So nobody's words end a turn or begin another one's. That holds for the assistant's too, which
    may repeat a user's; but the beginning of an answer that is to be continued is taken as it is.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return tokenizer.broken_up(value, mark)
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        if isinstance(value, Mapping):
            return {plain(name): plain(entry) for name, entry in value.items()}
        return value

    ends = len(messages)
    if continue_final_message and messages and messages[-1].get("role") == "assistant":
        ends -= 1
    return [plain(message) for message in messages[:ends]] + [
        dict(message) for message in messages[ends:]
    ]


def require_template(template: ChatTemplate | None) -> ChatTemplate:
    """The template, or InvalidRequestError that says how to give the model one."""
    if template is None:
        raise InvalidRequestError(
            "this model has no chat template; start with --chat-template FILE.jinja, "
            "or send a prompt to /v1/completions",
            param="messages",
        )
    return template


def _find_sources(folder: Path, override: Path | None, config: Mapping[str, Any]) -> dict[str, str]:
    """The templates by their names."""
    path = override or folder / "chat_template.jinja"
    try:
        # The user's own file may be a pipe.
        text = path.read_text(encoding="utf-8") if override else read_text(path, _MOST_BYTES)
        return {_DEFAULT: text}
    except FileNotFoundError:
        if override is not None:
            raise ModelError(f"--chat-template {override}: no such file") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"chat template {path} cannot be read: {error}") from error
    source = config.get("chat_template")
    match source:
        case None:
            return {}
        case str():
            return {_DEFAULT: source}
        case list():
            named = dict(_named_template(folder, entry) for entry in source)
            if named and _DEFAULT not in named:
                raise ModelError(
                    f"{folder}: no chat template is named default, only "
                    f"{', '.join(sorted(named))}; choose one with --chat-template FILE.jinja"
                )
            return named
    raise ModelError(f"{folder}: chat_template is {type(source).__name__}, not a text")


def _named_template(folder: Path, entry: Any) -> tuple[str, str]:
    match entry:
        case {"name": str(name), "template": str(source)}:
            return name, source
    raise ModelError(
        f"{folder}: each entry of chat_template needs a name and a template, got {entry!r:.80}"
    )


def one_text(content: Any) -> Any:
    """A message's content as templates get it: text parts as one text, a line each.

    Templates that know no parts are the many.
    """
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise InvalidRequestError(
                f"only text parts are supported in message content, got {part!r:.80}",
                param="messages",
            )
    return "\n".join(str(part.get("text", "")) for part in content)


def _mark_end(messages: list[dict[str, Any]]) -> str:
    """Append a mark to the last message's text, to find where it ends in the rendered text."""
    if not messages or not isinstance(messages[-1]["content"], str):
        raise InvalidRequestError(
            "continue_final_message needs a last message with text", param="continue_final_message"
        )
    marker = uuid.uuid4().hex
    messages[-1]["content"] += marker
    return marker


def _refuse(message: str) -> None:
    raise InvalidRequestError(f"the chat template refuses: {message}", param="messages")


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
