"""Messages to prompt text, by the model's own Jinja template, run in a sandbox."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import nodes

from radixlm.core.errors import InvalidRequestError, ModelError
from radixlm.formats.files import read_text
from radixlm.formats.model_files import ModelFiles, files_of
from radixlm.text.continuing import continued
from radixlm.text.fitting import WORDS, Fit, Fitted, fitted, one_text, spelled, wider
from radixlm.text.named_tokens import special_texts
from radixlm.text.probing import find_fit
from radixlm.text.sandbox import Budget, GivenList, Settable, compiled, parsed
from radixlm.text.tokenizer import Tokenizer
from radixlm.text.tool_text import AS_JSON, CallText

_logger = logging.getLogger("radixlm.text")

_MOST_BYTES = 4 * 2**20
_DEFAULT = "default"
_WITH_TOOLS = "tool_use"

Message = Mapping[str, Any]
_ASKED, _ANSWERED = ({"role": role, "content": "a"} for role in ("user", "assistant"))


def _as_it_is(value: Any) -> Any:
    return value


def _only_one_end(add_generation_prompt: bool | None) -> None:
    if add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt exclude each other",
            param="continue_final_message",
        )


class _Control(NamedTuple):
    """Added tokens that are not special, but a template's own; see `ChatTemplate.plain_text`.

    written: all that it writes, of thoughts and calls too. of_turns: those between the messages of
    any dialogue, but for those that it looks for in an answer, which has them as the model wrote.
    """

    written: frozenset[str]
    of_turns: frozenset[str]


class ChatTemplate:
    """A compiled template. Message content is only ever a value in it, never evaluated.

    Content that spells a special token would still be read as that token when the text is
    tokenized: see `plain_text`.
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
        self._fits: dict[tuple[bool, bool], Fit] = {}
        self._told: set[str] = set()
        self._controls: dict[Tokenizer, _Control] = {}
        self._template = compiled(source)
        self._with_tools = self._template if tool_source is None else compiled(tool_source)

    @classmethod
    def load(cls, model: Path | ModelFiles, override: Path | None = None) -> ChatTemplate | None:
        """The model's template, or the file `override` with the model's special tokens.

        chat_template.jinja goes before `chat_template` in tokenizer_config.json, which is a text
        or a list of named ones: `default`, and `tool_use` for when there are tools; files of
        additional_chat_templates have names, too. None when the model has no template. Raises
        ModelError when a file cannot be read.
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
        write = partial(self._write, kwargs)
        if not continue_final_message:
            return write(plain, add_generation_prompt is not False)
        _only_one_end(add_generation_prompt)
        return continued(write, plain)

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        /,
        *,
        described: bool,
        calls: CallText = AS_JSON,
        quoted: Callable[[Any], Any] = _as_it_is,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Render as `render` does, with whatever the template refuses or leaves out fitted to it:
        see `Fit`.

        described: the template writes tools, calls and results; else they are text. calls: how
        they are written where they are text.
        quoted: makes plain text of a message or tool, but of an answer that is to be continued.
        """
        _only_one_end(add_generation_prompt and continue_final_message)
        render = partial(
            self._render_fitted,
            *(messages, tools, kwargs, calls, quoted),
            opens=add_generation_prompt is not False,
            continues=continue_final_message,
        )
        fit = self.fit(described=described, tools=bool(tools))
        try:
            return render(fit)
        except InvalidRequestError as refused:
            for other in wider(fit):
                with suppress(InvalidRequestError):
                    return render(other)
            raise refused from None

    def _render_fitted(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        variables: Mapping[str, Any],
        calls: CallText,
        quoted: Callable[[Any], Any],
        fit: Fit,
        *,
        opens: bool,
        continues: bool,
    ) -> str:
        continues = continues and not (
            messages and messages[-1].get("tool_calls")
        )  # those are whole
        # Before calls are written as text: their markers are meant.
        ends = len(messages) - bool(continues and messages and messages[-1]["role"] == "assistant")
        safe = [*map(quoted, messages[:ends]), *messages[ends:]]
        chat = fitted(safe, [quoted(tool) for tool in tools], fit, calls)

        def write(said: Sequence[Message], opens: bool) -> str:
            made = [spelled(message, fit) for message in said]
            return self._write({**variables, **_tools(chat.tools, fit)}, made, opens)

        text = continued(write, chat.messages) if continues else write(chat.messages, opens)
        self._tell(chat.changes)
        return text

    def plain_text(self, tokenizer: Tokenizer, mark: str, value: Any) -> Any:
        """A message, or part of one, with `mark` inside of every spelled special or control token,
        for `Tokenizer.encode`.

        So no text that came from outside ends a turn or begins another one; that holds for
        descriptions of tools and for the assistant's messages, which may repeat a user's.
        """
        control = self._control(tokenizer)
        own = isinstance(value, Mapping) and value.get("role") == "assistant"
        more = control.of_turns if own else control.written
        return _broken_up(value, partial(tokenizer.broken_up, mark=mark, more=more))

    def _control(self, tokenizer: Tokenizer) -> _Control:
        known = self._controls.get(tokenizer)
        if known is None:
            plain = ""
            with suppress(InvalidRequestError):
                plain = self.render([_ASKED, _ANSWERED, _ASKED], add_generation_prompt=False)
            sources = {self.source, self.tool_source}
            added = {text for text in tokenizer.added_texts if not text.isspace()}
            turns = {text for text in added if text in plain}
            written = turns | {text for text in added if any(text in each for each in sources)}
            looked_for = "\0".join(text for each in sources for text in _looked_for(each))
            turns = {text for text in turns if text not in looked_for}
            known = _Control(frozenset(written), frozenset(turns))
            self._controls[tokenizer] = known
        return known

    def fit(self, *, described: bool, tools: bool) -> Fit:
        """The changes to conversations with tools or without; found when it is first needed."""
        known = self._fits.get((described, tools))
        if known is None:
            known = find_fit(self._probe, described=described, tools=tools)
            self._fits[described, tools] = known
        return known

    def _probe(self, chat: Fitted, fit: Fit, opens: bool) -> str:
        said = [spelled(message, fit) for message in chat.messages]
        thinking = {"enable_thinking": True, "thinking": True}
        return self._write({**thinking, **_tools(chat.tools, fit)}, said, opens)

    def _tell(self, changes: Sequence[str]) -> None:
        """Log what is done to conversations, each kind once."""
        for change in changes:
            if change not in self._told:
                self._told.add(change)
                _logger.info("for this model's chat template, %s", WORDS[change])

    def _write(self, variables: Mapping[str, Any], messages: Sequence[Message], opens: bool) -> str:
        return self._run({**variables, "messages": GivenList(map(Settable, messages))}, opens)

    def _run(self, variables: Mapping[str, Any], add_generation_prompt: bool) -> str:
        budget = Budget()
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
    if override is not None:
        if not override.exists():
            raise ModelError(f"--chat-template {override}: no such file")
        return {_DEFAULT: _read(override, given=True)}
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    named = {path.stem: _read(path) for path in more}
    if (path := folder / "chat_template.jinja").exists():
        return {**named, _DEFAULT: _read(path)}
    match config.get("chat_template"):
        case None:
            pass
        case str(source):
            named[_DEFAULT] = source
        case list(entries):
            named |= dict(_named_template(folder, entry) for entry in entries)
        case other:
            raise ModelError(f"{folder}: chat_template is {type(other).__name__}, not a text")
    if named and _DEFAULT not in named:
        raise ModelError(
            f"{folder}: no chat template is named default, only "
            f"{', '.join(sorted(named))}; choose one with --chat-template FILE.jinja"
        )
    return named


