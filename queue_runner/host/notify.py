"""Desktop notifications: the program that shows one, and its arguments. Names from users stay text.

macOS: osascript(1) passes the arguments after the script as `argv` of `on run`: they are never parsed as AppleScript.
Linux: notify-send(1) of libnotify; a notification's body is markup (Desktop Notifications Specification): escaped.
"""

from __future__ import annotations

import sys
from html import escape

from queue_runner.host.find_tool import install_hint
from queue_runner.text import plain

_SCRIPT = ("on run argv", "display notification (item 2 of argv) with title (item 1 of argv)", "end run")
_BODY_CHARACTERS = 240


def program(platform: str = sys.platform) -> str:
    """Return the name of the program that shows notifications."""
    return "osascript" if platform == "darwin" else "notify-send"


def remedy(platform: str = sys.platform) -> str:
    """Return the remedy for a missing program."""
    if platform == "darwin":
        return "/usr/bin must be in the worker's PATH: mpsq service install"
    install = install_hint(apt="libnotify-bin", dnf="libnotify", apk="libnotify")
    return f"{install or 'install notify-send'}, or: mpsq config set notify off"


def argv(title: str, body: str, platform: str = sys.platform) -> list[str]:
    """Return the command line of a notification. `title` is ours and begins with a letter; `body` is any text."""
    body = " ".join(plain(body).split())
    if len(body) > _BODY_CHARACTERS:
        body = body[: _BODY_CHARACTERS - 1] + "…"
    if platform == "darwin":
        script = [word for line in _SCRIPT for word in ("-e", line)]
        return ["osascript", *script, title, body]
    return ["notify-send", "--app-name=mpsq", "--", title, escape(body, quote=False)]
