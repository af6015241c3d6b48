"""A tier below the pool, host memory or the disk: which prefixes are there, and what makes room
there for others.
"""

from __future__ import annotations

from collections.abc import Hashable

from radixlm.cache.components.states import StateSlots
from radixlm.cache.components.window_slots import WindowSlots
from radixlm.cache.places.stored_parts import Blocks, StoredPart, StoredParts
from radixlm.cache.places.write_queue import WriteQueue
from radixlm.cache.radix.conservation import Usage
from radixlm.cache.radix.node import TreeNode
from radixlm.cache.radix.tree import RadixTree
from radixlm.core.errors import CacheError, ConfigError
from radixlm.core.keys import Key, as_key
from radixlm.core.moves import ALL_BLOCKS, Place, StateBlocks, tokens_of


class StoredTier:
    """The blocks that a place has. It moves no bytes: who does says what has become of them.

        write   queue -> lock what is before them -> reserve -> (bytes) -> stored -> unlock
        read    restorable -> lock -> (bytes) -> unlock;  gone, where they were missing or damaged

    What has to make room, or is found to be without use, is in `take_dropped`: to be deleted
    there before anything else is written. queue: of what is to be written next. Used by the
    cache's thread. Keys are whole prompts; a block that they do not fill is left out.

    >>> tree = RadixTree()
    >>> tier = StoredTier(tree, Place.DISK, block_tokens=2, capacity_tokens=4, pool_tokens=10)
    >>> tier.stored(as_key([1, 2, 3, 4]), None, 0, 4)
    >>> tier.restorable(as_key([1, 2, 3]), None), tier.usage().evictable
    (2, 4)
    >>> tier.reserve(2), [(b.tokens.tolist(), b.start) for b in tier.take_dropped()]
    (True, [([1, 2, 3, 4], 2)])
    """

    def __init__(
        self,
        tree: RadixTree,
        place: Place,
        block_tokens: int,
        capacity_tokens: int,
        pool_tokens: int,
        windows: WindowSlots | None = None,
        states: StateSlots | None = None,
        state_blocks: int = 0,
    ) -> None:
        """windows, states: the cache's, if it has some. state_blocks: blocks that a state takes.
        Raises ConfigError unless blocks are whole pages and there is room for one, or for a
        checkpoint.
        """
        if block_tokens < 1 or block_tokens % tree.page_size:
            raise ConfigError(
                f"a block of {block_tokens} tokens is not whole pages of {tree.page_size}"
            )
        if capacity_tokens < block_tokens:
            raise ConfigError(
                f"a store of {capacity_tokens} tokens holds no block of {block_tokens}"
            )
        if states is not None and (windows is not None or not state_blocks):
            what = "states beside layers with a window, or of no size,"
            raise ConfigError(f"{what} can not be stored (--host-kv-tokens, --disk-cache)")
        self.sizes = StateBlocks(block_tokens, state_blocks)
        least = (state_blocks + 1) * block_tokens
        if state_blocks and capacity_tokens < least:
            raise ConfigError(
                f"a store of {capacity_tokens} tokens holds no checkpoint of states, which takes "
                f"the room of {least}"
            )
        self.place = place
        self.block_tokens = block_tokens
        self.capacity = capacity_tokens - capacity_tokens % block_tokens
        self._tree = tree
        seen = 0 if windows is None else windows.reach
        self._window_blocks = -(-seen // block_tokens)
        self._parts = StoredParts(place, tree.order, self.sizes, tree.stored_changed)
        of_windows = windows, self._window_blocks
        rooms = pool_tokens, self.capacity
        self.queue = WriteQueue(tree, self._parts, *rooms, *of_windows, states)
        self._private = 0
        tree.watch(self._parts)

    def usage(self) -> Usage:
        """Tokens of room, in whole blocks. private: reserved for writes in flight."""
        parts, size = self._parts, self.block_tokens
        free = self.capacity - self._private - parts.blocks * size
        unlocked = (parts.blocks - parts.locked) * size
        return Usage(free, self._private, parts.locked * size, unlocked)

    def length_of(self, key: Key, namespace: Hashable) -> int:
        """Tokens of the longest prefix of `key` of which all blocks are stored. O(nodes)."""
        return self._length(*self._tree.place(key, namespace))[1]

    def _length(self, node: TreeNode | None, length: int) -> tuple[TreeNode | None, int]:
        """The same of the first `length` tokens of the path to a node's end; and where it ends."""
        while node is not None and not node.stored[self.place]:
            node = node.parent
        return node, 0 if node is None else self._parts.floor(min(self._parts.end(node), length))

    def prefix(self, node: TreeNode | None, length: int) -> int:
        """Tokens that a request could go on from once they are read, of the first `length` of the
        path to a node's end: all blocks are stored, those that the next token sees with the part of
        layers with a window; with states, up to where a checkpoint is. O(nodes).
        """
        if self.sizes.per_state:
            there = self._parts.checkpoints
            while node is not None and not (node in there and node.end <= length):
                node = node.parent
            return 0 if node is None else node.end
        node, stored = self._length(node, length)
        if node is None or not self._window_blocks:
            return stored
        return self._parts.usable(node, stored, self._window_blocks)

    def restorable(self, key: Key, namespace: Hashable) -> int:
        """`prefix` of a key."""
        return self.prefix(*self._tree.place(key, namespace))

    def reserve(self, n_tokens: int) -> bool:
        """Room for blocks that are to be written, until `stored` or `give_back`; it drops the
        least valuable ones for that. False, and nothing has changed, when there is not enough.
        """
        if n_tokens < 0 or n_tokens % self.block_tokens:
            raise CacheError(f"{n_tokens} tokens are not whole blocks of {self.block_tokens}")
        if not self._make_room(n_tokens):
            return False
        self._private += n_tokens
        return True

    def give_back(self, n_tokens: int) -> None:
        """Undo a reservation, or what is left of one. Raises CacheError for more than there is."""
        if not 0 <= n_tokens <= self._private:
            raise CacheError(f"{n_tokens} reserved tokens to give back, there are {self._private}")
        self._private -= n_tokens

    def stored(
        self,
        key: Key,
        namespace: Hashable,
        start: int,
        upto: int,
        *,
        reserved: int = 0,
        windows: int = ALL_BLOCKS,
        exact: bool = False,
    ) -> None:
        """The blocks of key[start:upto] are stored now. Tokens that the tree does not know become
        placeholders: known, not resident, restorable. O(nodes + new bytes).

        windows: which of them with the part of layers with a window, see StoredPath. exact: no
        others of the path are; else what is known of others stays. reserved: how much of a
        reservation that uses up; room for what is not reserved is made, or they are dropped. So are
        blocks of which one that comes before them is not stored: after a restart, name shorter
        paths first. Raises InvalidKeyError, CacheError.
        """
        self.give_back(reserved)
        upto, start = self._parts.floor(upto), self._parts.floor(start)
        if self.sizes.per_state and (end := tokens_of(key[:upto])) < upto:
            self._stored_checkpoint(key[:upto], end, namespace, start)
            return
        known = as_key(key[:upto]) if upto else key[:0]
        path = (1 << known.size // self.block_tokens) - 1
        mask = windows & path, path * exact
        there = self.length_of(known, namespace)
        if there >= known.size:
            node, _ = self._tree.place(known, namespace)
            if node is not None and self._window_blocks:
                self._parts.cover(node, 0, *mask)
            return
        held = self.lock(known, namespace, there)
        fits = there >= start and self._make_room(known.size - there)
        self.unlock(held)
        if not fits:
            self._parts.dropped.append(Blocks(namespace, known.copy(), max(start, there)))
            return
        node = self._tree.node_of(known, namespace)
        self._parts.cover(node, known.size, *mask)
        if node.parent is not None:
            self._tree.merge(node.parent)
        self._forget()

    def _stored_checkpoint(self, path: Key, end: int, namespace: Hashable, start: int) -> None:
        """A checkpoint after `end` tokens, the first of a path, is stored from `start` on."""
        key, whole = path[:end], self._parts.floor(end)
        if not end or path.size != end + self.sizes.size(end):
            # Another process writes the rest; what a kill has left of one goes with its tokens.
            self.stored(path, namespace, start, whole)
            return
        if self._checkpoint_after(key, namespace) is not None:
            return
        there, start = self.length_of(key, namespace), min(start, whole)
        held = self.lock(key, namespace, there)
        fits = there >= start and self._make_room(path.size - there)
        self.unlock(held)
        if not fits:
            self._parts.dropped.append(Blocks(namespace, path.copy(), max(start, there)))
            return
        node = self._end_of(key, namespace)
        self._parts.cover(node, end, 0)
        self._parts.add_checkpoint(node)
        if node.parent is not None:
            self._tree.merge(node.parent)
        self._forget()

    def gone(self, key: Key, namespace: Hashable, start: int) -> None:
        """The block of `key` that begins at `start` is not stored, or damaged: it and all that
        follow it, of other prompts as well, are dropped, locked or not.
        """
        upto = tokens_of(key)
        if upto < key.size and start >= self._parts.floor(upto):
            node = self._checkpoint_after(key[:upto], namespace)
            if node is not None:
                self._parts.drop_checkpoint(node)
                self._forget()
            return
        end = self._parts.floor(start) + self.block_tokens
        node, known = self._tree.place(key[:end], namespace)
        if node is not None and known == end:
            self._parts.drop_after(node, end - 1)
            self._forget()

    def lacks_windows(self, key: Key, namespace: Hashable, start: int) -> None:
        """The block of `key` that begins at `start` is stored without the part of layers with a
        window.
        """
        end = self._parts.floor(start) + self.block_tokens
        node, known = self._tree.place(key[:end], namespace)
        if node is not None and known == end:
            self._parts.cover(node, 0, 0, 1 << start // self.block_tokens)

    def discard(self, key: Key, namespace: Hashable, keep: int) -> None:
        """Drop all blocks that hold tokens of `key` after its first `keep` (whole pages)."""
        node, known = self._tree.place(key[: keep + self._tree.page_size], namespace)
        if node is not None and known > keep:
            self._parts.drop_after(node, keep)
            self._forget()

    def lock_path(self, path: Key, namespace: Hashable) -> StoredPart | None:
        """The same as `lock` of a whole path; of a checkpoint's, if that is stored."""
        if (end := tokens_of(path)) == path.size:
            return self.lock(path, namespace, end)
        node = self._checkpoint_after(path[:end], namespace)
        return None if node is None else self._parts.lock(node, checkpoint=True)

    def _checkpoint_after(self, key: Key, namespace: Hashable) -> TreeNode | None:
        """The node with the stored checkpoint after these tokens, if there is one."""
        node, known = self._tree.place(key, namespace)
        there = node in self._parts.checkpoints and known == key.size
        return node if node is not None and there and node.end == known else None

    def lock(self, key: Key, namespace: Hashable, upto: int) -> StoredPart | None:
        """Keep what is stored of key[:upto] for a read or a write in flight, until `unlock`; None
        when nothing is. O(nodes).
        """
        sought = key[: max(upto, 0)]
        length = self.length_of(sought, namespace) if sought.size else 0
        if not length:
            return None
        return self._parts.lock(self._end_of(sought[:length], namespace))

    def _end_of(self, key: Key, namespace: Hashable) -> TreeNode:
        """The node that ends where a key does."""
        node = self._tree.node_of(key, namespace)
        return node if node.end == key.size else self._tree.split(node, key.size - node.start)

    def unlock(self, held: StoredPart | None) -> None:
        """Undo `lock`, once."""
        node = None if held is None else self._parts.unlock(held)
        if node is not None:
            self._tree.merge(node)

    def take_dropped(self) -> list[Blocks]:
        """Take the blocks that are to be deleted there, each once."""
        dropped, self._parts.dropped = self._parts.dropped, []
        return dropped

    def make_room(self, n_tokens: int) -> None:
        """Drop as much of what is least valuable: the place has less room than was thought."""
        usage = self.usage()
        self._make_room(usage.free + min(n_tokens, usage.evictable))

    def clear(self) -> None:
        """Drop all that no lock holds."""
        self._make_room(self.usage().free + self.usage().evictable)

    def _make_room(self, n_tokens: int) -> bool:
        usage = self.usage()
        if usage.free + usage.evictable < n_tokens:
            return False
        short = (n_tokens - usage.free) // self.block_tokens
        while short > 0:
            dropped = self._parts.drop_leaf(short)
            if not dropped:
                raise CacheError(f"{short} stored blocks to drop, but no unlocked leaf is left")
            short -= dropped
        self._forget()
        return True

    def _forget(self) -> None:
        while self._parts.loose:
            node = self._parts.loose.pop()
            if self._tree.by_id.get(node.id) is node:
                self._tree.merge(node)
        self._tree.forget_ghosts(self._tree.ghosts.budget)
