"""Operators that MPS leaves to the CPU, by torch's warnings."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from harness.explain import FALLBACK
from mpsq_report import Reporter


def watch(report: Reporter) -> None:
    """Report each operator that MPS falls back to the CPU for, once.

    torch warns of the first one only, unless set_warn_always is on. The first iteration runs them all.
    """
    show, reported = warnings.showwarning, set[str]()

    def show_and_report(message: Warning | str, *args: Any, **more: Any) -> None:
        if match := FALLBACK.search(str(message)):
            op = match[1]
            if op in reported:
                return
            reported.add(op)
            report.note("op_fallback", f"{op} has no MPS kernel: the CPU computed it", op=op)
        show(message, *args, **more)

    warnings.showwarning = show_and_report
    warnings.filterwarnings("always", message="The operator '")
    torch.set_warn_always(True)
