"""/v1/completions: from prompts to what is generated, and how that is written."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, NotRequired

from typing_extensions import TypedDict

from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.bodies.conversation import Json
from radixlm.server.bodies.logprobs import CompletionLogprobs, Stretch, TokenTexts, joined
from radixlm.server.bodies.protocol import CompletionBody
from radixlm.server.http.sse import spliced
from radixlm.server.insight.usage import CacheDetails, TokenUsage
from radixlm.server.openai.chat_writer import Fields, Head, OpenAIWriter, PromptIds, TokenIds
from radixlm.server.pipeline.generation import Generation, computed
from radixlm.server.pipeline.service import Service
from radixlm.text.detokenizer import PROMPT_TAIL, Detokenizer, continues


class TextLogprobs(TypedDict):
    """One entry per token in each list; null for a prompt's first token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(TokenIds, PromptIds):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class TextChoices(TypedDict):
    choices: list[TextChoice]


class TextCompletion(Head, TextChoices, CacheDetails):
    usage: TokenUsage


class TextChunk(Head, TextChoices, CacheDetails):
    """usage: as ChatChunk's."""

    usage: NotRequired[TokenUsage | None]


def completion_generation(service: Service, body: CompletionBody, tenant: str) -> Generation:
    """Tokenize. Takes time in proportion to the prompts: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    params = body.to_params(service.sampling_defaults)
    special = True if body.add_special_tokens is None else body.add_special_tokens
    keys = [
        service.key(item, add_special_tokens=special, param="prompt") for item in body.to_prompts()
    ]
    return Generation.of(
        *(service, f"cmpl-{uuid.uuid4().hex}", keys, [params] * len(keys), body, tenant),
        n=body.tries,
        prompt_only=[body.prompt_only] * len(keys),
        prediction=service.predicted(body.prediction),
    )


class _Echo(NamedTuple):
    """A prompt's text, the half of a character that it ends with, and what is written for that."""

    whole: str
    half: bytes
    rest: str


