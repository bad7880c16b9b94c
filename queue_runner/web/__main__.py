"""The server as a program: `python -m queue_runner.web`, which `mpsq web` becomes.

Its libraries import TLS, a command line and files of log settings. The server uses none of them, and starts without:
they would take 8 of its 40 MB.
"""

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


if __name__ == "__main__":
    sys.modules |= {name: Unused(name) for name in UNUSED}
    if find_spec("_sha1"):  # without OpenSSL hashlib has its own functions, unless the distribution leaves them out
        sys.modules["_hashlib"] = None  # type: ignore[assignment]
    from queue_runner.web.serve import main

    sys.exit(main())
