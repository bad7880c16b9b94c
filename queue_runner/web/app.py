"""The application: its addresses, and what becomes of an error on the way to one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from secrets import compare_digest, token_urlsafe
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from queue_runner.errors import MpsqError, UsageError
from queue_runner.monitor.status import Observation
from queue_runner.pages import render
from queue_runner.paths import Layout
from queue_runner.web import live, logs, report, views
from queue_runner.web.live import Parts
from queue_runner.web.rest import Rest
from queue_runner.web.security import Access, Guard, refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp

STATIC = {
    "style.css": "text/css",
    "web.css": "text/css",
    "web.js": "text/javascript",
    **report.STATIC,
}
"""The files that are served, by name: nothing else of the folder, and nothing outside of it."""
_TOLD_MOST = 32


class Pages:
    """The pages of one queue."""

    def __init__(self, layout: Layout, access: Access) -> None:
        self._layout = layout
        self._access = access
        self.streams = live.Streams()
        self._watcher = live.Watcher(layout, self._live_parts)
        self._told: OrderedDict[str, str] = OrderedDict()
        """What came of the last changes, until the page after each has shown it."""
        self._seen_waiting: object = None

    # -- pages --------------------------------------------------------------------------------------------------------

    def queue(self, request: Request) -> Response:
        parts = views.queue(self._layout)
        return self._page("queue", request, **_renamed(parts))

    def history(self, request: Request) -> Response:
        wanted = views.read_search(request.query_params)
        return self._page("history", request, address=_history_address, **views.history(self._layout, wanted))

    def job(self, request: Request) -> Response:
        return self._page("job", request, **views.job(self._layout, request.path_params["id"]))

    def log(self, request: Request) -> Response:
        run, stream, lines = _log_asked(request)
        found = logs.page(self._layout, run, stream, lines)
        name = found["row"]["run"]
        follow = f"/log/{quote(name)}/follow?{urlencode({'stream': stream, 'lines': lines})}"
        return self._page(
            "log",
            request,
            at=views.named(found["row"]),
            stream=stream,
            more=min(lines * 10, logs.LINES_MOST),
            follow=follow if found["running"] else None,
            **{key: found[key] for key in ("text", "cut", "trouble")},
        )

    def compare(self, request: Request) -> Response:
        asked = report.read_asked(request.query_params)
        if not asked.ids and not asked.where:
            return self._page("compare", request, form=report.form(asked))
        return HTMLResponse(report.page(self._layout, asked, views.PATIENCE_S))

    # -- what changes -------------------------------------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        if self.streams.full:
            return _too_many()
        writes = self._access.may_write(request)
        return live.answer(self._watcher.events(request, self.streams, lambda value: value[writes]))

    async def follow(self, request: Request) -> Response:
        if self.streams.full:
            return _too_many()
        run, stream, lines = _log_asked(request)
        return live.answer(logs.follow(self._layout, run, stream, lines, request, self.streams))

    def _live_parts(self, seen: Observation) -> Parts:
        """Return the HTML of each part that may have changed, without forms and, if anybody may write, with them."""
        values = _renamed(views.queue_parts(seen))
        names = ["running"] if seen.status.waiting is self._seen_waiting else ["running", "queue"]
        self._seen_waiting = seen.status.waiting  # read anew with everything around it, or not at all
        return {
            name: [
                render.page(f"web/live_{name}.html.j2", static="/static", forms=forms, **values)
                for forms in ((None, self._access.form_token) if self._access.write else (None,))
            ]
            for name in names
        }

    # -- changes ------------------------------------------------------------------------------------------------------

    async def do(self, request: Request) -> Response:
        """Do what a form asks for; security.Guard has let it through."""
        from queue_runner.web import actions  # what changes the queue is not there before it is used

        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > actions.FORM_BYTES:
                return refusal(413, "the form is too large", "use the buttons of mpsq web")
        form = actions.read_form(request.path_params["verb"], body)
        if not compare_digest(form.csrf.encode(), self._access.form_token(form.verb, form.id).encode()):
            return refusal(403, "the form does not come from this page, or from an earlier start of it", "reload it")
        told = await run_in_threadpool(actions.do, self._layout, form)
        key = token_urlsafe(8)
        self._told[key] = told
        if len(self._told) > _TOLD_MOST:
            self._told.popitem(last=False)
        return RedirectResponse(f"{form.back}?told={key}", 303)

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404)
        return PlainTextResponse(render.asset(name), media_type=STATIC[name])

    # -- rendering ----------------------------------------------------------------------------------------------------

    def _page(self, name: str, request: Request, **values: Any) -> HTMLResponse:
        forms = self._access.form_token if self._access.may_write(request) else None
        told = self._told.pop(request.query_params.get("told", ""), "")
        return HTMLResponse(render.page(f"web/{name}.html.j2", static="/static", forms=forms, told=told, **values))


def _renamed(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the running run under a name that no macro has."""
    return {"running_" if name == "running" else name: value for name, value in parts.items()}


