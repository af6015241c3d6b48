"""Messages to prompt text, by the model's own Jinja template, run in a sandbox."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from radixlm.core.errors import InvalidRequestError, ModelError
from radixlm.core.files import read_text
from radixlm.core.model_files import ModelFiles, files_of
from radixlm.text.tokenizer import Tokenizer, special_texts

MAX_RENDERED = 32 * 2**20  # characters
_MOST_BYTES = 4 * 2**20
_MAX_STEPS = _MAX_REPEAT = 1_000_000
_MAX_POWER = 10_000
_DEFAULT = "default"
_WITH_TOOLS = "tool_use"

Message = Mapping[str, Any]

_HEAD = """You may call functions. These are there, one a line, each with the JSON schema of its \
parameters:"""
_FOOT = """To call one, answer with nothing but a JSON object:
{"name": <the function's name>, "arguments": <an object of its parameters>}
To call several, write one such object a line. You are given the results then."""


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
    def load(cls, model: Path | ModelFiles, override: Path | None = None) -> ChatTemplate | None:
        """The model's template, or the file `override` with the model's special tokens.

        chat_template.jinja goes before `chat_template` in tokenizer_config.json, which is a text
        or a list of named ones: `default`, and `tool_use` for when there are tools. None when the
        model has no template. Raises ModelError when a file cannot be read.
        """
        files = files_of(model)
        config = files.tokenizer_config()
        sources = _find_sources(files.path, override, config)
        if _DEFAULT not in sources:
            return None
        special = special_texts(config)
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
            continue_final_message leaves the last message open to be continued.
        kwargs: more variables for the template, such as `tools` or enable_thinking.

        Raises InvalidRequestError with the template's own message when it refuses the messages.
        """
        plain = [{**message, "content": one_text(message.get("content"))} for message in messages]
        if not continue_final_message:
            return self._run({**kwargs, "messages": plain}, add_generation_prompt is not False)
        param = "continue_final_message"
        if add_generation_prompt:
            raise InvalidRequestError(
                f"{param} and add_generation_prompt exclude each other", param=param
            )
        if not plain or not isinstance(plain[-1]["content"], str):
            raise InvalidRequestError(f"{param} needs a last message with text", param=param)
        mark = uuid.uuid4().hex  # where the last message ends in the rendered text
        plain[-1]["content"] += mark
        text, found, _ = self._run({**kwargs, "messages": plain}, False).rpartition(mark)
        if not found:
            raise InvalidRequestError(
                "the chat template leaves out the last message, so it cannot be continued",
                param=param,
            )
        return text

    def _run(self, variables: Mapping[str, Any], add_generation_prompt: bool) -> str:
        budget = _Budget()
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
        except Exception as error:  # a template is a program: it may raise anything
            raise InvalidRequestError(
                f"the chat template refuses these messages: {str(error) or type(error).__name__}",
                param="messages",
            ) from error


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
    except (FileNotFoundError, NotADirectoryError):  # within a GGUF file there is none
        if override is not None:
            raise ModelError(f"--chat-template {override}: no such file") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"chat template {path} cannot be read: {error}") from error
    match config.get("chat_template"):
        case None:
            return {}
        case str(source):
            return {_DEFAULT: source}
        case list(entries):
            named = dict(_named_template(folder, entry) for entry in entries)
            if named and _DEFAULT not in named:
                raise ModelError(
                    f"{folder}: no chat template is named default, only "
                    f"{', '.join(sorted(named))}; choose one with --chat-template FILE.jinja"
                )
            return named
        case other:
            raise ModelError(f"{folder}: chat_template is {type(other).__name__}, not a text")


def _named_template(folder: Path, entry: Any) -> tuple[str, str]:
    match entry:
        case {"name": str(name), "template": str(source)}:
            return name, source
    raise ModelError(
        f"{folder}: each entry of chat_template needs a name and a template, got {entry!r:.80}"
    )


