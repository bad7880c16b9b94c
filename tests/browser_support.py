"""Debian's Chromium, driven by Playwright: what a page says on the console, what it requests, how it looks.

The pictures lie in TMPDIR/mpsq-pictures, to be looked at; a test never compares them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

PHONE, DESK = 390, 1280
"""Widths in pixels."""
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Seen:
    """What a browser saw of a page: its errors and warnings, and the addresses that it asked for."""

    page: Page
    troubles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def foreign(self, *own: str) -> list[str]:
        """Return the requests to other places than those that begin with `own`."""
        return [address for address in self.requests if not address.startswith((*own, "data:", "blob:"))]

    def scrolls_sideways(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))

    def picture(self, name: str) -> Path:
        """Save a picture of the whole page; returns its path."""
        folder = Path(tempfile.gettempdir()) / "mpsq-pictures"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.png"
        self.page.screenshot(path=path, full_page=True)
        return path


@contextmanager
def browser(width: int, scheme: str, *, script: bool = True) -> Iterator[Seen]:
    """Start Chromium with an empty profile and yield a page of that width; `scheme` is light or dark."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=program,
            headless=True,
            args=list(_FLAGS),
            viewport={"width": width, "height": 844 if width == PHONE else 900},
            color_scheme="dark" if scheme == "dark" else "light",
            java_script_enabled=script,
        )
        page_log = Seen(context.new_page())
        page_log.page.on(
            "console",
            lambda message: (
                page_log.troubles.append(f"{message.type}: {message.text}")
                if message.type in ("error", "warning")
                else None
            ),
        )
        page_log.page.on("pageerror", lambda error: page_log.troubles.append(str(error)))
        page_log.page.on("request", lambda request: page_log.requests.append(request.url))
        try:
            yield page_log
        finally:
            context.close()
