"""Who may ask: the checks of every request before a page sees it, and the headers of every answer (docs/security.md).

`Host` must be a name of this machine's loopback: a page elsewhere whose name was made to point here sends its own name
(DNS rebinding). The request must come from a process of this user or of root. Where the kernel does not tell, reading
needs the token as well. Changes need the token, a form of ours and our origin.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse

from queue_runner.pages import render

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

Address = tuple[str, int]
Owner = Callable[[Address, Address], int | None]

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _UID = 1, 2, 7
"""Columns of the tables (Documentation/networking/proc_net_tcp.rst of Linux)."""
_MAPPED = bytes(10) + b"\xff\xff"
"""The beginning of an IPv4 address written as one of IPv6 (RFC 4291, 2.5.5.2)."""

_HOST = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
"""Any port: a tunnel (`ssh -L`) may end at another one than ours, and a rebound name is not a number."""

HEADERS = {
    "content-security-policy": render.WEB_POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer a browser sends "Origin: null" with our own forms, too
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def user_of(client: Address, server: Address) -> int | None:
    """Return the user id of the process that opened the connection from `client` to `server`, both of this machine:
    file modes do not protect a port. None where the kernel does not tell: on macOS, and for a closed connection."""
    ends = [(_hex(*one), _hex(*other)) for one, other in ((client, server),)]
    ends += [(_hex(*one, mapped=True), _hex(*other, mapped=True)) for one, other in ((client, server),)]
    for table in _TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > _UID and (words[_LOCAL], words[_REMOTE]) in ends:
                return int(words[_UID])
    return None


def is_owner(user: int | None) -> bool:
    """Return whether a user may read the queue: this one, root, or one whom the kernel does not name."""
    return user is None or user in (os.geteuid(), 0)


def _hex(host: str, port: int, *, mapped: bool = False) -> str:
    """Return an address as the kernel prints it: 32-bit words in the machine's order of bytes."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    if mapped and len(packed) == 4:
        packed = _MAPPED + packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"


class Access(Struct, frozen=True):
    """What may be done, and the secrets of one server: `token` is in the address that is printed, `session` in the
    cookie that a browser gets for it. `owner` tells whose process asks."""

    write: bool = False
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    owner: Owner = user_of

    def form_token(self, verb: str, what: str) -> str:
        """Return the token of the form that does `verb` to `what`: no other form has the same."""
        return hmac.new(self.session.encode(), f"{verb}\0{what}".encode(), hashlib.sha256).hexdigest()

    def cookie(self, port: int) -> str:
        """Return the cookie's name: cookies do not tell ports apart, and there may be two servers."""
        return f"mpsq_web_{port}"

    def knows(self, request: Request) -> bool:
        """Return whether the browser has been given the cookie."""
        given = request.cookies.get(self.cookie(_port(request)), "")
        return hmac.compare_digest(given.encode(), self.session.encode())

    def may_write(self, request: Request) -> bool:
        """Return whether this browser may change the queue."""
        return self.write and self.knows(request)


def _port(request: Request) -> int:
    server = request.scope.get("server")
    return int(server[1]) if server and server[1] else 0


class Guard:
    """ASGI middleware around everything: refuses, lets in with the token, and adds the headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # neither WebSockets nor anything else is served

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        answer = self._answer(request)
        await (answer or self._app)(scope, receive, guarded)

    def _answer(self, request: Request) -> HTMLResponse | None:
        """Return the answer to a request that goes no further; None for one that the pages answer."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            return refusal(400, "this server is localhost, 127.0.0.1 or [::1] alone", "open the printed address")
        user = self._user(request)
        if not is_owner(user):
            return refusal(403, "this queue belongs to another user of this machine", "your own mpsq web shows yours")
        if request.method not in ("GET", "HEAD", "POST"):
            return refusal(405, f"{request.method} is not served", "pages are read with GET")
        if _is_of_another_site(request.headers):
            return refusal(403, "another site asks for this page", "open it yourself, or follow a link to it")
        if request.method == "POST":
            return self._judge_post(request, hosts[0])
        if "token" in request.query_params:
            return self._let_in(request)
        if user is None and not self._access.knows(request) and not request.url.path.startswith("/static/"):
            return refusal(401, "this browser does not have the token yet", "open the address that mpsq web printed")
        return None

    def _user(self, request: Request) -> int | None:
        client, server = request.scope.get("client"), request.scope.get("server")
        if not client or not server:
            return None
        return self._access.owner((client[0], client[1]), (server[0], server[1]))

    def _judge_post(self, request: Request, host: str) -> HTMLResponse | None:
        if not self._access.write:
            return refusal(403, "this page is read-only", "mpsq web --write allows changes")
        if not self._access.knows(request):
            return refusal(401, "this browser does not have the token yet", "open the address that mpsq web printed")
        if not _is_own_origin(request.headers, host):
            return refusal(403, "the form does not come from this page", "use the buttons of mpsq web")
        return None

    def _let_in(self, request: Request) -> HTMLResponse:
        """Exchange the token of the address for the cookie. A page of ours goes on to the queue, not a redirect: after
        one, a browser that came from elsewhere does not send a SameSite=Strict cookie."""
        given = request.query_params["token"]
        if not hmac.compare_digest(given.encode(), self._access.token.encode()):
            return refusal(403, "the token is not this server's", "open the address that mpsq web printed last")
        answer = HTMLResponse(render.page("web/enter.html.j2", static="/static"))
        name = self._access.cookie(_port(request))
        answer.set_cookie(name, self._access.session, httponly=True, samesite="strict", path="/")
        return answer


def _is_of_another_site(headers: Headers) -> bool:
    """Return whether a page of another site makes the browser ask, other than by a link that its user follows: the
    answer would be hidden from it, and a history of 10,000 jobs computed all the same (Fetch Metadata)."""
    follows = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return headers.get("sec-fetch-site", "none") in ("cross-site", "same-site") and not follows


def _is_own_origin(headers: Headers, host: str) -> bool:
    """Return whether a browser says that the form is one of ours: every browser sends `Origin` with a POST."""
    origins = headers.getlist("origin")
    return (
        len(origins) == 1
        and hmac.compare_digest(origins[0].lower().encode(), f"http://{host}".lower().encode())
        and headers.get("sec-fetch-site", "same-origin") == "same-origin"
    )


def refusal(status: int, message: str, hint: str) -> HTMLResponse:
    """Return a page with a sentence and its remedy."""
    text = render.page("web/trouble.html.j2", static="/static", message=message, hint=hint, status=status)
    return HTMLResponse(text, status)
