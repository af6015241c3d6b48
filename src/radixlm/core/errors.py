"""Every error RadixLM raises on purpose. One tree, so that a caller can catch as much as it wants.

RadixLMError
├── InvalidRequestError    the caller's input is wrong; names the field            HTTP 400
│   └── RequestTooLargeError   it can never fit the context or the pool            HTTP 400
├── QueueFullError         too many requests wait; try again later                 HTTP 429
├── EngineDeadError        the engine loop crashed or was shut down                HTTP 503
│   └── EngineStoppedError     it was shut down, as it was meant to be               HTTP 503
├── NoTrialError           no process can be started to try grammars in            HTTP 503
├── BackendError           a server that programs run on does not answer, or fails
├── ConfigError            a flag or a combination of flags is wrong
├── ModelError             a checkpoint folder cannot be used
│   ├── UnsupportedModelError  names the config field that is not supported
│   └── CheckpointError        missing shard, wrong shape, truncated file
├── ProgramError           a step of a program in the frontend language failed; names its line
│   └── UnknownVariableError   nothing in the program makes a value of that name
└── CacheError             misuse of the cache; the cache is unchanged
    ├── InvalidKeyError        not a non-empty 1-D array of ids that fit int32
    ├── StaleMatchError        the tree changed since the match was made
    ├── LeaseClosedError       the lease was released before
    ├── NodeGoneError          the node that was asked for is not in the tree (any more)
    ├── SlotError              double free, or a slot that was never handed out
    └── InvariantError         `check()` found a broken invariant: a bug in RadixLM
"""

from __future__ import annotations


class RadixLMError(Exception):
    """Base of every error that RadixLM raises on purpose."""


class InvalidRequestError(RadixLMError, ValueError):
    """The request is wrong. `param` names the field, in the words of the caller's interface."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RequestTooLargeError(InvalidRequestError):
    """The request can never fit the model's context or the KV pool.

    prompt_tokens, longest_prompt: where the prompt alone is too long, how many tokens it has at
    least, and how many it may have.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        prompt_tokens: int | None = None,
        longest_prompt: int | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.prompt_tokens = prompt_tokens
        self.longest_prompt = longest_prompt


class QueueFullError(RadixLMError):
    """Too many requests wait already; nothing was queued."""


class EngineDeadError(RadixLMError):
    """The engine loop is gone, so no request can be answered."""


class EngineStoppedError(EngineDeadError):
    """The engine was shut down, as it was meant to be."""


class NoTrialError(RadixLMError):
    """No process can be started to try grammars in; those that are known still work."""


class ConfigError(RadixLMError, ValueError):
    """A flag, or a combination of flags, is wrong."""


class ModelError(RadixLMError):
    """A model folder cannot be used. `commands`: for a shell, one after the other, that help."""

    def __init__(self, message: str, *, commands: tuple[str, ...] = ()) -> None:
        self.message = f"{message}:" if commands else message
        self.commands = commands
        super().__init__("\n  ".join((self.message, *commands)))


class UnsupportedModelError(ModelError):
    """The model asks for something that is not supported; the message names the config field."""


class CheckpointError(ModelError):
    """The checkpoint's files are missing, truncated or of the wrong shape."""


class BackendError(RadixLMError):
    """A server that programs run on does not answer, broke off, or failed."""


class ProgramError(RadixLMError):
    """A step of a program in the frontend language failed. `line` says where the program has it."""

    def __init__(self, message: str, *, line: str) -> None:
        super().__init__(f"{line}: {message}")
        self.line = line


class UnknownVariableError(ProgramError, KeyError):
    """Nothing in the program makes a value of that name."""

    __str__ = Exception.__str__  # KeyError's would quote it


class CacheError(RadixLMError):
    """The cache was used wrongly; it is unchanged."""


class InvalidKeyError(CacheError, ValueError):
    """A key must be a non-empty one-dimensional array of ids that fit a non-negative int32."""


class StaleMatchError(CacheError):
    """The tree changed since this match was made; match again."""


class LeaseClosedError(CacheError):
    """The lease was released before; it holds nothing any more."""


class PinError(CacheError):
    """More would be pinned than the budget allows, nothing is there to pin, or no such pin is."""


class NodeGoneError(CacheError):
    """The node is not in the tree, or not any more, or not for the one who asks."""


class SlotError(CacheError):
    """A slot was freed twice, or was never handed out."""


class InvariantError(CacheError):
    """`check()` found an invariant broken: a bug in RadixLM, please report it."""
