"""Named points at which a test can stop this process and kill it there (docs/supervision.md).

With MPSQ_STOP_AT unset, which is always so outside tests, reaching a point costs one look into the environment. The
warden has a copy of this, because its file must run alone.
"""

from __future__ import annotations

import os
import signal


def reach(name: str) -> None:
    """Stop here if the test asked for it: leave the file `name.pid` in $MPSQ_STOP_DIR, then SIGSTOP this process.

    Raises: KeyError when MPSQ_STOP_AT is set without MPSQ_STOP_DIR; OSError when that folder refuses the file.
    """
    if os.environ.get("MPSQ_STOP_AT") != name:
        return
    marker = os.path.join(os.environ["MPSQ_STOP_DIR"], f"{name}.{os.getpid()}")  # noqa: PTH118 - keeps pathlib out
    os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    from threading import get_ident

    signal.pthread_kill(get_ident(), signal.SIGSTOP)  # sent to the process, it may stop this thread a little later
