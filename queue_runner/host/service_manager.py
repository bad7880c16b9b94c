"""The worker's messages to systemd, by sd_notify(3): that it has the queue, and that it still works."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


class ServiceManager:
    """The service manager that started this process; without one, nothing is sent.

    Its variables are removed from the environment: jobs and hooks must not inherit them.
    """

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        self._watchdog_us = os.environ.pop("WATCHDOG_USEC", "")
        os.environ.pop("WATCHDOG_PID", None)

    def started(self) -> None:
        """Tell that the start is over. An upgrade may follow, which can take long, so the watchdog sleeps."""
        self._tell("READY=1", f"WATCHDOG_USEC={2**64 - 1}")

    def works(self) -> None:
        """Wake the watchdog, which from now on expects `alive`."""
        if self._watchdog_us:
            self._tell(f"WATCHDOG_USEC={self._watchdog_us}")

    def alive(self) -> None:
        """Tell that this process still works."""
        if self._watchdog_us:
            self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(lines).encode(), address)
