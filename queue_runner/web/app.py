"""The application: its addresses, and how an error becomes a page."""

from __future__ import annotations

import asyncio
import gc
from collections import OrderedDict
from collections.abc import Callable
from secrets import compare_digest, token_urlsafe
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from msgspec import Struct
from msgspec.structs import asdict
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from queue_runner.errors import MpsqError, UsageError
from queue_runner.model import State
from queue_runner.monitor.queue_status import Observation
from queue_runner.pages import render
from queue_runner.paths import Layout
from queue_runner.web import compare_page, live, log_page, views
from queue_runner.web.live import Parts
from queue_runner.web.overview import OverviewReader
from queue_runner.web.security import Access, Guard, refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

STATIC = {
    "style.css": "text/css",
    "web.css": "text/css",
    "web.js": "text/javascript",
    **compare_page.STATIC,
}
"""The files that are served, by name: nothing else of the folder, and nothing outside of it."""
_MOST_RESULTS = 32


class ActionResult(Struct, frozen=True):
    """The result of a form: `kind` is "good", or "bad" for a refusal."""

    kind: str
    text: str


class Pages:
    """The pages of one queue."""

    def __init__(self, layout: Layout, access: Access) -> None:
        self._layout = layout
        self._access = access
        self._reports = compare_page.ReportPages(layout)
        self._overview = OverviewReader(layout)
        self.streams = live.Streams()
        self._watcher = live.Watcher(layout, self._live_parts)
        self._results: OrderedDict[str, ActionResult] = OrderedDict()
        """The results of the last changes, until the page after each has shown them."""
        self._rendered_waiting: object = None

    # -- pages --------------------------------------------------------------------------------------------------------

    def queue(self, request: Request) -> Response:
        return self._page("queue", request, **asdict(views.queue(self._layout, self._overview)))

    def history(self, request: Request) -> Response:
        search, error = views.read_search(request.query_params), ""
        try:
            view = views.history(self._layout, search)
        except UsageError as refused:
            view, error = views.HistoryPage([], None, search, 0.0), live.explained(refused).with_remedy
        status = 404 if error else 200
        return self._page("history", request, status, address=_history_address, view=view, error=error)

    def job(self, request: Request) -> Response:
        page = views.job(self._layout, request.path_params["id"])
        return self._page("job", request, **asdict(page), error=log_page.last_words(self._layout, page.at))

    def group(self, request: Request) -> Response:
        group = views.whole(request.path_params["id"].removeprefix("g"), "a submission")
        return HTMLResponse(self._reports.of_group(group, views.PATIENCE_S, **self._forms(request)))

    def log(self, request: Request) -> Response:
        id, stream, lines = _log_query(request)
        log = log_page.page(self._layout, id, stream, lines)
        follow = f"/log/{quote(log.run.run)}/follow?{urlencode({'stream': stream, 'lines': lines})}"
        return self._page(
            "log",
            request,
            stream=stream,
            more=min(lines * 10, log_page.LINES_MOST) if log.text.count("\n") >= lines < log_page.LINES_MOST else 0,
            follow=follow if log.run.state == State.RUNNING and not log.trouble else None,
            log=log,
        )

    def compare(self, request: Request) -> Response:
        query, error = compare_page.read_query(request.query_params), ""
        if request.query_params:
            try:
                return HTMLResponse(self._reports.of_query(query, views.PATIENCE_S))
            except UsageError as refused:
                error = live.explained(refused).with_remedy
        return self._page("compare", request, 404 if error else 200, form=compare_page.form(query), error=error)

    # -- what changes -------------------------------------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        if self.streams.full:
            return _too_many()
        writes = self._access.may_write(request)
        return live.answer(self._watcher.events(request, self.streams, lambda value: value[writes]))

    async def follow(self, request: Request) -> Response:
        if self.streams.full:
            return _too_many()
        run, stream, lines = _log_query(request)
        return live.answer(log_page.follow(self._layout, run, stream, lines, request, self.streams))

    def _live_parts(self, observation: Observation) -> Parts:
        """Return the HTML of each part that may have changed, without forms and, if anybody may write, with them."""
        is_known = observation.status.waiting is self._rendered_waiting
        values = asdict(views.queue_page(observation, None if is_known else self._overview.read(views.PATIENCE_S)))
        names = ["running"] if is_known else ["running", "overview", "queue"]
        self._rendered_waiting = observation.status.waiting  # read anew with everything around it, or not at all
        allowed = (None, self._access.form_token) if self._access.write else (None,)

        def html(name: str, forms: Any = None) -> str:
            return render.page(f"web/live_{name}.html.j2", static="/static", forms=forms, **values)

        running = observation.status.running
        progress = {"run": running.run.run if running else "", "html": html("progress")}
        return {name: [html(name, forms) for forms in allowed] for name in names} | {
            "progress": [progress] * len(allowed)
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
        try:
            result = ActionResult("good", await run_in_threadpool(actions.do, self._layout, form))
        except MpsqError as error:  # shown where the button is
            result = ActionResult("bad", error.with_remedy)
        key = token_urlsafe(8)
        self._results[key] = result
        if len(self._results) > _MOST_RESULTS:
            self._results.popitem(last=False)
        page, hash, place = form.back.partition("#")
        return RedirectResponse(f"{page}?result={key}{hash}{place}", 303)

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404)
        return PlainTextResponse(render.asset(name), media_type=STATIC[name])

    # -- rendering ----------------------------------------------------------------------------------------------------

    def _page(self, name: str, request: Request, status: int = 200, **values: Any) -> HTMLResponse:
        page = render.page(f"web/{name}.html.j2", static="/static", **self._forms(request), **values)
        return HTMLResponse(page, status)

    def _forms(self, request: Request) -> dict[str, Any]:
        """Return the tokens of the forms on a page, None for a reader, and the result of the form that led there."""
        forms = self._access.form_token if self._access.may_write(request) else None
        return {"forms": forms, "result": self._results.pop(request.query_params.get("result", ""), None)}


