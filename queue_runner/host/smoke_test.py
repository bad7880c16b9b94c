"""The smoke tests of guides to PyTorch on Metal, on one device, in a child process of the interpreter that runs jobs:
two matrices of 3 x 3 are added, and a Linear(3, 1) is applied to one. Results are compared with the CPU's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from queue_runner.host.torch_probe import run_child

TIMEOUT_S = 60.0
"""Timeout of one device: the import of torch and the first kernels."""

STEPS = {"import": "the import of torch", "addition": "a 3 x 3 addition", "linear": "Linear(3, 1)"}

_PROGRAM = """
import json
def say(**what):
    print(json.dumps(what), flush=True)
import torch
say(step="import", right=True, apart=0.0)
torch.manual_seed(0)
a, b = torch.randn(3, 3), torch.randn(3, 3)
model = torch.nn.Linear(3, 1)
expected = {"addition": a + b, "linear": model(a).detach()}
device = torch.device(DEVICE)
a, b = a.to(device), b.to(device)
for step in expected:
    try:
        found = (a + b if step == "addition" else model.to(device)(a)).detach().cpu()
    except Exception as error:
        say(step=step, error=(str(error).strip().splitlines() or [type(error).__name__])[0])
        break
    apart = float((found - expected[step]).abs().max())
    say(step=step, right=bool(torch.allclose(found, expected[step], rtol=1e-4, atol=1e-5)), apart=apart)
"""
"""The tolerance is that of sums of three products in fp32, in another order or with a fused multiply-add, by far."""


@dataclass(frozen=True)
class Smoke:
    """The result on a device. `failed` is the first of STEPS that did not pass, None if all did; `trouble` says why."""

    device: str
    failed: str | None = None
    trouble: str = ""


def smoke(python: str, device: str, timeout_s: float = TIMEOUT_S) -> Smoke:
    """Run both tests on `device` in `python`. A child that dies or hangs fails at the step that it had not finished."""
    output, trouble = run_child(python, f"DEVICE = {device!r}\n{_PROGRAM}", timeout_s)
    passed = set()
    for line in output.decode("utf-8", "replace").splitlines():
        try:
            step = json.loads(line)
        except ValueError:
            continue  # printed by torch
        if not isinstance(step, dict) or step.get("step") not in STEPS:
            continue
        name = step["step"]
        if "error" in step:
            return Smoke(device, name, str(step["error"]))
        if not step.get("right"):
            return Smoke(device, name, f"its result is {step.get('apart')} from the CPU's")
        passed.add(name)
    failed = next((name for name in STEPS if name not in passed), None)
    return Smoke(device, failed, (trouble or "it ended early") if failed else "")
