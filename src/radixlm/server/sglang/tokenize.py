"""/tokenize, /detokenize and /tokenizer_info, as vLLM shapes them."""

from __future__ import annotations

import asyncio
from typing import Annotated, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from typing_extensions import TypedDict

from radixlm.core.errors import InvalidRequestError, RequestTooLargeError, wrong
from radixlm.server.bodies.chat_conversation import conversation_of
from radixlm.server.bodies.protocol import ChatMessage, TemplateFields
from radixlm.server.http.body import Body, ListOf, not_too_deep
from radixlm.server.http.routes import Route, noted
from radixlm.server.pipeline.chat import chat_prompt
from radixlm.server.pipeline.service import Service, service_of


class Tokenized(TypedDict):
    """token_strs: with return_token_strs; null for an id that the vocabulary leaves out."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None


class Detokenized(TypedDict):
    """The same text twice: vLLM calls it prompt, SGLang text. A list where several were given."""

    prompt: str | list[str]
    text: str | list[str]


class TokenizerInfo(TypedDict):
    """tokenizer_config.json, with whatever else it holds."""

    tokenizer_class: str


class TokenizeBody(TemplateFields):
    """POST /tokenize: a text, or messages for the chat template.

    add_special_tokens: the default is true for a text and false for messages, whose template
    writes them.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[ListOf[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Raise InvalidRequestError unless there is one of the two, with its own fields."""
        if self.prompt is not None and self.messages is not None:
            raise InvalidRequestError("give prompt or messages, not both", param="messages")
        if self.messages is None:
            if self.prompt is None:
                raise InvalidRequestError("give prompt or messages", param="prompt")
            for name in TemplateFields.model_fields:
                if getattr(self, name) is not None:
                    raise wrong(name, "needs messages")


class DetokenizeBody(Body):
    """POST /detokenize: one list of ids, or several.

    skip_special_tokens: leave them out; else they are written out.
    """

    model: str | None = None
    tokens: ListOf[int] | ListOf[ListOf[int]]
    skip_special_tokens: bool | None = None


@not_too_deep()
def tokenized(service: Service, body: TokenizeBody) -> Tokenized:
    """The answer of /tokenize. Takes time in proportion to the text: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    if body.messages is not None:
        special = body.add_special_tokens
        chat = conversation_of(body.messages, body, add_special_tokens=special)
        key = chat_prompt(service, chat).key
    else:
        special = body.add_special_tokens is not False
        key = service.encode(body.prompt or "", add_special_tokens=special, param="prompt")
    tokens = key.tolist()
    spelling = service.engine.tokenizer.spelling
    return {
        "count": len(tokens),
        "max_model_len": service.engine.limits.longest,
        "tokens": tokens,
        "token_strs": [spelling(token) for token in tokens] if body.return_token_strs else None,
    }


def detokenized(service: Service, body: DetokenizeBody) -> Detokenized:
    """The answer of /detokenize. Call it off the event loop.

    Raises InvalidRequestError, RequestTooLargeError.
    """
    service.check_model(body.model)
    info, tokenizer = service.engine.info, service.engine.tokenizer
    one = not body.tokens or isinstance(body.tokens[0], int)
    lists = cast("list[list[int]]", [body.tokens] if one else body.tokens)
    count = sum(map(len, lists))
    if count > info.context_length:
        raise RequestTooLargeError(
            f"there are {count} tokens, but the model's context is {info.context_length}",
            param="tokens",
        )
    for outer, tokens in enumerate(lists):
        for place, token in enumerate(tokens):
            if not 0 <= token < info.vocab_size:
                where = f"tokens[{place}]" if one else f"tokens[{outer}][{place}]"
                raise wrong(where, f"is {token}, the model's ids are 0 to {info.vocab_size - 1}")
    skip = bool(body.skip_special_tokens)
    texts = [tokenizer.decode(tokens, skip_special_tokens=skip) for tokens in lists]
    text = texts[0] if one else texts
    return {"prompt": text, "text": text}


router = APIRouter(route_class=Route)


@router.post(
    "/tokenize",
    response_model=Tokenized,
    responses=noted(example={"prompt": "The capital of France is"}),
)
async def tokenize(request: Request, body: TokenizeBody) -> Response:
    """A text's or a chat's token ids."""
    return JSONResponse(await asyncio.to_thread(tokenized, service_of(request), body))


@router.post(
    "/detokenize", response_model=Detokenized, responses=noted(example={"tokens": [1, 2, 3]})
)
async def detokenize(request: Request, body: DetokenizeBody) -> Response:
    """The text of token ids."""
    return JSONResponse(await asyncio.to_thread(detokenized, service_of(request), body))


@router.get("/tokenizer_info", response_model=TokenizerInfo)
async def get_tokenizer_info(request: Request) -> Response:
    """The tokenizer's configuration."""
    engine = service_of(request).engine
    info = {"tokenizer_class": "PreTrainedTokenizerFast", **engine.tokenizer.config}
    if engine.chat_template is not None:
        info["chat_template"] = engine.chat_template.source
    return JSONResponse(info)
