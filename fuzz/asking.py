"""Clients that ask all the time, while something happens to what they ask."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable


class Asking:
    """Threads that call `ask`, each with a random source of its own, until it is closed."""

    def __init__(self, ask: Callable[[random.Random], None], threads: int) -> None:
        self._ask = ask
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        chosen = random.Random(threading.get_ident())
        while not self._end.is_set():
            self._ask(chosen)