class CompletionWriter(OpenAIWriter):
    """OpenAI's text answers, token ids where vLLM has them.

    Source: https://platform.openai.com/docs/api-reference/completions.
    """

    whole_kind = chunk_kind = "text_completion"

    def __init__(self, service: Service, generation: Generation, body: CompletionBody) -> None:
        super().__init__(service, generation, body)
        self._keys = generation.prompts
        self._tries = generation.n
        self._n = body.n or 1
        self._echoes_prompt = bool(body.echo)
        self._prompts = body.to_prompts()
        self._echoes: dict[int, _Echo] = {}
        self._with_logprobs = body.logprobs is not None
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._texts: dict[int, TokenTexts] = {}
        self._of_prompts: dict[int, Stretch] = {}
        self._begun: set[int] = set()
        # Of answers that are sent whole.
        self._outputs: dict[int, list[RequestOutput]] = {}

    def push(self, choice: int, output: RequestOutput) -> Iterable[bytes]:
        if not self._streams:
            self._outputs.setdefault(choice, []).append(output)
            return ()
        first = self._echoes_prompt and choice not in self._begun
        shown = self._settled(choice, output)
        if not (first or shown.token_ids or shown.text or shown.finished):
            return ()
        return [self.event({"choices": [self._entry(choice, shown, begins=output.token_ids)]})]

    def answer(self) -> Fields:
        outputs = [RequestOutput.joined(self._outputs[choice]) for choice in sorted(self._outputs)]
        choices: list[bytes] = []
        for first in range(0, len(outputs), self._tries):
            for output in _best(outputs[first : first + self._tries], self._n):
                choices.append(self._entry(len(choices), output, begins=output.token_ids))
        return {"choices": choices}

    def _settled(self, choice: int, output: RequestOutput) -> RequestOutput:
        """The part that a chunk shows: where it shows tokens, only those with all their text in
        it.
        """
        if not (self._with_ids or self._with_logprobs):
            return replace(output, token_ids=())
        if choice not in self._texts:
            prompt = self._keys[choice // self._n]
            self._texts[choice] = TokenTexts(self._tokenizer, self._params, prompt)
        pieces = [*self._texts[choice].pieces(output)]
        return replace(
            output,
            text="".join(piece.text for piece in pieces),
            token_ids=tuple(token for piece in pieces for token in piece.token_ids),
            logprobs=tuple(entry for piece in pieces for entry in piece.logprobs),
        )

    def _entry(self, choice: int, output: RequestOutput, *, begins: Sequence[int]) -> bytes:
        """A TextChoice as JSON. What belongs to the prompt goes in front of a choice's first entry.

        begins: in that one, the tokens that the answer begins with, whether or not it shows them.
        """
        first = choice not in self._begun
        self._begun.add(choice)
        prompt = choice // self._n
        text = output.text
        if first and self._echoes_prompt:
            text = self._echo_of(prompt, begins) + text
        entry: Json = {"index": choice, "text": text, "finish_reason": output.finish_reason}
        if self._with_ids:
            entry["token_ids"] = list(output.token_ids)
            if first:
                entry["prompt_token_ids"] = self._keys[prompt].tolist()
        return spliced(entry, {"logprobs": self._logprobs_of(choice, output, first=first)})

    def _echo_of(self, prompt: int, begins: Sequence[int]) -> str:
        """The prompt as text, but for half a character at its end that `begins` completes."""
        if prompt not in self._echoes:
            self._echoes[prompt] = self._read_prompt(self._prompts[prompt])
        echo = self._echoes[prompt]
        data = b"".join(map(self._tokenizer.token_bytes, begins))
        return echo.whole if data and continues(echo.half, data) else echo.whole + echo.rest

    def _read_prompt(self, prompt: str | list[int]) -> _Echo:
        if isinstance(prompt, str):
            return _Echo(prompt, b"", "")
        skip = self._params.skip_special_tokens
        text = Detokenizer(self._tokenizer, skip_special_tokens=skip)
        whole = "".join(text.push(token).text for token in prompt)
        return _Echo(whole, text.half, text.flush().text)

    def _logprobs_of(self, choice: int, output: RequestOutput, *, first: bool) -> bytes:
        """The choice's `logprobs`, as JSON."""
        if not self._with_logprobs:
            return b"null"
        key = self._keys[choice // self._n]
        echo = self._echoes_prompt
        writer = self._logprobs.get(choice)
        if writer is None:
            writer = self._logprobs[choice] = CompletionLogprobs(
                self._tokenizer,
                skip_special_tokens=self._params.skip_special_tokens,
                prompt_tail=() if echo else key[-PROMPT_TAIL:].tolist(),
            )
        if not (echo and first):
            return joined(writer.of_output(output.logprobs))
        return joined(self._of_prompt(choice, writer, output), writer.of_output(output.logprobs))

    def _of_prompt(self, choice: int, writer: CompletionLogprobs, output: RequestOutput) -> Stretch:
        """The echoed prompt's; written once, and forgotten when all its choices have begun."""
        prompt = choice // self._n
        key = self._keys[prompt]
        known = self._of_prompts.get(prompt)
        if known is None:
            known = writer.of_prompt(int(key[0]), output.prompt_logprobs)
            if computed(output):  # an aborted one's are none
                self._of_prompts[prompt] = known
        else:
            writer.go_on_after(known, key[-PROMPT_TAIL:].tolist())
        if self._begun.issuperset(range(prompt * self._n, (prompt + 1) * self._n)):
            self._of_prompts.pop(prompt, None)
        return known


def _best(outputs: Sequence[RequestOutput], n: int) -> Sequence[RequestOutput]:
    """The n outputs with the highest log-probability per token, best first; all as they are."""

    def mean_logprob(output: RequestOutput) -> float:
        values = [entry.logprob for entry in output.logprobs]
        return sum(values) / len(values) if values else -math.inf

    return outputs if len(outputs) == n else sorted(outputs, key=mean_logprob, reverse=True)[:n]
