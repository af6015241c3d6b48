"""Many runs of a program at once, on one executor and a few threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from tqdm import tqdm

from radixlm.lang.backend import Backend
from radixlm.lang.executor import Executor
from radixlm.lang.program import Call
from radixlm.lang.state import State
from radixlm.lang.warming import WarmingSession

# A thread mostly waits for its program's answers.
DEFAULT_THREADS = 96


def run_calls(
    calls: Sequence[Call], backend: Backend, *, num_threads: int, progress_bar: bool
) -> Iterator[State]:
    """The programs' states, in order, each when its program is over.

    Leaving early, being interrupted, or an exception of a program ends all that run, and starts no
    more; when it is raised, nothing runs any more.
    """
    executor = Executor(backend)
    threads = max(1, min(num_threads, len(calls)))
    run = partial(Call.run_among, executor=executor)
    if threads > 1 and not executor.session.shares_in_flight:
        executor.session = warming = WarmingSession(executor.session)
        run = partial(_run_and_tell, executor=executor, warming=warming)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="radixlm-program")
    try:
        with tqdm(total=len(calls), disable=not progress_bar, unit=" programs") as bar:
            for state in _in_order(pool, calls, run, ahead=2 * threads):
                bar.update()
                yield state
    except BaseException:
        executor.cancel()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        executor.finish()
        executor.join()


def _run_and_tell(call: Call, executor: Executor, warming: WarmingSession) -> State:
    try:
        return call.run_among(executor)
    finally:
        executor.call(warming.ended)


def _in_order(
    pool: ThreadPoolExecutor, calls: Sequence[Call], run: Callable[[Call], State], ahead: int
) -> Iterator[State]:
    """ahead: so many more are started than were taken, so that a reader's pace is kept to."""
    started: deque[Future[State]] = deque()
    for call in calls:
        started.append(pool.submit(run, call))
        if len(started) > ahead:
            yield started.popleft().result()
    while started:
        yield started.popleft().result()
