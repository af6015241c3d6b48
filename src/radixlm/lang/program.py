"""One run of a program: from the call of its function to the end of what it appended."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from radixlm.core.errors import ProgramError
from radixlm.lang.executor import Executor
from radixlm.lang.interpreter import Style
from radixlm.lang.lines import function_line
from radixlm.lang.state import State
from radixlm.lang.stream import Stream

_OVER = "the program is over, its state takes no more"


@dataclass(frozen=True, slots=True)
class Call:
    """A program's function with its arguments."""

    function: Callable[..., Any]
    style: Style
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def run(self, executor: Executor) -> State:
        """In this thread. Raises what the function raises; then nothing of it goes on."""
        root = Stream(executor, self.style, function_line(self.function))
        state = State(root, dict(self.kwargs))
        try:
            self._call(root, state)
        except BaseException:
            executor.cancel()
            executor.finish()
            executor.join()
            raise
        executor.finish()
        return state

    def run_aside(self, executor: Executor) -> State:
        """In a thread of its own. Reading the state raises ProgramError for what is raised."""
        root = Stream(executor, self.style, function_line(self.function))

        def work() -> None:
            try:
                self._call(root, state)
            except Exception as error:  # told to whoever reads
                root.fail(error)
                executor.cancel()
            finally:
                executor.finish()

        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(work,), name="radixlm-program"
        )
        state = State(
            root, dict(self.kwargs), awaits=lambda: threading.current_thread() is not thread
        )
        thread.start()
        return state

    def run_among(self, executor: Executor) -> State:
        """In this thread, as one of a batch, to the end of all that it appended.

        A ProgramError is told to whoever reads the state. Raises what else the function raises.
        """
        root = Stream(executor, self.style, function_line(self.function))
        state = State(root, dict(self.kwargs))
        try:
            self._call(root, state)
        except ProgramError as error:
            root.fail(error)
        for stream in root.family:
            stream.wait()
        return state

    def _call(self, root: Stream, state: State) -> None:
        try:
            state.ret_value = self.function(state, *self.args, **self.kwargs)
        finally:
            for stream in root.family:
                stream.close(_OVER)