def _history_address(asked: views.Search, before: int | None) -> str:
    given = {"q": asked.text, "state": asked.state, "tag": asked.tag, "before": before}
    n = {"n": asked.n} if asked.n != views.PAGE else {}
    return f"/history?{urlencode({name: value for name, value in (given | n).items() if value})}"


def _log_asked(request: Request) -> tuple[str, str, int]:
    given = request.query_params
    return (
        request.path_params["id"],
        given.get("stream", "stdout"),
        views.whole(given.get("lines") or str(logs.LINES), "lines"),
    )


def _too_many() -> Response:
    sentence = f"{live.MOST} pages already follow this queue: close one of them"
    return PlainTextResponse(sentence, 503, headers={"retry-after": "10"})


@dataclass(frozen=True)
class Site:
    """The application of one queue, and its streams, which are told when the server ends."""

    app: ASGIApp
    streams: live.Streams


def make_site(layout: Layout, access: Access) -> Site:
    """Return the application that shows one queue."""
    pages = Pages(layout, access)
    get: dict[str, Callable[[Request], Any]] = {
        "/": pages.queue,
        "/live": pages.live,
        "/history": pages.history,
        "/compare": pages.compare,
        "/job/{id}": pages.job,
        "/log/{id}": pages.log,
        "/log/{id}/follow": pages.follow,
        "/static/{name:path}": pages.static,
    }
    routes = [Route(path, page, methods=["GET"]) for path, page in get.items()]
    routes.append(Route("/do/{verb}", pages.do, methods=["POST"]))
    handlers: dict[Any, Any] = {MpsqError: _trouble, HTTPException: _refused, OSError: _system, Exception: _defect}
    return Site(Rest(Guard(Starlette(routes=routes, exception_handlers=handlers), access)), pages.streams)


def _trouble(request: Request, error: MpsqError) -> Response:
    """Show an error that a user can cause: 404 for what is not there, 503 for a database that cannot be read."""
    status = 503
    if isinstance(error, UsageError):
        status = 409 if request.method == "POST" else 404
    return refusal(status, error.message, error.hint)


def _refused(_request: Request, error: HTTPException) -> Response:
    known = {404: ("there is no such page", "the queue is at /"), 405: ("that is not served here", "the queue is at /")}
    message, hint = known.get(error.status_code, (error.detail, ""))
    return refusal(error.status_code, message, hint)


def _defect(_request: Request, error: Exception) -> Response:
    """Show a defect of ours; Starlette raises it again, and uvicorn logs it."""
    return refusal(500, f"mpsq web failed: {type(error).__name__}", "its terminal shows where; please report it")


def _system(_request: Request, error: OSError) -> Response:
    where = f": {error.filename}" if error.filename else ""
    return refusal(503, f"{(error.strerror or str(error)).lower()}{where}", "mpsq doctor checks this machine")
