"""The application of `mpsq web` without a server, asked as a browser of this user asks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from starlette.testclient import TestClient

from queue_runner.paths import Layout
from queue_runner.web.app import make_site
from queue_runner.web.security import Access

ORIGIN = "http://127.0.0.1:8642"
FORM = re.compile(r'<form method="post" action="/do/(\w+)">(.*?)</form>', re.DOTALL)
FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')


def mine(*_: object) -> int:
    """The owner of a connection of this user."""
    return os.geteuid()


def unknown(*_: object) -> None:
    """The owner of a connection where the kernel does not tell."""


class Browser:
    """A client with its cookies."""

    def __init__(self, layout: Layout, *, write: bool = False, owner: Callable[..., int | None] = mine) -> None:
        self.access = Access(write=write, owner=owner)
        self.site = make_site(layout, self.access)
        self.client = TestClient(self.site.app, base_url=ORIGIN, follow_redirects=False)

    def enter(self) -> None:
        """Open the printed address."""
        assert self.client.get(f"/?token={self.access.token}").status_code == 200

    def get(self, path: str, status: int = 200) -> str:
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    def forms(self, path: str) -> list[tuple[str, dict[str, str]]]:
        """The forms of a page that change something: verb and fields."""
        return [(verb, dict(FIELD.findall(inner))) for verb, inner in FORM.findall(self.get(path))]

    def form(self, path: str, verb: str, id: str) -> dict[str, str]:
        return next(fields for name, fields in self.forms(path) if name == verb and fields["id"] == id)

    def post(self, verb: str, fields: dict[str, str], **headers: str) -> Any:
        return self.client.post(f"/do/{verb}", data=fields, headers={"origin": ORIGIN, **headers})
