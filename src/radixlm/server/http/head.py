"""Routes that answer HEAD where they answer GET, as Starlette's own do and FastAPI's do not."""

from __future__ import annotations

from typing import Any

from fastapi.routing import APIRoute


class HeadRoute(APIRoute):
    """The server leaves the body out, so HEAD takes what GET takes. A route that also takes POST
    changes something, and has no HEAD.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.methods == {"GET"}:
            self.methods.add("HEAD")
