"""Named points at which a test can stop this process and kill it there (docs/supervision.md).

With MPSQ_STOP_AT unset, as always outside tests, reaching a point costs one environment lookup. The warden has its own
copy, because it must run standalone.
"""

from __future__ import annotations

import os
import signal


def reach(name: str) -> None:
    """Stop here if the test requests it: create the file `name.pid` in $MPSQ_STOP_DIR, then SIGSTOP this process.

    Raises: KeyError when MPSQ_STOP_AT is set without MPSQ_STOP_DIR; OSError when the file cannot be created.
    """
    if os.environ.get("MPSQ_STOP_AT") != name:
        return
    marker = os.path.join(os.environ["MPSQ_STOP_DIR"], f"{name}.{os.getpid()}")  # noqa: PTH118 - avoids importing pathlib
    os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    from threading import get_ident

    signal.pthread_kill(get_ident(), signal.SIGSTOP)  # a signal to the process may stop this thread slightly later
