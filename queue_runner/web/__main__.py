"""The server as a program: `python -m queue_runner.web`, which `mpsq web` becomes.

Its libraries import TLS, a command line and files of log settings. The server uses none of them, and starts without:
they would take 8 of its 40 MB. If a version of a library cannot do without, it starts anew with all of them.
"""

import os
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

UNUSED = ("ssl", "uvicorn.main", "logging.config")


class Unused(ModuleType):
    """A module of which only names are used, in annotations and defaults: constants are 0, all others are classes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0 if name.isupper() else type(name, (Exception,), {})


WHOLE = "MPSQ_WEB_WHOLE"
"""Variable of a server that has started anew."""

if __name__ == "__main__":
    if WHOLE not in os.environ:
        sys.modules |= {name: Unused(name) for name in UNUSED}
        if find_spec("_sha1"):  # without OpenSSL hashlib has its own functions, unless the distribution leaves them out
            sys.modules["_hashlib"] = None  # type: ignore[assignment]
    try:
        from queue_runner.web.serve import main
    except Exception:
        if WHOLE in os.environ:
            raise
        os.execve(sys.executable, sys.orig_argv, {**os.environ, WHOLE: "1"})

    sys.exit(main())