def _history_address(search: views.Search, before: int | None) -> str:
    given = {"q": search.text, "state": search.state, "tag": search.tag, "before": before}
    n = {"n": search.n} if search.n != views.PAGE else {}
    return f"/history?{urlencode({name: value for name, value in (given | n).items() if value})}"


def _log_query(request: Request) -> tuple[str, str, int]:
    given = request.query_params
    lines = views.whole(given.get("lines") or str(log_page.LINES), "lines")
    return request.path_params["id"], given.get("stream", "output"), min(max(lines, 1), log_page.LINES_MOST)


def _too_many() -> Response:
    sentence = f"{live.MOST} pages already follow this queue: close one of them"
    return PlainTextResponse(sentence, 503, headers={"retry-after": "10"})


class Site(Struct, frozen=True):
    """The application of one queue, and its streams, which must end before the server does."""

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
        "/group/{id}": pages.group,
        "/log/{id}": pages.log,
        "/log/{id}/follow": pages.follow,
        "/static/{name:path}": pages.static,
    }
    routes = [Route(path, page, methods=["GET"]) for path, page in get.items()]
    routes.append(Route("/do/{verb}", pages.do, methods=["POST"]))
    handlers: dict[Any, Any] = {kind: _trouble for kind in (MpsqError, OSError, Exception)} | {HTTPException: _refused}
    return Site(Rest(Guard(Starlette(routes=routes, exception_handlers=handlers), access)), pages.streams)


REST_S = 1.0
"""Time without an answer after which it is at rest: a page asks for its style and script at once."""


class Rest:
    """ASGI middleware around everything: returns the memory that pages needed, a moment after the last answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._due: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            if self._due is not None:
                self._due.cancel()
            self._due = asyncio.get_running_loop().call_later(REST_S, _give_back)


def _give_back() -> None:
    """Free what only cycles hold, and return freed memory to the system, where the C library can be asked to.

    glibc by itself returns only what lies above everything in use: after a page of 5 MB, 70 MB stay. macOS takes
    the pages of freed memory when it needs them.
    """
    import ctypes

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _trouble(request: Request, error: Exception) -> Response:
    """Show an error: 404 if nothing has this name, 503 for a database that cannot be read, 500 for a defect of ours,
    which Starlette raises again, and uvicorn logs."""
    status = 503 if isinstance(error, MpsqError | OSError) else 500
    if isinstance(error, UsageError):
        status = 409 if request.method == "POST" else 404
    explained = live.explained(error)
    return refusal(status, explained.message, explained.hint)


def _refused(_request: Request, error: HTTPException) -> Response:
    known = {404: ("there is no such page", "the queue is at /"), 405: ("that is not served here", "the queue is at /")}
    message, hint = known.get(error.status_code, (error.detail, ""))
    return refusal(error.status_code, message, hint)
