"""Conversations beside stored responses: functions for `ResponseStore.call`.

A conversation is a row of the turns, whose `response` is what clients are shown, so that age and
room are the store's to see to. It is as old as its last change.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from radixlm.server.bodies.conversation import Json
from radixlm.server.responses.response_store import CONVERSATION, Turn, TurnStore
from radixlm.server.responses.responses_conversation import new_item_id

_CHANGED = """
UPDATE turns SET size = size + ?, created = ?, number = (SELECT MAX(number) + 1 FROM turns)
WHERE id = ?
"""
_ROW_BYTES = 150


def create(
    store: TurnStore, owner: str, shown: Json, items: Sequence[Json], worked_on: Collection[str]
) -> bool:
    """Keep a new conversation. False when it is larger than all that is kept may be."""
    text = json.dumps(shown, ensure_ascii=False)
    turn = Turn(shown["id"], owner, None, store.now(), ended=True, response=text, input="[]")
    if not store.put(turn, worked_on):
        return False
    if items and add(store, owner, turn.id, items, worked_on) is None:
        store.delete(owner, turn.id)
        return False
    return True


def get(store: TurnStore, owner: str, conversation: str) -> Json | None:
    """An owner's conversation, if it is there, without its items."""
    of_response = not conversation.startswith(f"{CONVERSATION}_")
    turn = None if of_response else store.kept(owner, conversation)
    return None if turn is None else json.loads(turn.response)


def update(store: TurnStore, owner: str, shown: Json, worked_on: Collection[str]) -> bool:
    """Put this in the place of what is shown of a conversation. Whether it is there."""
    turn = store.kept(owner, shown["id"])
    if turn is None:
        return False
    text = json.dumps(shown, ensure_ascii=False)
    with store.db:
        store.db.execute("UPDATE turns SET response = ? WHERE id = ?", (text, turn.id))
        _change(store, turn.id, len(text.encode()) - len(turn.response.encode()))
        store.make_room(worked_on)
    return True


def add(
    store: TurnStore,
    owner: str,
    conversation: str,
    items: Sequence[Json],
    worked_on: Collection[str],
) -> list[Json] | None:
    """Let items be said, all in one moment. Returns them with the ids that they have: one that is
    taken is made anew. None where the conversation is gone, or has no room.
    """
    if get(store, owner, conversation) is None:
        return None
    names = json.dumps([item["id"] for item in items])
    there = "SELECT id FROM said WHERE conversation = ? AND id IN (SELECT value FROM json_each(?))"
    taken = {name for (name,) in store.db.execute(there, (conversation, names))}
    added: list[Json] = []
    for item in items:
        fresh = {"id": new_item_id(item["type"])} if item["id"] in taken else {}
        added.append({**item, **fresh})
        taken.add(added[-1]["id"])
    texts = [json.dumps(item, ensure_ascii=False) for item in added]
    more = sum(_ROW_BYTES + len(text.encode()) for text in texts)
    (size,) = store.db.execute("SELECT size FROM turns WHERE id = ?", (conversation,)).fetchone()
    if size + more > store.limits.size:
        return None
    rows = [(conversation, item["id"], text) for item, text in zip(added, texts, strict=True)]
    with store.db:
        store.db.executemany("INSERT INTO said (conversation, id, item) VALUES (?, ?, ?)", rows)
        _change(store, conversation, more)
        store.make_room(worked_on)
    return added


def said(store: TurnStore, conversation: str) -> list[str]:
    """All items of a conversation, each as JSON."""
    every = "SELECT item FROM said WHERE conversation = ? ORDER BY number"
    return [item for (item,) in store.db.execute(every, (conversation,))]


def page(
    store: TurnStore, conversation: str, after: str | None, limit: int, *, ascending: bool
) -> list[Json] | None:
    """A page of `limit` items at most, after one of them. None where that is not there."""
    place = 0 if ascending else 2**62
    if after is not None:
        named = "SELECT number FROM said WHERE conversation = ? AND id = ?"
        found = store.db.execute(named, (conversation, after)).fetchone()
        if found is None:
            return None
        (place,) = found
    beyond, order = (">", "ASC") if ascending else ("<", "DESC")
    wanted = (
        f"SELECT item FROM said WHERE conversation = ? AND number {beyond} ? "  # noqa: S608
        f"ORDER BY number {order} LIMIT ?"
    )
    rows = store.db.execute(wanted, (conversation, place, limit))
    return [json.loads(item) for (item,) in rows]


def item(store: TurnStore, conversation: str, item_id: str) -> Json | None:
    """One item of a conversation, if it is there."""
    named = "SELECT item FROM said WHERE conversation = ? AND id = ?"
    found = store.db.execute(named, (conversation, item_id)).fetchone()
    return None if found is None else json.loads(found[0])


def delete_item(store: TurnStore, conversation: str, item_id: str) -> bool:
    """Take one item out of a conversation. Whether it was there."""
    gone = "DELETE FROM said WHERE conversation = ? AND id = ? RETURNING item"
    with store.db:
        rows = store.db.execute(gone, (conversation, item_id)).fetchall()
        for (text,) in rows:
            _change(store, conversation, -_ROW_BYTES - len(text.encode()))
    return bool(rows)


def _change(store: TurnStore, conversation: str, more: int) -> None:
    store.db.execute(_CHANGED, (more, store.now(), conversation))
