"""Drafts from what a request has read and written itself."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from radixlm.drafts.draft import Draft

# Fewer tokens that agree say nothing of the next one; with more there is nothing left to tell.
LEAST, MOST = 2, 32


class OwnText:
    """Proposes what followed the last place at which the most of the last tokens stood before."""

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        """See DraftSource. O(tokens)."""
        text = np.asarray(tokens)
        ends, matched = np.arange(1, text.size), 0
        while matched < MOST:
            longer = ends[ends > matched]
            longer = longer[text[longer - matched - 1] == text[-matched - 1]]
            if not longer.size:
                break
            ends, matched = longer, matched + 1
        if matched < LEAST:
            return None
        place = int(ends[-1])
        return Draft(tuple(text[place : place + most].tolist()), "own_text", matched)
