"""How long prefixes are to be kept, as OpenAI's clients ask for it."""

from __future__ import annotations

from typing import ClassVar, Literal

from radixlm.server.fields import NotYet
from radixlm.server.request_model import Body

KeepFor = Literal["30m", "12h"]
# The longest that a cache may keep a prefix: nothing is promised by it.
Retention = Literal["in_memory", "in-memory", "24h"]


class PromptCacheBreakpoint(Body):
    """A prefix that is to be kept ends here. ttl: else as the options have it."""

    mode: Literal["explicit"]
    ttl: KeepFor | None = None


class PromptCacheOptions(Body):
    """ttl: of all breakpoints; given, the implicit one at the prompt's end is kept as well."""

    not_yet: ClassVar[NotYet] = {"comparison_response_id": (), "prewarm": (False,)}

    mode: Literal["implicit", "explicit"] | None = None
    ttl: KeepFor | None = None
