"""Log-probabilities in OpenAI's two shapes and in SGLang's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from typing_extensions import TypedDict

from radixlm.core.keys import Key
from radixlm.core.request import Piece, RequestOutput, TokenLogprob
from radixlm.core.sampling import SamplingParams
from radixlm.server.http.sse import compact, spliced
from radixlm.text.detokenizer import PROMPT_TAIL, Detokenizer
from radixlm.text.native_logprobs import LOWEST, NativeLists
from radixlm.text.tokenizer import Tokenizer


class TokenEntry(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(TokenEntry):
    top_logprobs: list[TokenEntry]


class ChatLogprobs(TypedDict):
    """One entry per token."""

    content: list[ChatToken]
    refusal: None


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """`choices[].logprobs` of chat: one object per token, with its bytes."""
    content: list[ChatToken] = [
        {
            **_token(tokenizer, entry.token, entry.logprob),
            "top_logprobs": [_token(tokenizer, token, logprob) for token, logprob in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class Stretch(NamedTuple):
    """Log-probabilities of a stretch of text: each list's items as JSON, and how long the text is
    up to the stretch's end.
    """

    lists: Mapping[str, bytes]
    end: int


class CompletionLogprobs:
    """`choices[].logprobs` of text completions: parallel lists (TextLogprobs), with offsets into
    the text.

    One per choice: it remembers how long the text is so far. An offset is where the token's text
    begins; tokens that make one character together share theirs.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool, prompt_tail: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._text = Detokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, prompt_tail=prompt_tail
        )
        self._offset = 0

    def of_prompt(self, first: int, entries: Sequence[TokenLogprob]) -> Stretch:
        """Log-probabilities of an echoed prompt: nothing is known of its first token."""
        return self._stretch([first, *(entry.token for entry in entries)], [None, *entries])

    def go_on_after(self, known: Stretch, tail: Sequence[int]) -> None:
        """Go on after an echoed prompt that another choice has written. tail: its last PROMPT_TAIL
        ids.
        """
        for token in tail:
            self._text.push(token)
        self._offset = known.end

    def of_output(self, entries: Sequence[TokenLogprob]) -> Stretch:
        """Log-probabilities of generated tokens."""
        return self._stretch([entry.token for entry in entries], entries)

    def _stretch(self, tokens: Sequence[int], entries: Sequence[TokenLogprob | None]) -> Stretch:
        """Item by item: making JSON keeps the interpreter to itself, and these may be megabytes."""
        lists: dict[str, Iterable[object]] = {
            "tokens": map(self._tokenizer.token_text, tokens),
            "token_logprobs": (entry and max(entry.logprob, LOWEST) for entry in entries),
            "top_logprobs": (entry and self._best(entry) for entry in entries),
            "text_offset": map(self._next_offset, tokens),
        }
        written = {name: b",".join(map(compact, items)) for name, items in lists.items()}
        return Stretch(written, self._offset)

    def _best(self, entry: TokenLogprob) -> dict[str, float]:
        # Best first, so of several tokens with one text the most likely is kept. The chosen token
        # is always there, as in OpenAI's API, where it makes them one more than asked for.
        best: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            best.setdefault(self._tokenizer.token_text(token), max(logprob, LOWEST))
        return best

    def _next_offset(self, token: int) -> int:
        offset = self._offset
        self._offset += len(self._text.push(token).text)
        return offset


class NativeLogprobs:
    """SGLang's lists in `meta_info` as JSON (see NativeLists).

    One per choice: it adds up what it is given, since each event of a stream holds everything so
    far.
    """

    def __init__(self, lists: NativeLists) -> None:
        self._lists = lists
        self._of_prompt = dict.fromkeys(lists.kinds, b"")
        self._of_output = {kind: bytearray() for kind in lists.kinds}

    def of_prompt(self, first: int | None, entries: Sequence[TokenLogprob]) -> Mapping[str, bytes]:
        """The log-probabilities that `add_prompt` takes, of each of the prompt's choices. first: as
        in NativeLists.
        """
        return self._written(entries, first)

    def add_prompt(self, written: Mapping[str, bytes]) -> None:
        """Log-probabilities of the prompt."""
        self._of_prompt = dict(written)

    def add_output(self, entries: Sequence[TokenLogprob]) -> None:
        """Generated tokens."""
        for kind, items in self._written(entries).items():
            known = self._of_output[kind]
            known += b"," * bool(known and items) + items

    def as_json(self) -> dict[str, bytes]:
        """Everything so far, each list as JSON."""
        sides = (("input", self._of_prompt), ("output", self._of_output))
        return {
            f"{side}_{kind}_logprobs": b"[" + lists[kind] + b"]"
            for side, lists in sides
            for kind in self._lists.kinds
        }

    def _written(
        self, entries: Sequence[TokenLogprob], first: int | None = None
    ) -> dict[str, bytes]:
        """Item by item: making JSON keeps the interpreter to itself, and these may be megabytes."""
        items = self._lists.items(entries, first)
        return {kind: b",".join(map(compact, each)) for kind, each in items.items()}


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> TokenEntry:
    return {
        "token": tokenizer.token_text(token),
        "logprob": max(logprob, LOWEST),
        "bytes": list(tokenizer.token_bytes(token)),
    }


def joined(*stretches: Stretch) -> bytes:
    """Stretches of completion log-probabilities, one after the other, as JSON."""
    names = stretches[0].lists
    parts = {name: filter(None, [each.lists[name] for each in stretches]) for name in names}
    return spliced({}, {name: b"[" + b",".join(each) + b"]" for name, each in parts.items()})


class _Token(NamedTuple):
    """length: characters that are certain with it, those of tokens before it left out."""

    id: int
    length: int
    logprob: TokenLogprob | None


class TokenTexts:
    """Reads one answer's outputs. Pieces come when the text of all their tokens is certain:

        tokens   "Once"  " wor"  "k"        stop: "world"
        outputs  "Once"  " "     "work"
        pieces   "Once"          " work"

    A token without text (half a character, a special one) comes with the next text. O(tokens).
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, prompt: Key) -> None:
        self._raw = Detokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            shown=params.shown_special_ids,
            prompt_tail=prompt[-PROMPT_TAIL:].tolist(),
        )
        self._taken: list[_Token] = []  # for the next piece
        self._waiting: deque[_Token] = deque()  # the first one's text is not certain yet
        self._text = ""

    def pieces(self, output: RequestOutput) -> Iterator[Piece]:
        """The pieces that have become certain; with the last output, the rest."""
        self._text += output.text
        for place, token_id in enumerate(output.token_ids):
            logprob = output.logprobs[place] if output.logprobs else None
            self._waiting.append(_Token(token_id, len(self._raw.push(token_id).text), logprob))
        begin = 0
        while self._waiting and begin + self._waiting[0].length <= len(self._text):
            token = self._waiting.popleft()
            self._taken.append(token)
            if token.length:
                end = begin + token.length
                yield self._take(self._text[begin:end])
                begin = end
        self._text = self._text[begin:]
        if output.finished and (self._taken or self._waiting or self._text):
            self._taken += self._waiting
            yield self._take(self._text)

    def _take(self, text: str) -> Piece:
        taken, self._taken = self._taken, []
        logprobs = tuple(token.logprob for token in taken if token.logprob is not None)
        return Piece(tuple(token.id for token in taken), text, logprobs)
