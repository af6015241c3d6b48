"""Programs: functions whose first argument is the state that they write to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from radixlm.core.errors import ConfigError
from radixlm.lang.batch import DEFAULT_THREADS, run_calls
from radixlm.lang.defaults import as_backend
from radixlm.lang.executor import Executor
from radixlm.lang.interpreter import Style
from radixlm.lang.params import DEFAULTS, PARAMS, Params, make_params
from radixlm.lang.prefix import write_constant_prefix
from radixlm.lang.program import Call
from radixlm.lang.state import State


class Function:
    """A program. Calling it is running it.

    Keywords of `run` and `run_batch` that are sampling parameters (see Params) are for every gen
    that leaves them open; the others are the program's own arguments.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: int | None = None,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.func = func
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bind_arguments = dict(bind_arguments or {})
        parameters = list(inspect.signature(func).parameters)
        if parameters[:1] != ["s"]:
            raise ConfigError(f"the first argument of {func.__name__} must be `s`, its state")
        self.arg_names = parameters[1:]
        self.__name__, self.__doc__ = func.__name__, func.__doc__

    def bind(self, **kwargs: Any) -> Function:
        """The same program with some of its arguments given. Raises ConfigError."""
        unknown = kwargs.keys() - set(self.arg_names)
        if unknown:
            raise ConfigError(f"{self.__name__} has no argument {', '.join(sorted(unknown))}")
        return Function(self.func, self.num_api_spec_tokens, {**self.bind_arguments, **kwargs})

    def run(
        self,
        *args: Any,
        stream: bool = False,
        backend: Any = None,
        use_thread: bool = True,  # noqa: ARG002
        **kwargs: Any,
    ) -> State:
        """Call the program. What it does not wait for goes on behind the state.

        stream: return at once; `text_iter` and `text_async_iter` give texts as they come.
        use_thread: taken and not needed, as SGLang's programs give it.
        Raises what the program raises; with `stream`, reading the state does.
        """
        call = self._call(args, *_apart(kwargs), streams=stream)
        executor = Executor(as_backend(backend))
        return call.run_aside(executor) if stream else call.run(executor)

    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Any = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **sampling: Any,
    ) -> list[State] | Iterator[State]:
        """Call it once for each entry, arguments by name or in order; states come in that order.

        Each is over when it is given out; one whose step failed says so where it is read, and with
        `error()`. generator_style: give them out one by one. Raises what a program raises besides
        ProgramError, and ConfigError; then nothing runs any more.
        """
        params, own = _apart(sampling)
        if own:
            raise ConfigError(f"run_batch has no parameter {', '.join(own)}")
        calls = [self._call((), params, self._named(entry)) for entry in batch_kwargs]
        if num_threads == "auto":
            num_threads = DEFAULT_THREADS
        if isinstance(num_threads, str) or num_threads < 1:
            raise ConfigError(f"num_threads is 1 or more, or 'auto', got {num_threads!r}")
        if not calls:
            return iter(()) if generator_style else []
        states = run_calls(
            calls, as_backend(backend), num_threads=num_threads, progress_bar=progress_bar
        )
        return states if generator_style else list(states)

    def cache(self, backend: Any = None) -> None:
        """Have in the cache what the program begins with whatever its arguments.

        The function is called for that, up to where it uses an argument or asks the model.
        """
        executor = Executor(as_backend(backend))
        try:
            said = executor.session.begin()
            write_constant_prefix(self.func, self.arg_names, self.bind_arguments, said)
            if said.text:
                executor.run(executor.session.compute(said))
        finally:
            executor.finish()
            executor.join()

    def __call__(self, *args: Any, **kwargs: Any) -> State:
        return self.run(*args, **kwargs)

    def _call(
        self,
        args: tuple[Any, ...],
        params: Params,
        kwargs: Mapping[str, Any],
        *,
        streams: bool = False,
    ) -> Call:
        style = Style(params, streams, self.num_api_spec_tokens)
        return Call(self.func, style, args, {**kwargs, **self.bind_arguments})

    def _named(self, entry: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
        if isinstance(entry, Mapping):
            return entry
        if isinstance(entry, str) or len(entry) > len(self.arg_names):
            raise ConfigError(
                f"an entry of a batch is a dict, or a list of at most {len(self.arg_names)} "
                f"arguments of {self.__name__}, got {entry!r:.80}"
            )
        return dict(zip(self.arg_names, entry, strict=False))


@overload
def function(func: Callable[..., Any], num_api_spec_tokens: int | None = None) -> Function: ...
@overload
def function(
    func: None = None, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[..., Any]], Function]: ...
def function(
    func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Make a program of a function whose first argument is `s`.

    num_api_spec_tokens: on backends whose calls cost, ask for so many tokens at once, and take the
    answers of several gens from them.
    """
    if func is not None:
        return Function(func, num_api_spec_tokens)
    return lambda inner: Function(inner, num_api_spec_tokens)


def _apart(kwargs: Mapping[str, Any]) -> tuple[Params, dict[str, Any]]:
    """Sampling parameters, and the others. Raises ConfigError."""
    sampling = {name: value for name, value in kwargs.items() if name in PARAMS}
    try:
        params = make_params(**sampling).over(DEFAULTS)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return params, {name: value for name, value in kwargs.items() if name not in PARAMS}
