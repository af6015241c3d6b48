"""Programs: functions whose first argument is the state that they write to."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, cast, overload

from tqdm import tqdm

from radixlm.core.errors import ConfigError, ProgramError
from radixlm.lang import ir
from radixlm.lang.api import as_backend
from radixlm.lang.backend import Backend, Warming
from radixlm.lang.interpreter import Style
from radixlm.lang.ir import DEFAULTS, PARAMS, Params
from radixlm.lang.program_state import State
from radixlm.lang.stream_executor import Executor, StreamExecutor
from radixlm.lang.transcript import Transcript

_OVER = "the program is over, its state takes no more"
# A thread mostly waits for its program's answers.
_DEFAULT_THREADS = 96


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
        """Call the program. What it does not wait for goes on after this returns.

        stream: return at once; `text_iter` and `text_async_iter` give texts as they come.
        use_thread: accepted without effect, since SGLang's programs pass it.
        Raises what the program raises; with `stream`, reading the state does.
        """
        params, own = _apart(kwargs)
        call = self._call(Style(params, stream, self.num_api_spec_tokens), args, own)
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

        Each program is over when its state is returned; a step that failed raises where it is read,
        and is the state's `error()`. generator_style: yield the states one by one. Raises what a
        program raises besides ProgramError, and ConfigError; then nothing runs any more.
        """
        params, own = _apart(sampling)
        if own:
            raise ConfigError(f"run_batch has no parameter {', '.join(own)}")
        style = Style(params, spec_tokens=self.num_api_spec_tokens)
        calls = [self._call(style, (), self._named(entry)) for entry in batch_kwargs]
        if num_threads == "auto":
            num_threads = _DEFAULT_THREADS
        if isinstance(num_threads, str) or num_threads < 1:
            raise ConfigError(f"num_threads is 1 or more, or 'auto', got {num_threads!r}")
        if not calls:
            return iter(()) if generator_style else []
        states = _run_calls(calls, as_backend(backend), min(num_threads, len(calls)), progress_bar)
        return states if generator_style else list(states)

    def cache(self, backend: Any = None) -> None:
        """Have in the cache what the program begins with whatever its arguments.

        The function is called for that, up to where it uses an argument or asks the model.
        """
        executor = Executor(as_backend(backend))
        try:
            said = executor.session.begin()
            arguments = {name: _Argument() for name in self.arg_names} | self.bind_arguments
            with suppress(_Unknown, Exception):  # what was written before is the same in each run
                self.func(State(cast(StreamExecutor, _Recorder(said))), **arguments)
            if said.text:
                executor.run(executor.session.compute(said))
        finally:
            executor.finish(wait=True)

    def __call__(self, *args: Any, **kwargs: Any) -> State:
        return self.run(*args, **kwargs)

    def _call(
        self, style: Style, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> _FunctionCall:
        return _FunctionCall(self.func, style, args, {**kwargs, **self.bind_arguments})

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

    num_api_spec_tokens: on backends whose calls cost, ask for this many tokens at once, and take
    the answers of several gens from them.
    """
    if func is not None:
        return Function(func, num_api_spec_tokens)
    return lambda inner: Function(inner, num_api_spec_tokens)


def _apart(kwargs: Mapping[str, Any]) -> tuple[Params, dict[str, Any]]:
    """Sampling parameters, and the others. Raises ConfigError."""
    sampling = {name: value for name, value in kwargs.items() if name in PARAMS}
    try:
        params = ir.make_params(**sampling).over(DEFAULTS)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return params, {name: value for name, value in kwargs.items() if name not in PARAMS}


@dataclass(frozen=True, slots=True)
class _FunctionCall:
    function: Callable[..., Any]
    style: Style
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, executor: Executor) -> State:
        """Run in this thread. Raises what the function raises; then nothing of it goes on."""
        stream, state = self._begun(executor, threading.current_thread())
        try:
            self._run(stream, state)
        except BaseException:
            executor.cancel()
            executor.finish(wait=True)
            raise
        executor.finish()
        return state

    def run_aside(self, executor: Executor) -> State:
        """Run in its own thread. Reading the state raises ProgramError for what is raised."""

        def work() -> None:
            try:
                self._run(stream, state)
            except Exception:  # reading the state raises it
                executor.cancel()
            finally:
                executor.finish()

        run = contextvars.copy_context().run
        thread = threading.Thread(target=run, args=(work,), name="radixlm-program")
        stream, state = self._begun(executor, thread)
        thread.start()
        return state

    def run_among(self, executor: Executor) -> State:
        """Run in this thread, as one of a batch, to the end of all that it appended.

        Reading the state raises a ProgramError. Raises what else the function raises.
        """
        stream, state = self._begun(executor, threading.current_thread())
        with suppress(ProgramError):
            self._run(stream, state)
        for each in stream.family:
            each.text.exception()  # waits for its end
        return state

    def _begun(self, executor: Executor, thread: threading.Thread) -> tuple[StreamExecutor, State]:
        line = ir.function_line(self.function)
        stream = StreamExecutor(executor, self.style, line, thread)
        return stream, State(stream, dict(self.kwargs))

    def _run(self, stream: StreamExecutor, state: State) -> None:
        try:
            state.ret_value = self.function(state, *self.args, **self.kwargs)
        except Exception as error:
            stream.fail(error)
            raise
        finally:
            for each in stream.family:
                each.close(_OVER)


def _run_calls(
    calls: Sequence[_FunctionCall], backend: Backend, threads: int, progress_bar: bool
) -> Iterator[State]:
    """The programs' states, in order, each when its program is over.

    Leaving early, being interrupted, or an exception of a program ends all that run, and starts no
    more; when it is raised, nothing runs any more.
    """
    executor = Executor(backend)
    if threads > 1 and not executor.session.shares_in_flight:
        executor.warming = Warming(executor.session)

    def run(call: _FunctionCall) -> State:
        try:
            return call.run_among(executor)
        finally:
            if executor.warming is not None:
                executor.call(executor.warming.ended)

    ahead = 2 * threads  # how many more are started than were read
    pool = ThreadPoolExecutor(threads, thread_name_prefix="radixlm-program")
    started: deque[Future[State]] = deque()
    try:
        with tqdm(total=len(calls), disable=not progress_bar, unit=" programs") as bar:
            for number in range(len(calls) + ahead):
                if number < len(calls):
                    started.append(pool.submit(run, calls[number]))
                if number >= ahead:
                    state = started.popleft().result()
                    bar.update()
                    yield state
    except BaseException:
        executor.cancel()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        executor.finish(wait=True)


class _Unknown(BaseException):
    """The program came to something that is not always the same."""


class _Argument:
    """Stands for an argument that is not known: any use of it ends the recording."""

    def _use(self, *_: Any, **__: Any) -> NoReturn:
        raise _Unknown

    __str__ = __repr__ = __format__ = __bool__ = __len__ = __iter__ = _use
    __add__ = __radd__ = __getitem__ = __contains__ = __call__ = __index__ = _use
    __int__ = __float__ = __eq__ = __lt__ = __gt__ = __getattr__ = _use
    __hash__ = None  # type: ignore[assignment]


class _Recorder:
    """A recorder in place of a StreamExecutor: it writes to `said` what does not depend on any
    value.
    """

    def __init__(self, said: Transcript) -> None:
        self._said = said
        self.variables: dict[str, Any] = {}

    def submit(self, expr: ir.Expr) -> None:
        if not self._said.apply(expr) and not isinstance(expr, ir.ScopeBegin | ir.ScopeEnd):
            raise _Unknown

    def __getattr__(self, name: str) -> NoReturn:
        raise _Unknown
