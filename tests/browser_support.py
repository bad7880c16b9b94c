"""Debian's Chromium, driven by Playwright: what a page says on the console, what it requests, how it looks.

With MPSQ_SCREENSHOTS set to a folder, pictures of pages are saved there, to be looked at: no test compares them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

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
    """What a browser saw of a page: its errors, warnings and dialogs, and the addresses that it requested."""

    page: Page
    troubles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def foreign(self, *own: str) -> list[str]:
        """Return the requests to other places than those that begin with `own`."""
        return [address for address in self.requests if not address.startswith((*own, "data:", "blob:"))]

    def scrolls_sideways(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))

    def barriers(self) -> list[str]:
        """Return what axe-core finds that keeps people from using the page, each with the first element."""
        from axe_playwright_python.sync_playwright import Axe

        violations = Axe().run(self.page).response["violations"]
        return [f"{violation['id']}: {violation['nodes'][0]['html']}" for violation in violations]

    def picture(self, name: str) -> None:
        """Save a picture of the whole page, where pictures are wanted."""
        if folder := os.environ.get("MPSQ_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder) / f"{name.replace('/', '-')}.png", full_page=True)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=list(_FLAGS))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, width: int = DESK, scheme: str = "light", **profile: Any) -> Iterator[Seen]:
    """Yield a page of a new profile; `scheme` is light or dark, `profile` further options of Playwright."""
    size = {"width": width, "height": 844}
    with browser.new_context(viewport=size, color_scheme=scheme, **profile) as context:
        page = context.new_page()
        watched = Seen(page)

        def dismiss(dialog: Dialog) -> None:
            watched.troubles.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on(
            "console",
            lambda line: watched.troubles.append(line.text) if line.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: watched.troubles.append(str(error)))
        page.on("dialog", dismiss)
        page.on("request", lambda request: watched.requests.append(request.url))
        yield watched
