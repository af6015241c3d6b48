"""The index by which attention chooses what it reads (DeepSeek-V3.2, 2025): of a token and layer a
short key, for all heads of the index.

    score of a key for a query   weight of a head x relu(the head's query . key), of all heads

Those with the highest scores are read, by all heads of attention; where there are no more of them
than `chosen`, all are.
"""

from __future__ import annotations

from typing import NamedTuple


class IndexSizes(NamedTuple):
    """heads: of queries, each of `size` numbers. chosen: tokens that one reads at most.
    interleaved: see `Traits`. layers: that have an index; the others read what the last one before
    them chose.
    """

    heads: int
    size: int
    chosen: int
    interleaved: bool
    layers: tuple[bool, ...]

    def parts(self) -> tuple[int, int, int]:
        """Numbers of a token's queries, of its key and of its weights, as attention is given them:
        behind its latent row.
        """
        return self.heads * self.size, self.size, self.heads
