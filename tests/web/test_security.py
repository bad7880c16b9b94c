"""Who may ask mpsq web, and what: names of the host, other users, tokens, forms, headers."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.web import security
from tests import named_rows
from tests.cli_support import full_queue
from tests.patience import patience
from tests.process_support import needs_linux
from tests.web.server_support import Server, served
from tests.web.site_support import ORIGIN, Browser, unknown

pytestmark = pytest.mark.process

PAGES = ("/", "/history", "/compare", "/job/1", "/log/1.1", "/static/web.js", "/live", "/log/4.1/follow")


@pytest.fixture
def queue(home: Path) -> Layout:
    return full_queue(home)


def states(layout: Layout) -> list[str]:
    with read.reading(layout.db) as connection:
        return [row["state"] for row in named_rows.runs(connection)]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "evil.example:8642", "10.0.0.1:8642", "localhost:x", "localhost@e", ""],
)
def test_a_name_that_was_made_to_point_here_gets_nothing(queue: Layout, host: str) -> None:
    client = Browser(queue).client
    for page in PAGES:
        answer = client.get(page, headers={"host": host})
        assert answer.status_code == 400, page
        assert "toy" not in answer.text and "running" not in answer.text, page


@pytest.mark.parametrize("host", ["localhost", "localhost:8642", "127.0.0.1:9000", "[::1]:8642", "LOCALHOST:1"])
def test_this_machine_may_be_called_by_each_of_its_names_and_through_a_tunnel(queue: Layout, host: str) -> None:
    assert Browser(queue).client.get("/history", headers={"host": host}).status_code == 200


def test_two_hosts_are_none(queue: Layout) -> None:
    client = Browser(queue).client
    request = client.build_request("GET", "/", headers=[("host", "127.0.0.1"), ("host", "evil.example")])
    assert client.send(request).status_code == 400


def test_another_user_of_the_machine_gets_nothing_even_with_the_token(queue: Layout) -> None:
    browser = Browser(queue, write=True, owner=lambda *_: os.geteuid() + 1)
    assert browser.client.get(f"/?token={browser.access.token}").status_code == 403
    cookie = {"cookie": f"mpsq_web_8642={browser.access.session}"}
    for page in PAGES:
        assert browser.client.get(page).status_code == 403, page
        assert browser.client.get(page, headers=cookie).status_code == 403, page


def test_where_the_kernel_does_not_tell_who_asks_the_token_does(queue: Layout) -> None:
    browser = Browser(queue, owner=unknown)
    pages = [page for page in PAGES if not page.startswith("/static/")]
    for page in pages:
        assert "mpsq web" in browser.get(page, 401), page
    browser.enter()
    for page in pages:
        if not page.endswith(("/live", "/follow")):
            browser.get(page)


@pytest.mark.parametrize("token", ["", "x", "\u00e9", "x" * 5000])
def test_a_wrong_token_opens_nothing(queue: Layout, token: str) -> None:
    answer = Browser(queue, write=True).client.get("/", params={"token": token})
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_the_cookie_is_not_the_token_and_no_script_and_no_other_site_gets_it(queue: Layout) -> None:
    browser = Browser(queue)
    cookie = browser.client.get(f"/?token={browser.access.token}").headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert browser.access.token not in cookie


def test_every_answer_has_the_headers(queue: Layout) -> None:
    browser = Browser(queue)
    client = browser.client
    pages = [page for page in PAGES if not page.endswith(("/live", "/follow"))]
    answers = [client.get(path) for path in (*pages, "/nowhere", "/job/99", "/job/../../x")]
    answers.append(client.get("/", headers={"host": "evil.example"}))
    for answer in answers:
        headers = answer.headers
        policy = dict(one.strip().split(" ", 1) for one in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in headers["content-security-policy"] and policy["script-src"] == "'self'"
        assert headers["x-frame-options"] == "DENY" and headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store" and headers["referrer-policy"] == "same-origin"
        assert "server" not in headers


def test_a_defect_of_ours_is_a_page_with_the_headers_and_without_a_traceback(
    queue: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_runner.web.views.history", lambda *_: 1 / 0)
    browser = Browser(queue)
    with pytest.raises(ZeroDivisionError):  # uvicorn logs it
        browser.client.get("/history")
    browser.client = type(browser.client)(browser.site.app, base_url=ORIGIN, raise_server_exceptions=False)
    answer = browser.client.get("/history")
    assert answer.status_code == 500 and "Traceback" not in answer.text and "ZeroDivisionError" in answer.text
    assert "content-security-policy" in answer.headers


# -- changes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def browser(queue: Layout) -> Browser:
    browser = Browser(queue, write=True)
    browser.enter()
    return browser


def refused(queue: Layout, answer: object, status: int) -> None:
    assert answer.status_code == status  # type: ignore[attr-defined]
    assert states(queue) == ["DONE"] * 4 + ["RUNNING", "QUEUED", "QUEUED"]


def test_without_write_there_is_no_form_and_nothing_can_be_changed(queue: Layout) -> None:
    browser = Browser(queue)
    browser.enter()
    assert not any(browser.forms(page) for page in ("/", "/job/5", "/history", "/log/4.1"))
    fields = {"id": "5.1", "csrf": browser.access.form_token("hold", "5.1")}
    refused(queue, browser.post("hold", fields), 403)


def test_without_the_cookie_there_is_no_form_and_nothing_can_be_changed(queue: Layout) -> None:
    browser = Browser(queue, write=True)
    assert not browser.forms("/")
    fields = {"id": "5.1", "csrf": browser.access.form_token("hold", "5.1")}
    refused(queue, browser.post("hold", fields), 401)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8642", "http://localhost:8642", ""],
)
def test_a_form_of_another_page_is_refused(queue: Layout, browser: Browser, origin: str) -> None:
    refused(queue, browser.post("hold", browser.form("/", "hold", "5.1"), origin=origin), 403)


def test_a_form_without_an_origin_or_from_another_site_is_refused(queue: Layout, browser: Browser) -> None:
    fields = browser.form("/", "hold", "5.1")
    refused(queue, browser.client.post("/do/hold", data=fields), 403)
    for site in ("cross-site", "same-site", "none"):
        refused(queue, browser.post("hold", fields, **{"sec-fetch-site": site}), 403)
    assert browser.post("hold", fields, **{"sec-fetch-site": "same-origin"}).status_code == 303


@pytest.mark.parametrize("token", ["", "x", "\u00e9"])
def test_a_form_needs_its_token(queue: Layout, browser: Browser, token: str) -> None:
    refused(queue, browser.post("hold", {"id": "5.1", "csrf": token}), 403)
    refused(queue, browser.post("hold", {"id": "5.1"}), 403)


def test_the_token_of_one_form_is_not_that_of_another(queue: Layout, browser: Browser) -> None:
    fields = browser.form("/", "hold", "5.1")
    refused(queue, browser.post("cancel", fields), 403)
    refused(queue, browser.post("hold", {**fields, "id": "6.1"}), 403)


def test_the_token_of_a_form_is_not_that_of_another_server(queue: Layout, browser: Browser) -> None:
    other = Browser(queue, write=True)
    other.enter()
    refused(queue, browser.post("hold", other.form("/", "hold", "5.1")), 403)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_changes_need_a_post(queue: Layout, browser: Browser, method: str) -> None:
    fields = browser.form("/", "hold", "5.1")
    refused(queue, browser.client.request(method, "/do/hold", params=fields, headers={"origin": ORIGIN}), 405)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x" * 5000, 413),
        (b"id=5.1&id=6.1", 409),
        (b"\xff\xfe", 409),
        (b"&".join(b"f%d=1" % n for n in range(20)), 409),
        (b'{"id": "5.1"}', 403),
    ],
)
def test_a_body_that_no_form_of_ours_has_is_refused(queue: Layout, browser: Browser, body: bytes, status: int) -> None:
    refused(queue, browser.client.post("/do/hold", content=body, headers={"origin": ORIGIN}), status)


@pytest.mark.parametrize("verb", ["delete", "../hold", "__class__", "submit"])
def test_there_are_no_other_verbs(queue: Layout, browser: Browser, verb: str) -> None:
    fields = {"id": "5.1", "csrf": browser.access.form_token(verb, "5.1")}
    assert browser.post(verb, fields).status_code in (404, 409)
    assert states(queue)[5] == "QUEUED"


@pytest.mark.parametrize(
    "back",
    [
        "//evil.example",
        "https://evil.example",
        "/job/1/../../x",
        "/job/1\r\nx: y",
        "javascript:1",
        "/#a\r\nx: y",
        "/#//x",
    ],
)
def test_a_form_leads_back_to_this_queue_alone(browser: Browser, back: str) -> None:
    answer = browser.post("hold", {**browser.form("/", "hold", "5.1"), "back": back})
    assert answer.headers["location"].startswith("/?result=")


# -- whose connection it is --------------------------------------------------------------------------------------------


@needs_linux
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_kernel_tells_whose_connection_it_is(family: socket.AddressFamily) -> None:
    with socket.socket(socket.AF_INET) as server, socket.socket(family) as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        client.connect(("::ffff:127.0.0.1" if family == socket.AF_INET6 else "127.0.0.1", port))
        accepted, address = server.accept()
        with accepted:
            assert security.user_of(address, accepted.getsockname()) == os.geteuid()
            assert security.user_of((address[0], 1), accepted.getsockname()) is None


def test_where_there_are_no_tables_nobody_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(security, "_TABLES", (tmp_path / "tcp",))
    assert security.user_of(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
    (tmp_path / "tcp").write_text("  sl  local_address rem_address   st\n   0: 0100007F:0001 0100007F:0002 01\n")
    assert security.user_of(("127.0.0.1", 1), ("127.0.0.1", 2)) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("page", PAGES)
def test_another_site_gets_nothing_computed(queue: Layout, page: str, site: str) -> None:
    browser = Browser(queue)
    for mode, dest in (("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe")):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
        assert browser.client.get(page, headers=headers).status_code == 403


def test_a_link_of_another_site_is_followed(queue: Layout) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert Browser(queue).client.get("/history", headers=headers).status_code == 200


# -- connections -------------------------------------------------------------------------------------------------------


def _connect(server: Server, data: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", int(server.base.rpartition(":")[2])), timeout=patience(20))
    made.sendall(data)
    return made


def _is_closed(connection: socket.socket) -> bool:
    """Wait until the server has closed the connection."""
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: local"], ids=["idle", "half-sent"])
def test_many_connections_take_no_place_of_the_owner(queue: Layout, data: bytes) -> None:
    """100 of them: before, the owner got 503 for as long as they stayed open."""
    with served(queue.home) as server, contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(_connect(server, data))
        with urllib.request.urlopen(f"{server.base}/history", timeout=patience(20)) as answer:
            assert answer.status == 200


def test_another_site_gets_nothing_through_a_socket(queue: Layout) -> None:
    """An image of another site made the server compute the history."""
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    with served(queue.home) as server:
        for page in ("/", "/history", "/compare", "/group/1"):
            request = urllib.request.Request(f"{server.base}{page}", headers=image)
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(request, timeout=patience(20))


def test_a_request_must_be_whole_in_time(queue: Layout) -> None:
    with served(queue.home) as server, _connect(server, b"GET / HTTP/1.1\r\n") as half, _connect(server) as idle:
        assert _is_closed(half) and _is_closed(idle)


@needs_linux
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_a_refusal_and_few_connections(queue: Layout) -> None:
    program = """
import encodings.idna, os, socket, sys
os.setuid(12345)
port = int(sys.argv[1])
held = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
held[0].sendall(b"GET / HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
print(held[0].recv(100).split()[1].decode(), flush=True)
sys.stdin.read()
"""
    with served(queue.home) as server:
        port = server.base.rpartition(":")[2]
        command = [sys.executable, "-c", program, port]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout and other.stdout.readline() == "403\n"
            with urllib.request.urlopen(f"{server.base}/history", timeout=patience(20)) as answer:
                assert answer.status == 200
            other.communicate()