class _Budget:
    """What one rendering may use: characters of output, and steps of `range` loops in all.

    A template has no other endless loop: the rest run over values that are there already. Text that
    is doubled again and again is not bounded; templates come with the model, not the request.
    """

    def __init__(self) -> None:
        self._characters = MAX_RENDERED
        self._steps = _MAX_STEPS

    def spend_text(self, text: str) -> str:
        self._characters -= len(text)
        if self._characters < 0:
            raise OverflowError("it writes too much text")
        return text

    def range(self, *bounds: int) -> range:
        steps = range(*bounds)
        self._steps -= len(steps)
        if self._steps < 0:
            raise OverflowError("it loops too often")
        return steps


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with `*` and `**` bounded: they make large values out of small ones."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        if operator == "**" and max(abs(left), abs(right)) > _MAX_POWER:
            raise OverflowError(f"{left} ** {right} is too large")
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and len(value) * times > _MAX_REPEAT:
                    raise OverflowError(f"a value repeated {times} times is too large")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %}`, which marks the assistant's text for training: its body as it is."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compiled(source: str) -> jinja2.Template:
    """In the environment that chat templates are written for.

    Source: https://huggingface.co/docs/transformers/chat_templating_writing
    """
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    del environment.globals["lipsum"]  # as much filler as its arguments ask for, all at once
    try:
        return environment.from_string(source)
    except Exception as error:  # Python compiles it, too, and may raise anything
        reason = str(error) or type(error).__name__
        raise ModelError(f"the chat template is not valid Jinja: {reason:.500}") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> None:
    raise InvalidRequestError(f"the chat template refuses: {message}", param="messages")


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def as_plain_text(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    mark: str,
    *,
    continue_final_message: bool = False,
) -> list[dict[str, Any]]:
    """The messages with `mark` inside of every spelled special token, for `Tokenizer.encode`.

    So no text that came from outside ends a turn or begins another one; that holds for descriptions
    of tools, which are such messages too, and for the assistant's messages, which may repeat a
    user's. But the beginning of an answer that is to be continued is taken as it is.
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
    return [plain(message) for message in messages[:ends]] + [*map(dict, messages[ends:])]


def one_text(content: Any) -> Any:
    """A message's content as templates get it: text parts as one text, a line each.

    Most templates know no parts.
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


def tools_as_text(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, takes_system: bool
) -> list[dict[str, Any]]:
    """The messages for a template that knows no tools: with the tools in the system message, calls
    as the assistant's text, and results as the user's.

    takes_system: whether the template takes a system message; else the tools come with the first
    user message. The tools keep their order, so that the same ones make the same beginning.
    """
    written: list[dict[str, Any]] = []
    for are_results, group in groupby(messages, lambda message: message["role"] == "tool"):
        if are_results:  # one message: many templates want the roles in turn
            written.append({"role": "user", "content": "\n\n".join(map(_result, group))})
            continue
        said = [_with_calls(message) for message in group]
        if written and said[0]["role"] == "user":  # after results
            said = _begun_with(written.pop()["content"], said, "user")
        written += said
    if not tools:
        return written
    text = "\n".join([_HEAD, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)])
    return _begun_with(f"{text}\n{_FOOT}", written, "system" if takes_system else "user")


def _begun_with(text: str, messages: list[dict[str, Any]], role: str) -> list[dict[str, Any]]:
    """The messages with `text` in the first one, which is `role`'s."""
    if not messages or messages[0]["role"] != role:
        return [{"role": role, "content": text}, *messages]
    first, *others = messages
    own = str(one_text(first["content"]) or "")
    parts = (own, text) if role == "system" else (text, own)
    return [{**first, "content": "\n\n".join(parts)}, *others]


def _with_calls(message: Message) -> dict[str, Any]:
    """The message with its calls, if any, written as the model is asked to."""
    plain = dict(message)
    functions = [call["function"] for call in plain.pop("tool_calls", ())]
    calls = [
        json.dumps({name: function[name] for name in ("name", "arguments")}, ensure_ascii=False)
        for function in functions
    ]
    if calls:
        said = str(one_text(message["content"]) or "")
        plain["content"] = "\n".join([said, *calls] if said else calls)
    return plain


def _result(message: Message) -> str:
    return f"Result of {message['name']}:\n{one_text(message['content']) or ''}"
