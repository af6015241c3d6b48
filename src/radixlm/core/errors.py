"""Every error that RadixLM raises on purpose."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """A number with its noun.

    >>> counted(1, "token"), counted(2, "token")
    ('1 token', '2 tokens')
    """
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


class RadixLMError(Exception):
    """Base of every error that RadixLM raises on purpose."""


class InvalidRequestError(RadixLMError, ValueError):
    """The request is wrong. `param` names the field as the caller's interface does."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def reason_of(error: Exception) -> str:
    """The reason of an error; of the system's errors without number and path.

    >>> reason_of(FileNotFoundError(2, "No such file", "x")), reason_of(ValueError("odd"))
    ('No such file', 'odd')
    """
    return str(getattr(error, "strerror", None) or error)


def wrong(field: str, text: str) -> InvalidRequestError:
    """The error about a field of the request. text: what is wrong, to be read after its name."""
    return InvalidRequestError(f"{field} {text}", param=field)


class RequestTooLargeError(InvalidRequestError):
    """The request never fits model or pool. prompt_tokens: at least, where it alone is too long."""

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
    """An error: too many requests wait already; nothing was queued."""


def check_queue(known: int, count: int, most: int, limit: str, whose: str = "") -> None:
    """Check that there is room for `count` more requests beside those known. limit: the flag that
    allows `most`. Raises QueueFullError; InvalidRequestError for more than there ever is room for.
    """
    if count > most:
        raise InvalidRequestError(f"{counted(count, 'request')} at once are more than {limit}")
    if known + count > most:
        under_way = f"{whose}{counted(known, 'request')} under way"
        raise QueueFullError(f"{under_way} and {count} more exceed {limit}; try again later")


class EngineDeadError(RadixLMError):
    """The engine loop is gone, so no request can be answered."""


class EngineStoppedError(EngineDeadError):
    """The engine was shut down on purpose."""


class NoTrialError(RadixLMError):
    """No process can be started to try grammars in; known grammars still work."""


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
    """An error: nothing in the program makes a value of that name."""

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
    """The budget of pins is used up, there is nothing to pin, or no such pin."""


class DiskStoreError(RadixLMError):
    """The disk cache's files cannot be read or written; what is in them is as it was."""


class DamagedStoreError(DiskStoreError):
    """The disk cache's index is damaged, or not one that this version writes."""


class FullStoreError(DiskStoreError):
    """The disk has no room for the disk cache's index."""


class NodeGoneError(CacheError):
    """The node is not in the tree, not any more, or not visible to the caller."""


class SlotError(CacheError):
    """A slot was freed twice, or was never handed out."""


class InvariantError(CacheError):
    """An invariant is broken: a bug in RadixLM, please report it."""
