"""/tokenize, /detokenize and /tokenizer_info, as vLLM shapes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from typing_extensions import TypedDict

from radixlm.build import ModelInfo
from radixlm.core.errors import InvalidRequestError, RequestTooLargeError
from radixlm.server.http.body import Body, ListOf, not_too_deep
from radixlm.server.http.routes import Route, noted
from radixlm.server.pipeline.chat import chat_prompt
from radixlm.server.pipeline.chat_conversation import conversation_of
from radixlm.server.pipeline.protocol import ChatMessage, TemplateFields
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
                    raise InvalidRequestError(f"{name} needs messages", param=name)


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
        "max_model_len": service.engine.info.context_length,
        "tokens": tokens,
        "token_strs": [spelling(token) for token in tokens] if body.return_token_strs else None,
    }


def detokenized(service: Service, body: DetokenizeBody) -> Detokenized:
    """The answer of /detokenize. Call it off the event loop.

    Raises InvalidRequestError, RequestTooLargeError.
    """
    service.check_model(body.model)
    one = [token for token in body.tokens if isinstance(token, int)]
    if one or not body.tokens:
        _check(service.engine.info, [(f"tokens[{place}]", id_) for place, id_ in enumerate(one)])
        text: str | list[str] = _decoded(service, body, one)
    else:
        lists = [tokens for tokens in body.tokens if isinstance(tokens, list)]
        places = [
            (f"tokens[{outer}][{place}]", token)
            for outer, tokens in enumerate(lists)
            for place, token in enumerate(tokens)
        ]
        _check(service.engine.info, places)
        text = [_decoded(service, body, tokens) for tokens in lists]
    return {"prompt": text, "text": text}


def _check(info: ModelInfo, tokens: Sequence[tuple[str, int]]) -> None:
    """tokens: where each stands, and its id."""
    if len(tokens) > info.context_length:
        raise RequestTooLargeError(
            f"there are {len(tokens)} tokens, but the model's context is {info.context_length}",
            param="tokens",
        )
    for where, token in tokens:
        if not 0 <= token < info.vocab_size:
            raise InvalidRequestError(
                f"{where} is {token}, the model's ids are 0 to {info.vocab_size - 1}", param=where
            )


def _decoded(service: Service, body: DetokenizeBody, tokens: Sequence[int]) -> str:
    skip = bool(body.skip_special_tokens)
    return service.engine.tokenizer.decode(tokens, skip_special_tokens=skip)


def tokenizer_info(service: Service) -> dict[str, Any]:
    """tokenizer_config.json, with the chat template that is in use."""
    engine = service.engine
    info = {"tokenizer_class": "PreTrainedTokenizerFast", **engine.tokenizer.config}
    if engine.chat_template is not None:
        info["chat_template"] = engine.chat_template.source
    return info


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
    return JSONResponse(tokenizer_info(service_of(request)))
