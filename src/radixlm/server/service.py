"""What the routes share: the engine, its public name, and the clocks on its requests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from fastapi import Request

from radixlm.build import AsyncEngine
from radixlm.core.clock import Clock
from radixlm.core.errors import InvalidKeyError, InvalidRequestError, RequestTooLargeError
from radixlm.core.keys import Key, as_key
from radixlm.server.errors import ModelNotFoundError
from radixlm.server.metrics import Metrics
from radixlm.server.rids import Rids


@dataclass(frozen=True, slots=True)
class Service:
    """created: when serving began, in seconds since 1970.

    rids: the names that clients gave to requests under way.
    """

    engine: AsyncEngine
    model_name: str
    metrics: Metrics
    clock: Clock
    created: int
    rids: Rids = field(default_factory=Rids)

    def check_model(self, name: str | None) -> None:
        """Raise ModelNotFoundError when a request names another model."""
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(
                f"the model {name!r} is not served here; {self.model_name!r} is", param="model"
            )

    def encode(self, text: str, *, add_special_tokens: bool, param: str) -> Key:
        """Tokenize a prompt, which `param` of the request made.

        A text that no tokens could bring into the context is refused unread: a body full of it
        would take a minute. Raises InvalidRequestError, RequestTooLargeError.
        """
        tokenizer, context = self.engine.tokenizer, self.engine.info.context_length
        longest = context * tokenizer.longest_token
        if len(text) > longest:
            raise RequestTooLargeError(
                f"the prompt has {len(text)} characters, but the model's context is {context} "
                f"tokens, which are at most {longest} characters; shorten the prompt",
                param=param,
            )
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def key(self, prompt: str | list[int], *, add_special_tokens: bool, param: str) -> Key:
        """Text or ids, which `param` of the request holds, as a key. Raises InvalidRequestError."""
        if isinstance(prompt, str):
            return self.encode(prompt, add_special_tokens=add_special_tokens, param=param)
        try:
            return as_key(prompt)
        except InvalidKeyError as error:
            raise InvalidRequestError(f"{param}: {error}", param=param) from None


def tenant_of(request: Request) -> str:
    """On whose behalf a request comes: a digest of the API key that it carries, "" without one."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return ""
    return hashlib.blake2b(key.strip().encode(), digest_size=16).hexdigest()


def service_of(request: Request) -> Service:
    """The service that `create_app` put into the application."""
    service: Service = request.app.state.service
    return service
