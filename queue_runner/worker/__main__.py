"""The worker as a program: `python -m queue_runner.worker`, which `mpsq worker` becomes."""

import inspect
import sys
from contextlib import suppress
from types import ModuleType


def import_scheduler() -> None:
    """Import what APScheduler takes one function of asyncio for, without the rest of asyncio, which would keep 3 of
    the worker's 40 MB."""
    if "asyncio" in sys.modules:
        return
    function_alone = ModuleType("asyncio")
    function_alone.iscoroutinefunction = inspect.iscoroutinefunction  # type: ignore[attr-defined]
    sys.modules["asyncio"] = function_alone
    with suppress(ImportError, AttributeError):  # a version that needs more gets asyncio itself, below
        import apscheduler.util  # noqa: F401
    del sys.modules["asyncio"]


if __name__ == "__main__":
    import_scheduler()
    from queue_runner.worker.main_loop import main

    sys.exit(main())
