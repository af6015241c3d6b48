"""Viewers of the tree, on the engine's side: pictures and what happens to requests, in turns."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from radixlm.cache import RadixCache
from radixlm.cache.radix.tree_stats import Changes
from radixlm.core.clock import Clock
from radixlm.core.errors import CacheError, NodeGoneError
from radixlm.core.reports import Event, RequestView, TreeChange, TreeQuery, TreeSnapshot
from radixlm.engine.engine_stats import EngineStats
from radixlm.observe.picture import Picture
from radixlm.scheduler import Scheduler

MAX_EVENTS = 2_000
# By how much a picture that is being made may hold up a step: two or three milliseconds.
NODES_PER_TURN = 1_000
SECONDS_BETWEEN_CHANGES = 0.1
# After a change with many nodes and requests the next one is later, since each of them costs some
# 15 us: so changes take the same share of the time, until they would come too late to be watched.
SECONDS_PER_ITEM = 0.004
MOST_SECONDS_BETWEEN_CHANGES = 0.5
_logger = logging.getLogger("radixlm.engine")


@dataclass(frozen=True, slots=True)
class Scene:
    """The tree, the requests that run and the totals, all of one moment between two steps."""

    tree: TreeSnapshot
    running: tuple[RequestView, ...]
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class SceneChange:
    """A change that leads to a later scene. tree: None when nothing of it changed. events: what
    happened to requests, in order; `lost` more were too many. running: those that changed; that one
    was retracted or has finished is in the events alone.
    """

    tree: TreeChange | None
    events: tuple[Event, ...]
    lost: int
    running: tuple[RequestView, ...]
    stats: EngineStats


TreeNews = Scene | SceneChange | CacheError


@dataclass(frozen=True, slots=True)
class TreeUpdate:
    """An update for the watcher with this ticket; after an error there is no more."""

    ticket: int
    news: TreeNews


# Events in order, and how many more there were than are kept.
Noted = tuple[tuple[Event, ...], int]


class Journal:
    """The scheduler's sink: keeps events while it is open. Used by the engine's thread."""

    def __init__(self) -> None:
        self.open = False
        self._events: list[Event] = []
        self._lost = 0

    def __len__(self) -> int:
        """How many came since `take`, those that are not kept too."""
        return len(self._events) + self._lost

    def note(self, event: Event) -> None:
        """An EventSink."""
        if not self.open:
            return
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)
        else:
            self._lost += 1

    def take(self) -> Noted:
        """Take what came since the last call."""
        noted = tuple(self._events), self._lost
        self._events, self._lost = [], 0
        return noted


@dataclass(slots=True, eq=False)
class _Watcher:
    """running: what was last sent. known: events of the journal that are part of the scene."""

    ticket: int
    query: TreeQuery
    follow: bool
    picture: Picture
    shown: bool = False
    known: int = 0
    running: dict[str, RequestView] = field(default_factory=dict)


class Watching:
    """All watchers. Used by the engine's thread; costs nothing while there are none.

    A scene is made over as many turns as it takes, one watcher at a time; the changes between the
    turns go into it, so that it is of one moment when it is sent. Then changes follow, ten times a
    second at most, less often when they are large; a part of the first may be in the scene already.
    A picture that can not be made ends with an error for its watcher, never for requests.

    failures: how many pictures ended so; 0 unless there is a bug.
    """

    def __init__(
        self,
        cache: RadixCache,
        scheduler: Scheduler,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._tree = cache.tree
        windows = None if cache.windows is None else cache.windows.of
        self._beside = windows, () if cache.states is None else cache.states.at
        self._changes = Changes()
        self._scheduler = scheduler
        self._journal = journal
        self._clock = clock
        self._watchers: dict[int, _Watcher] = {}
        self._refused: list[TreeUpdate] = []
        self._next_change = 0.0
        self.failures = 0

    def watch(self, ticket: int, query: TreeQuery, *, follow: bool) -> None:
        """Begin a scene; with `follow` its changes come after it, until `stop`."""
        try:
            picture = Picture(self._tree, query, *self._beside)
        except Exception as error:
            self._refused.append(TreeUpdate(ticket, self._failure(error)))
            return
        if not self._watchers:
            self._tree.watch(self._changes)
            self._journal.open = True
        self._watchers[ticket] = _Watcher(ticket, query, follow, picture)

    def stop(self, ticket: int) -> None:
        """End a watcher, if it is still there."""
        if self._watchers.pop(ticket, None) is not None and not self._watchers:
            self._tree.unwatch(self._changes)
            self._changes.take()
            self._journal.open = False
            self._journal.take()

    def seconds_left(self) -> float | None:
        """The seconds until a turn is due; None while nothing is to be shown."""
        if self._refused or self._developing() is not None:
            return 0.0
        if not self._watchers or not (self._journal or self._changes):
            return None
        return max(self._next_change - self._clock.now(), 0.0)

    def turn(self, stats: EngineStats) -> list[TreeUpdate]:
        """The updates that are to be sent now. stats: as of now."""
        updates, self._refused = self._refused, []
        if not self._watchers:
            return updates
        developing = self._developing()
        to_show = [] if developing is None else [developing]
        noted: Noted = (), 0
        due = self._clock.now() >= self._next_change or self._changes.lost
        changes = (self._changes.take() if due else self._changes) or None
        if due:
            to_show = list(self._watchers.values())
            noted = self._journal.take()
        for watcher in to_show:
            news: TreeNews | None
            try:
                news = self._show(watcher, stats, changes, noted, develop=watcher is developing)
            except Exception as error:
                news = self._failure(error)
            if news is not None:
                updates.append(TreeUpdate(watcher.ticket, news))
                if isinstance(news, CacheError) or not watcher.follow:
                    self.stop(watcher.ticket)
        if due:
            self._next_change = self._clock.now() + _pause_after(updates)
        return updates

    def _failure(self, error: Exception) -> CacheError:
        """The error that a watcher gets; one that is a bug is logged and counted."""
        if isinstance(error, NodeGoneError):
            return error
        self.failures += 1
        _logger.error("a picture of the cache failed", exc_info=error)
        return CacheError("the picture of the cache failed; the server's log says why")

    def _developing(self) -> _Watcher | None:
        """The watcher whose scene is made now: the first that waits for one."""
        return next((each for each in self._watchers.values() if not each.shown), None)

    def _show(
        self,
        watcher: _Watcher,
        stats: EngineStats,
        changes: Changes | None,
        noted: Noted,
        *,
        develop: bool,
    ) -> Scene | SceneChange | None:
        """Bring a watcher's picture up to date, and go on with it; return what is to be sent."""
        if changes is not None and (changes.lost or watcher.picture.overgrown):
            watcher.picture = Picture(self._tree, watcher.query, *self._beside)
            watcher.shown = False
        change = None if changes is None else watcher.picture.update(changes)
        if watcher.shown:
            return self._change(watcher, stats, change, noted)
        if develop:
            watcher.picture.develop(NODES_PER_TURN)
            if watcher.picture.complete:
                return self._scene(watcher, stats)
        return None

    def _scene(self, watcher: _Watcher, stats: EngineStats) -> Scene:
        watcher.shown, watcher.known = True, len(self._journal)
        watcher.running = self._running(watcher)
        running = tuple(watcher.running.values())
        return Scene(watcher.picture.snapshot(), running, stats)

    def _change(
        self, watcher: _Watcher, stats: EngineStats, change: TreeChange | None, noted: Noted
    ) -> SceneChange | None:
        before, watcher.running = watcher.running, self._running(watcher)
        running = tuple(view for name, view in watcher.running.items() if before.get(name) != view)
        skipped, watcher.known = watcher.known, 0
        happened, lost = noted
        lost -= max(skipped - len(happened), 0)
        events = tuple(
            event for event in happened[skipped:] if watcher.query.admits(event.namespace)
        )
        if change is not None and not change.nodes and not change.removed:
            change = None
        if change is None and not running and not events and not lost:
            return None
        return SceneChange(change, events, lost, running, stats)

    def _running(self, watcher: _Watcher) -> dict[str, RequestView]:
        return {
            state.request.request_id: RequestView(
                id=state.request.request_id,
                node_id=watcher.picture.deepest_shown(state.lease.node),
                prompt_tokens=state.prompt_length,
                cached_tokens=state.cached_tokens or 0,
                computed_tokens=state.computed,
                output_tokens=state.output_tokens,
            )
            for state in self._scheduler.running
            if state.lease is not None and watcher.query.admits(state.request.namespace)
        }


def _pause_after(updates: Iterable[TreeUpdate]) -> float:
    """Seconds until the next changes may be sent."""
    news = [each.news for each in updates if isinstance(each.news, SceneChange)]
    items = sum(len(each.running) + len(each.tree.nodes if each.tree else ()) for each in news)
    pause = max(SECONDS_PER_ITEM * items, SECONDS_BETWEEN_CHANGES)
    return min(pause, MOST_SECONDS_BETWEEN_CHANGES)
