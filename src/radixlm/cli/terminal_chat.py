"""A conversation in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from contextlib import aclosing
from functools import partial
from typing import Any

import click

from radixlm.assembly import Engine
from radixlm.cli.model_commands import summary
from radixlm.core.errors import InvalidRequestError
from radixlm.core.request import RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.text.chat_template import require_template
from radixlm.text.tokenizer import new_mark


def talk(model: str | None, params: SamplingParams, system: str | None, **options: Any) -> None:
    """Read lines and print answers until the input ends. options: the engine's flags."""
    with contextlib.suppress(ImportError):  # line editing, where the system has it
        importlib.import_module("readline")
    with Engine(model, **options) as engine:
        conversation = ChatHistory(engine, params, system)
        click.secho(
            f"{engine.info.name}: Ctrl-C stops an answer, /clear forgets, Ctrl-D leaves.", dim=True
        )
        while (line := _read_line()) is not None:
            if line == "/clear":
                conversation.clear()
            elif line in ("/exit", "/quit"):
                break
            elif line.startswith("/"):
                click.secho("commands: /clear forgets, /exit leaves", dim=True)
            elif line:
                _take_turn(conversation, line)


class ChatHistory:
    """The messages so far; each turn sends them all, and the cache makes that cheap."""

    def __init__(self, engine: Engine, params: SamplingParams, system: str | None = None) -> None:
        self._engine = engine
        self._params = params
        self._template = require_template(engine.chat_template)
        self._opening = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = list(self._opening)

    def clear(self) -> None:
        """Forget all but the system's message."""
        self.messages = list(self._opening)

    def ask(self, question: str) -> RequestOutput:
        """Print the answer as it comes, and remember it. KeyboardInterrupt keeps what was said.

        Raises InvalidRequestError; the question is forgotten then.
        """
        self.messages.append({"role": "user", "content": question})
        said: list[RequestOutput] = []
        try:
            asyncio.run(self._stream(said))
        except InvalidRequestError:
            self.messages.pop()
            raise
        finally:
            if said:
                text = "".join(output.text for output in said)
                self.messages.append({"role": "assistant", "content": text})
        return RequestOutput.joined(said)

    async def _stream(self, said: list[RequestOutput]) -> None:
        mark, tokenizer = new_mark(), self._engine.tokenizer
        quoted = partial(self._template.plain_text, tokenizer, mark)
        text = self._template.render_chat(self.messages, described=False, quoted=quoted)
        prompt = tokenizer.encode(text, add_special_tokens=False, break_mark=mark)
        params = self._engine.limits.fitted(prompt, self._params)
        async with aclosing(self._engine.stream(prompt, params)) as outputs:
            async for output in outputs:
                said.append(output)
                click.echo(output.text, nl=False)


def _take_turn(conversation: ChatHistory, line: str) -> None:
    begun = time.monotonic()
    try:
        output = conversation.ask(line)
    except KeyboardInterrupt:
        click.secho("\n[stopped]", dim=True)
    except InvalidRequestError as error:
        click.secho(f"{error}; /clear starts anew", fg="red", err=True)
    else:
        seconds = time.monotonic() - begun
        click.secho(f"\n{summary(output)[:-1]}, {seconds:.1f} s]", dim=True)


def _read_line() -> str | None:
    """The next line, None at the end of input; Ctrl-C gives up the line."""
    try:
        return input("> ").strip()
    except EOFError:
        click.echo()
        return None
    except KeyboardInterrupt:
        click.echo()
        return ""
