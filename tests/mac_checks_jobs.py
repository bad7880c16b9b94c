"""What mpsq relies on of torch's MPS backend, and its own workloads, queue and service there."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from queue_runner.host import run_sampler
from tests import mac_check
from tests.mac_check import Check, Unknown

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "jobs"
sys.path.append(str(JOBS))
FALLBACK, PROFILE = "PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_MPS_LOG_PROFILE_INFO"
LIMIT_S = 120.0
"""Longest time of one command."""


def _run(command: Sequence[str], **variables: str) -> tuple[int, str]:
    """Exit code and all output of a command in the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "TORCHINDUCTOR_"))}
    done = subprocess.run(
        command, cwd=ROOT, env={**kept, "PYTHONPATH": str(ROOT), **variables}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=min(LIMIT_S, mac_check.remaining_s()), check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _python(program: str, **variables: str) -> tuple[int, str]:
    return _run([sys.executable, "-c", program], **variables)


def _says(pattern: str, program: str, **variables: str) -> str:
    """Run a program of torch; its output must match. Returns the match and the output."""
    code, text = _python(program, **variables)
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert found, f"exit code {code}, nothing like {pattern}: {text}"
    return f"{found[0][:200]}\n{text}"


# -- torch ----------------------------------------------------------------------------------------------------------

MEMORY = """
import torch
before = torch.mps.current_allocated_memory()
x = torch.zeros(1 << 26, device="mps"); torch.mps.synchronize()
grew, driver, most = (torch.mps.current_allocated_memory() - before, torch.mps.driver_allocated_memory(),
                      torch.mps.recommended_max_memory())
print("bytes", grew, driver, most, "right" if grew == 1 << 28 and grew <= driver <= most else "odd")
"""
TIMED = """
import time, torch
a = torch.rand(4096, 4096, device="mps"); torch.mps.synchronize()
def took():
    begun = time.perf_counter(); a @ a; early = time.perf_counter() - begun
    torch.mps.synchronize(); return early, time.perf_counter() - begun
took(); early, late = min(took() for _ in range(5))
print(f"waited {late * 1e3:.2f} ms, not waited {early * 1e3:.2f} ms", "right" if late > 2 * early else "odd")
"""
STATE = """
import torch
state = torch.mps.get_rng_state(); a = torch.rand(9, device="mps").cpu()
torch.mps.set_rng_state(state); print("state", "right" if torch.equal(a, torch.rand(9, device="mps").cpu()) else "odd")
"""
EIG = 'import torch; torch.linalg.eig(torch.eye(3, device="mps"))'
MANY = """
import torch
torch.set_warn_always(True)
for _ in range(2):
    torch.linalg.eig(torch.eye(3, device="mps"))
"""
RECOMMENDED = """
import torch
most, kept = torch.mps.recommended_max_memory(), []
while torch.mps.driver_allocated_memory() <= most + (1 << 28):
    kept.append(torch.empty(1 << 28, dtype=torch.uint8, device="mps"))
print("went beyond", most)
"""
SCALED = """
import torch
w = torch.nn.Parameter(torch.ones(4, device="mps"))
by, scaler = torch.optim.SGD([w], lr=0.1, fused=True), torch.amp.GradScaler("mps")
scaler.scale((w * w).sum()).backward(); scaler.step(by); scaler.update()
found = float(w[0])
print("stepped to", found, "right" if abs(found - 0.8) < 1e-4 or torch.__version__ < (2, 13) else "odd")
"""
PEAKS = """
import torch
x = torch.zeros(1 << 26, device="mps"); torch.mps.synchronize(); del x
if torch.__version__ >= (2, 13):
    found = torch.accelerator.max_memory_allocated(), torch.accelerator.max_memory_reserved()
    print("peaks", *found, "right" if 1 << 28 <= found[0] <= found[1] else "odd")
else:
    print("peaks are not counted: right")
"""
LITTLE = 'import torch; torch.mps.set_per_process_memory_fraction(0.01); x = torch.zeros(1 << 30, device="mps")'
SHADER = """
import sys, time, torch
x = torch.zeros(64, device="mps"); torch.mps.synchronize()
source = '''#include <metal_stdlib>
kernel void f(device float* x, uint i [[thread_position_in_grid]]) {
    x[i] = metal::exp(x[i] * ''' + sys.argv[1] + '''f);
}'''
begun = time.perf_counter()
torch.mps.compile_shader(source).f(x); torch.mps.synchronize()
print(1e3 * (time.perf_counter() - begun))
"""
GPU_TIME = """
import os, time, torch
from queue_runner.host import apple_gpu
from queue_runner.host.command import ask
def used():
    found = apple_gpu.clients(ask(apple_gpu.CLIENTS)).values()
    return sum(client.gpu_ns for client in found if client.pid == os.getpid())
torch.backends.mps.is_available(); torch.rand(64, 64) @ torch.rand(64, 64)
on_cpu = used()
a = torch.rand(4096, 4096, device="mps"); b = a @ a; torch.mps.synchronize()
before, begun = used(), time.perf_counter()
while time.perf_counter() - begun < 3:
    b = a @ a; torch.mps.synchronize()
took_s = time.perf_counter() - begun
share = (used() - before) / 1e9 / took_s
is_right = 0.5 < share < 1.5 and on_cpu == 0
print(f"share {share:.2f} of {took_s:.1f} s, {on_cpu} ns before", "right" if is_right else "odd")
"""
ONE = 'import torch; torch.ones(1, device="mps") + 1'


def of_torch(device: str) -> Iterator[Check]:
    """The texts and calls of torch.mps; `device` other than mps has none of them."""
    if device != "mps":
        return
    says: list[tuple[str, str, str, Mapping[str, str]]] = [
        ("the names of the GPU", r"^Apple M\d.* \d+$",
         "import torch; m = torch.backends.mps; print(m.get_name(), m.get_core_count())", {}),
        ("memory: bytes in tensors and of the driver", r"^bytes \d+ \d+ \d+ right$", MEMORY, {}),
        ("synchronize waits", r"^waited .* right$", TIMED, {}),
        ("the state of the random numbers", r"^state right$", STATE, {}),
        ("an operator without a kernel", r"The operator 'aten::linalg_eig\S*' is not currently implemented for the MPS",
         EIG, {FALLBACK: "0"}),
        ("a fallback warns", r"The operator 'aten::linalg_eig\S*' is not currently supported on the MPS backend and "
         r"will fall back", EIG, {FALLBACK: "1"}),
        ("each fallback warns, if asked", r"will fall back.*will fall back", MANY, {FALLBACK: "1"}),
        ("the profiler names the fallback", r"^CPU Fallback::aten::linalg_eig", EIG, {FALLBACK: "1", PROFILE: "4"}),
        ("FALLBACK=true ends the import", r"stoi", "import torch", {FALLBACK: "true"}),
        ("a lone watermark is refused", r"invalid low watermark ratio", ONE,
         {"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.8"}),
        ("no float64", r"MPS framework doesn't support float64",
         'import torch; torch.ones(1, dtype=torch.float64).to("mps")', {}),
        ("torch ends where Metal recommends", r"RuntimeError: MPS backend out of memory", RECOMMENDED,
         {"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "1.0", "PYTORCH_MPS_LOW_WATERMARK_RATIO": "1.0"}),
        ("a fused optimizer obeys GradScaler", r"^stepped to .* right$", SCALED, {}),
        ("GPU time of a process, in nanoseconds", r"^share .* right$", GPU_TIME, {}),
        ("torch counts its peaks", r"^peaks .* right$", PEAKS, {}),
        ("no memory", r"RuntimeError: MPS backend out of memory|Invalid buffer size", LITTLE, {}),
    ]  # fmt: skip
    yield Check("torch", "mps multiplies, in a child process", computes)
    yield Check("torch", "Metal keeps shaders from process to process", metal_cache)
    for name, pattern, program, variables in says:
        yield Check("torch", name, partial(_says, pattern, program, **variables))


def metal_cache() -> str:
    """A kernel that no Mac has seen, in one process and in the next."""
    number = f"{1 + secrets.randbelow(10**9) / 1e9:.9f}"
    said = [_run([sys.executable, "-c", SHADER, number])[1] for _ in range(2)]
    found = [re.search(r"^\d+\.\d+$", text, re.MULTILINE) for text in said]
    assert all(found), "\n".join(said)
    first_ms, second_ms = (float(match[0]) for match in found if match)
    assert second_ms < 0.5 * first_ms, f"{first_ms:.1f} ms, then {second_ms:.1f} ms"
    return f"{first_ms:.1f} ms, then {second_ms:.1f} ms in the next process"


def computes() -> str:
    from queue_runner.host import torch_probe

    found = torch_probe.probe(sys.executable)
    if found.version is None:
        raise Unknown(f"no torch: {found.trouble}")
    assert found.devices.get("mps", ("",))[0] == "computes", str(found)
    return str(found)


# -- workloads ------------------------------------------------------------------------------------------------------

TOYS = (
    ("nanogpt", "tiny", "6"), ("resnet50", "toy", "4"), ("vgg16", "toy", "4"),
    ("bert", "toy", "4"), ("glue", "toy", "4"), ("lightning_gpt", "tiny", "6"),
)  # fmt: skip


def of_jobs(device: str) -> Iterator[Check]:
    """Every workload of issue 5 on the device."""
    for name, config, iters in TOYS:
        yield Check("jobs", name, partial(trains, name, device, "--config", config, "--set", f"max_iters={iters}"))
    for mode in ("fp16", "bf16"):
        options = ("--config", "toy", "--dtype", mode, "--set", "max_iters=4")
        yield Check("jobs", f"resnet50 in {mode}", partial(trains, "resnet50", device, *options))
    compiled = ("--config", "toy", "--compile", "on", "--set", "max_iters=4")
    yield Check("jobs", "resnet50 compiled, layout as it is", partial(compiles, device, compiled, ""))
    yield Check("jobs", "resnet50 compiled, layout off", partial(compiles, device, compiled, "0"))
    yield Check("jobs", "opcheck, its three passes", partial(opcheck, device))
    yield Check("jobs", "opcheck names a fallback", partial(opcheck_falls_back, device))
    if device == "mps":
        for dtype in ("fp32", "fp16", "bf16"):
            yield Check("jobs", f"custom_kernel in {dtype}", partial(kernel, dtype))
        yield Check("jobs", "Lightning refuses under Rosetta", under_rosetta)
    yield Check("jobs", "transfer, without pinned memory", partial(transfer, device))
    yield Check("jobs", "two processes are refused", partial(two_processes, device))
    yield Check("jobs", "a stale flag of the Trainer", stale_flag)


def _job(name: str, device: str, *options: str, **variables: str) -> tuple[int, str, list[dict[str, object]]]:
    with tempfile.TemporaryDirectory(prefix="mpsq-mac-job-") as folder:
        events = Path(folder, "events.jsonl")
        command = [sys.executable, str(JOBS / f"{name}_torch.py"), "--device", device, *options]
        code, text = _run(command, **{"MPSQ_EVENTS": str(events), "TORCHINDUCTOR_CACHE_DIR": folder, **variables})
        lines = events.read_text("utf-8").splitlines() if events.exists() else []
    if code and (missing := re.search(r"^error: .* is not installed for .*$", text, re.MULTILINE)):
        raise Unknown(missing[0])
    return code, f"$ {' '.join(command)}\n{text}", [json.loads(one) for one in lines]


def trains(name: str, device: str, *options: str, **variables: str) -> str:
    """It ends well, on that device, with the CPU's first loss, and tells both kinds of memory."""
    code, text, events = _job(name, device, *options, **variables)
    usual = ("compile_cache", "sync_proof")
    notes = [event for event in events if event.get("type") == "note" and event.get("kind") not in usual]
    iterations = [event for event in events if event.get("type") == "iter"]
    devices = {event["device"] for event in events if event.get("type") == "hello" and "device" in event}
    assert code == 0 and iterations and devices == {device}, f"exit code {code}, devices {devices}: {text}"
    assert not notes, f"{notes}: {text}"
    assert "command buffer exited with error" not in text, text
    memory = [(event.get("allocated_bytes"), event.get("reserved_bytes")) for event in iterations]
    if device == "mps":
        assert all(isinstance(a, int) and isinstance(b, int) and 0 < a <= b for a, b in memory), f"{memory}: {text}"
        recommended = [event["recommended_memory_bytes"] for event in events if "recommended_memory_bytes" in event]
        assert recommended and recommended[-1] > 0, f"recommended {recommended}: {text}"
    durations = [f"{1e3 * float(str(event['dur_s'])):.1f}" for event in iterations]
    return f"ms {' '.join(durations)}; bytes (tensors, driver) {memory[-1]}\n{text}"


def compiles(device: str, options: Sequence[str], layout: str) -> str:
    """It trains compiled, and speaks of the switch only where that is not set."""
    variables = {"TORCHINDUCTOR_LAYOUT_OPTIMIZATION": layout} if layout else {}
    said = trains("resnet50", device, *options, **variables)
    assert ("issue 192551" in said) == (device == "mps" and not layout), said
    return said


def opcheck(device: str) -> str:
    code, text, events = _job("opcheck", device, "--config", "toy", "--set", "fallbacks=on")
    found = [str(event["name"]) for event in events if str(event.get("name")).startswith("op/")]
    words = {
        word: sum(name.endswith(f"/{word}") for name in found) for word in ("native", "fallback", "missing", "wrong")
    }
    assert code == 0 and words["native"] > 60 and not words["wrong"], f"exit code {code}, {words}: {text}"
    return f"{words}\n{text}"


def opcheck_falls_back(device: str) -> str:
    options = ("--set", "ops=linalg_eig", "--set", "types=fp32", "--set", "samples=2", "--set", "fallbacks=on")
    code, text, _ = _job("opcheck", device, *options)
    wanted = "linalg_eig fp32 forward fallback" if device == "mps" else "native"
    assert code == 0 and wanted in text, text
    assert device != "mps" or re.search(r"fallback.*: .*aten::linalg_eig", text), f"no kernel is named: {text}"
    return text


def kernel(dtype: str) -> str:
    code, text, events = _job("custom_kernel", "mps", "--config", "tiny", "--dtype", dtype)
    notes = [event for event in events if event.get("type") == "note"]
    assert code == 0 and "bias_gelu.metal" in text and not notes, f"exit code {code}, {notes}: {text}"
    return f"{text.strip().splitlines()[-1]}\n{text}"


def transfer(device: str) -> str:
    """Memory that mps shares with the host needs no pinning: a row of it would repeat the other."""
    code, text, _ = _job("transfer", device, "--config", "tiny", "--set", "max_iters=8")
    assert code == 0 and "to_device pageable" in text and (device == "cuda") == ("pinned" in text), text
    return text


def two_processes(device: str) -> str:
    """By the workload itself, and by submit for a launcher."""
    code, text, _ = _job("resnet50", device, "--config", "toy", WORLD_SIZE="2")
    assert code == 2 and "WORLD_SIZE=2" in text, text
    return f"refused\n{text}{launcher_is_refused()}"


def launcher_is_refused() -> str:
    launch = ["--", sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "train.py"]
    code, output = _mpsq("submit", "--device", "mps", "--dry-run", *launch)
    assert code == 2 and "several processes cannot train together on mps" in output, output
    return output


def stale_flag() -> str:
    code, text, _ = _job("glue", "cpu", "--config", "toy", "--set", "use_mps_device=true")
    assert code == 2 and "the Trainer uses mps automatically" in text, text
    return f"refused\n{text}"


def under_rosetta() -> str:
    """With platform.processor() as it is in an Intel Python."""
    program = (
        f"import sys, platform; sys.path.insert(0, {str(JOBS)!r}); platform.processor = lambda: 'i386'; "
        "import lightning_gpt_torch as job; sys.exit(job.main(['--device', 'mps', '--config', 'tiny']))"
    )
    code, text = _python(program)
    assert code == 69 and "i386" in text, f"exit code {code}: {text}"
    return f"refused\n{text}"


# -- the queue and the service --------------------------------------------------------------------------------------


def _mpsq(*words: str) -> tuple[int, str]:
    return _run([sys.executable, "-m", "queue_runner.cli.main", *words])


def _checked(*words: str) -> str:
    code, text = _mpsq(*words)
    assert code == 0, f"mpsq {' '.join(words)}: exit code {code}: {text}"
    return text


def of_queue(device: str) -> Iterator[Check]:
    """One job through the whole of mpsq, in a home of its own."""
    runs: list[tuple[str, Callable[[], object]]] = [
        ("doctor", lambda: _mpsq("doctor")[1]),
        ("a job through the queue", partial(through_the_queue, device)),
        ("its report of memory", lambda: _checked("report", "memory")),
        ("a job ends with its descendants", leaves_nothing),
    ]
    for name, check in runs:
        yield Check("queue", name, check)


def through_the_queue(device: str) -> str:
    text = _checked("run", "--no-gate", "nanogpt", "--device", device, "--config", "tiny", "--set", "max_iters=60")
    shown = _checked("show", "1.1", "--json")
    row = json.loads(shown)
    found = row[0] if isinstance(row, list) else row
    assert '"SUCCEEDED"' in shown, shown
    for taint in ("throttled_service", "wrong_loss", "wrong_result", "log_rewritten", "slept"):
        assert f'"{taint}"' not in shown, f"{taint}: {shown}"
    return f"run {found.get('run', '1.1')} succeeded\n{text}\n{shown}"


def leaves_nothing() -> str:
    mark = f"mpsq-mac-check-{os.getpid()}"
    program = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', "
        f"'import time; time.sleep(300) # {mark}'], start_new_session=True); import time; time.sleep(2)"
    )
    text = _checked("run", "--no-gate", "--", sys.executable, "-c", program)
    left = subprocess.run(["ps", "-A", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
    found = [line for line in left.splitlines() if f"# {mark}" in line and "subprocess.Popen" not in line]
    assert not found, f"{found}: {text}"
    return f"nothing is left\n{text}"


def of_service() -> Iterator[Check]:
    """A service of a name of its own, from its installation to its end."""
    yield Check("service", "install, look, uninstall", service)


def service() -> str:
    label, said = "dev.mpsq.check", []
    _checked("config", "set", "service_label", label)
    try:
        said.append(_checked("service", "install"))
        assert "running" in said[0], said[0]
        domain = f"gui/{os.getuid()}" if f"gui/{os.getuid()}" in said[0] else f"user/{os.getuid()}"
        told = _run(["/bin/launchctl", "print", f"{domain}/{label}"])[1]
        assert re.search(r"^\s*spawn type = interactive", told, re.MULTILINE), told
        pid = re.search(r"process (\d+)", said[0])
        priority = _run(["/bin/ps", "-o", "pri=", "-p", pid[1] if pid else "0"])[1]
        assert 31 <= (run_sampler.parse_priority(priority) or 0) <= 37, f"priority {priority}; {told}"
        said += [told, priority, _checked("service", "restart"), _checked("service", "install")]
        assert "nothing was changed" in said[-1], said[-1]
    finally:
        said.append(_mpsq("service", "uninstall")[1])
    code, gone = _run(["/bin/launchctl", "print", f"{domain}/{label}"])
    assert code == 113, f"{code}: {gone}"
    return "\n".join(said)
