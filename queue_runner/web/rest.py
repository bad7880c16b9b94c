"""What the server does when nobody asks: it returns the memory that pages needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

REST_S = 1.0
"""Time without an answer after which it is at rest: a page asks for its style and script at once."""


class Rest:
    """ASGI middleware around everything: calls `give_back` a moment after the last answer."""

    def __init__(self, app: ASGIApp, rest_s: float = REST_S) -> None:
        self._app = app
        self._rest_s = rest_s
        self._due: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            if self._due is not None:
                self._due.cancel()
            self._due = asyncio.get_running_loop().call_later(self._rest_s, _give_back)


def _give_back() -> None:
    from queue_runner.host import memory  # at the first rest: it loads ctypes

    memory.give_back()
