"""How long prefixes are to be kept, as clients ask for it."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from radixlm.server.http.body import Body
from radixlm.server.http.fields import NotYet

SECONDS: Final = {"5m": 300.0, "30m": 1_800.0, "1h": 3_600.0, "12h": 43_200.0}
KeepFor = Literal["30m", "12h"]
# The longest that a cache may keep a prefix: nothing is promised by it.
Retention = Literal["in_memory", "in-memory", "24h"]


class CacheControl(Body):
    """Anthropic's: the prompt up to here is to be kept for so long, five minutes by default."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def seconds(self) -> float:
        return SECONDS[self.ttl or "5m"]


class PromptCacheBreakpoint(Body):
    """A prefix that is to be kept ends here. ttl: else as the options have it."""

    mode: Literal["explicit"]
    ttl: KeepFor | None = None


class PromptCacheOptions(Body):
    """ttl: of all breakpoints; given, the implicit one at the prompt's end is kept as well."""

    not_yet: ClassVar[NotYet] = {"comparison_response_id": (), "prewarm": (False,)}

    mode: Literal["implicit", "explicit"] | None = None
    ttl: KeepFor | None = None
