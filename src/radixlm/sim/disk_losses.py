"""The tokens that prompts had to have computed again, and why the disk did not help."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixlm.core.keys import Key
from radixlm.core.misses import MissReport


@dataclass(slots=True)
class DiskLosses:
    """The losses of prompts in blocks of `block` tokens, by their whole paths. Sizes in tokens.

    stored_computed: were on disk, and computed all the same: that was faster, or there was no room
    to read them into. unwritten: were evicted before they had been written. dropped: had to leave
    the disk again, since there was no room.
    """

    block: int
    stored_computed: int = 0
    unwritten: int = 0
    dropped: int = 0
    _seen: set[int] = field(default_factory=set)
    _written: set[int] = field(default_factory=set)

    def names(self, tokens: Key, namespace: bytes) -> list[int]:
        """The names of a path's whole blocks. O(tokens)."""
        size, name, names = self.block, hash(namespace), []
        for start in range(0, tokens.size - size + 1, size):
            name = hash((name, tokens[start : start + size].tobytes()))
            names.append(name)
        return names

    def wrote(self, name: int) -> None:
        """A block is on disk."""
        self._written.add(name)

    def asked(self, prompt: Key, namespace: bytes, miss: MissReport) -> None:
        """A request is admitted, and found what it found."""
        names = self.names(prompt, namespace)
        on_disk = miss.cached + miss.on_host + miss.on_disk
        for number in range(miss.cached // self.block, (prompt.size - 1) // self.block):
            name, end = names[number], (number + 1) * self.block
            if name not in self._seen:
                break
            lost = end - max(miss.cached, number * self.block)
            if end <= on_disk:
                self.stored_computed += lost
            elif name in self._written:
                self.dropped += lost
            else:
                self.unwritten += lost
        self._seen.update(names)