def _read(path: Path, *, given: bool = False) -> str:
    """given: by the user, whose file may be a pipe."""
    try:
        return path.read_text(encoding="utf-8") if given else read_text(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise ModelError(f"chat template {path} cannot be read: {error}") from error


def _named_template(folder: Path, entry: Any) -> tuple[str, str]:
    match entry:
        case {"name": str(name), "template": str(source)}:
            return name, source
    raise ModelError(
        f"{folder}: each entry of chat_template needs a name and a template, got {entry!r:.80}"
    )


def _tools(tools: Sequence[Message] | None, fit: Fit) -> dict[str, Any]:
    if not fit.tools_as_functions:
        return {"tools": tools}
    text = json.dumps(tools or [], ensure_ascii=False)
    return {"tools": tools, "functions": text, "datetime": _strftime_now("%Y-%m-%d")}


def _refuse(message: str) -> None:
    raise InvalidRequestError(f"the chat template refuses: {message}", param="messages")


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _looked_for(source: str) -> Iterator[str]:
    """The texts that a template looks for in a message's."""
    tree = parsed(source)
    places: list[nodes.Expr] = [*tree.find_all(nodes.Compare)]
    for call in tree.find_all(nodes.Call):
        places += call.args if isinstance(call.node, nodes.Getattr) else ()
    for place in places:
        found = [place] if isinstance(place, nodes.Const) else place.find_all(nodes.Const)
        yield from (each.value for each in found if isinstance(each.value, str))


def _broken_up(value: Any, broken: Callable[[str], str]) -> Any:
    match value:
        case str():
            return broken(value)
        case list():
            return [_broken_up(each, broken) for each in value]
        case Mapping():
            return {broken(name): _broken_up(entry, broken) for name, entry in value.items()}
    return value
