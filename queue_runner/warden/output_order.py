"""The order in which stdout and stderr grew, so that both can be shown as one log."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LINES_MAX = 1 << 16  # some 2 MB


class OutputOrder:
    """A file with lines `STDOUT STDERR`: their sizes in bytes whenever another of the two began to grow. Between two
    looks stdout counts as written first. A file that only one of them needs is never made."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.sizes = (0, 0)
        self.growing = (False, False)
        self.lines = 0

    def note(self, outputs: Sequence[int]) -> None:
        """Look at the sizes of the open stdout and stderr."""
        stdout, stderr = (os.fstat(fd).st_size for fd in outputs)
        growing = (stdout != self.sizes[0], stderr != self.sizes[1])
        if not any(growing):
            return
        if (growing != self.growing or all(growing)) and any(self.sizes) and self.lines < LINES_MAX:
            self.lines += 1
            try:
                with open(self.path, "a") as file:
                    file.write(f"{self.sizes[0]} {self.sizes[1]}\n")
            except OSError:
                pass  # the disk was full: the order is not known then
        self.sizes, self.growing = (stdout, stderr), growing
