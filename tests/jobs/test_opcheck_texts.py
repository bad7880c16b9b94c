"""opcheck without torch: what MPS says in its own words, and a sweep whose children crash, hang and lose the device."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import mps_texts

JOBS = Path(__file__).resolve().parents[2] / "jobs"
sys.path.insert(0, str(JOBS))

from harness.errors import JobError  # noqa: E402
from harness.opcheck import messages  # noqa: E402 - the path comes first
from harness.opcheck.sweep import Finding, Sweep, Unit  # noqa: E402

pytestmark = pytest.mark.process


def test_both_wordings_of_a_fallback() -> None:
    assert messages.fallen_back(mps_texts.FALLS_BACK.format("aten::linalg_svd")) == "aten::linalg_svd"
    assert messages.fallen_back(f"UserWarning: {mps_texts.OTHER_FALLBACK}") == "UserWarning: avg_pool2d: int64"
    assert messages.fallen_back("MPS: nonzero op is supported natively starting from macOS 14.0") is None
    assert messages.fallen_back(mps_texts.NO_KERNEL.format("aten::poisson")) is None


def test_the_profilers_lines_name_each_kernel_once() -> None:
    lines = [mps_texts.PROFILED.format(name) for name in ("aten::poisson", "aten::geqrf.a", "aten::poisson")]
    log = "\n".join(["aten::add (id=G1, run=2)", *lines, "aten::mul:MPS:Float[2]"])
    assert messages.profiled(log) == ["aten::poisson", "aten::geqrf.a"]
    assert messages.profiled("") == []


NOT_IMPLEMENTED = "NotImplementedError RuntimeError Exception"


@pytest.mark.parametrize(
    ("kinds", "text", "verdict", "detail"),
    [
        (NOT_IMPLEMENTED, mps_texts.NO_KERNEL.format("aten::poisson"), "missing", "no kernel for aten::poisson"),
        (NOT_IMPLEMENTED, mps_texts.DISTRIBUTED.format("c10d::allreduce_"), "missing",
         "no kernel for c10d::allreduce_, which is distributed and cannot fall back"),
        ("TypeError Exception", mps_texts.NO_FLOAT64, "missing", "MPS has no float64"),
        ("RuntimeError Exception", mps_texts.NO_MEMORY, "error", "out of memory: MPS backend out of memory (MPS"),
        ("OutOfMemoryError RuntimeError", "CUDA out of memory. Tried to allocate 2 GiB.", "error", "out of memory: "),
        (NOT_IMPLEMENTED, "Could not run 'aten::geqrf' with arguments from the 'MPS' backend. This could be", "missing",
         "no kernel for aten::geqrf on MPS"),
        (NOT_IMPLEMENTED, '"addmm_cuda" not implemented for \'Half\'', "missing", "addmm_cuda has no Half"),
        ("RuntimeError Exception", "linalg.eig: Low precision dtypes not supported. Got Half", "missing", "linalg.e"),
        ("RuntimeError Exception", "CUDA error: device-side assert triggered\nCUDA kernel", "error", "CUDA error: dev"),
        ("RuntimeError Exception", "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when", "missing", "CUDA error: CUBLAS"),
        ("RuntimeError Exception", "\n  shapes do not match \n", "error", "RuntimeError: shapes do not match"),
        ("ValueError Exception", "", "error", "ValueError: no text"),
    ],
)  # fmt: skip
def test_errors_in_the_words_of_torch(kinds: str, text: str, verdict: str, detail: str) -> None:
    result = messages.read_error(kinds, text)
    assert result[0] == verdict and result[1].startswith(detail) and "\n" not in result[1]


def test_an_error_may_leave_the_device_lost() -> None:
    assert messages.device_lost("CUDA error: an illegal memory access was encountered")
    assert not messages.device_lost(mps_texts.NO_MEMORY)


# -- the sweep over a child that is a script ------------------------------------------------------------------------

CHILD = """
import json, os, signal, sys, time
said = dict(word[2:].split("=") for word in sys.argv[1:])
out = os.fdopen(int(said["answers"]), "w", buffering=1)
def answer(**fields): out.write(json.dumps(fields) + "\\n")
def verdict(direction, word="native", lost=False):
    answer(direction=direction, verdict=word, detail="", n=1, n_bad=0, first_s=1.0, times_s=[2.0], random=False,
           profiled=[], lost=lost)
open(os.environ["STARTS"], "a").write(f"{os.getpid()}\\n")
if os.environ.get("BROKEN"): sys.exit("ImportError: no such thing")
answer(ready=True, ops={"add": ["fp32"]})
for line in sys.stdin:
    asked = json.loads(line)
    for direction in asked["directions"]:
        answer(at=direction)
        what = asked["op"] + "." + direction
        if what.startswith("crash." + said.get("in", "forward")):
            sys.stderr.write("Fatal Python error: of its own making\\n"); sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "crash_late.backward": os._exit(7)
        if what.startswith("assert.forward"):
            sys.stderr.write("(mpsFileLoc): /AppleInternal/x.mm:12: failed assertion `not a matrix'\\n")
            sys.stderr.flush()
            os.abort()
        if what == "give_up.forward":
            sys.stderr.write("Error: command buffer exited with error status.\\n")
            sys.stderr.write("\\tInternal Error (0000000e:Internal)\\n")
            sys.stderr.flush()
        if what == "hang.forward": time.sleep(60)
        verdict(direction, "error" if asked["op"] == "lose" else "native", asked["op"] == "lose")
        if asked["op"] == "lose":
            answer(done=True, lost=True); sys.exit(1)
    answer(done=True, lost=False)
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    made: list[Sweep] = []

    def start(limit_s: float = 20.0, **env: str) -> Sweep:
        words = {"PATH": os.environ["PATH"], "STARTS": str(tmp_path / "starts"), **env}
        made.append(Sweep([sys.executable, "-S", "-E", str(script)], words, limit_s))
        return made[-1]

    yield start
    for made_sweep in made:
        made_sweep.__exit__()


def run(sweep: Sweep, *names: str) -> dict[tuple[str, str], Finding]:
    result: dict[tuple[str, str], Finding] = {}
    sweep.run(
        [Unit(name, "fp32") for name in names],
        lambda unit, dur_s, findings: result.update({(one.unit.op, one.direction): one for one in findings}),
    )
    return result


def test_neither_a_crash_nor_a_lost_device_ends_the_sweep(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    sweeper = sweep()
    assert sweeper.ops() == {"add": ["fp32"]}
    result = run(sweeper, "crash", "add", "crash_late", "lose", "mul")
    reported = {key: (value.verdict, value.detail) for key, value in result.items()}
    verdict, detail = reported["crash", "forward"]
    assert verdict == "error" and detail.startswith("crash: SIGSEGV: ") and "own making" in detail
    assert reported["crash", "backward"] == ("native", ""), "the backward is checked in a new process"
    assert reported["crash_late", "forward"] == ("native", "")
    verdict, detail = reported["crash_late", "backward"]
    assert verdict == "error" and "ended with 7" in detail
    assert reported["lose", "forward"][0] == reported["lose", "backward"][0] == "error"
    assert reported["add", "backward"] == reported["mul", "backward"] == ("native", "")
    starts = (tmp_path / "starts").read_text().split()
    assert sweeper.restarts == 4 and len(starts) == 5
    sweeper.__exit__()
    for pid in map(int, starts):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_metal_says_on_stderr_alone_is_an_error(sweep: Callable[..., Sweep]) -> None:
    """torch raises nothing, and the result is whatever was in memory: neither native nor wrong."""
    result = run(sweep(), "give_up", "assert", "add")
    reported = {key: (value.verdict, value.detail) for key, value in result.items()}
    why = "command buffer exited with error status: Internal Error (0000000e:Internal)"
    assert reported["give_up", "forward"] == ("error", why) and reported["give_up", "backward"] == ("native", "")
    assert reported["assert", "forward"][1].startswith("crash: SIGABRT: (mpsFileLoc)")
    assert reported["add", "forward"] == ("native", "")


def test_an_operator_that_hangs_is_ended_and_recorded(sweep: Callable[..., Sweep]) -> None:
    result = run(sweep(limit_s=0.15), "hang")
    assert result["hang", "forward"].detail == "no end within 0.15 s"


def test_a_device_that_is_gone_for_good_ends_the_sweep(
    sweep: Callable[..., Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.opcheck.sweep.MOST_LOST_IN_A_ROW", 2)
    with pytest.raises(JobError, match="2 operators one after the other ended the process") as gone:
        run(sweep(), "lose", "lose", "add")
    assert "may be gone" in gone.value.hint


def test_neighbours_that_all_crash_on_a_device_that_is_well_do_not_end_the_sweep(
    sweep: Callable[..., Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.opcheck.sweep.MOST_LOST_IN_A_ROW", 2)
    result = run(sweep(), "add", "lose", "lose", "lose", "lose", "mul")
    assert result["mul", "forward"].verdict == "native" and result["lose", "forward"].verdict == "error"


def test_a_child_that_never_gets_ready_is_given_up(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    with pytest.raises(JobError, match="failed to start: its process ended with 1: ImportError: no such thing"):
        sweep(BROKEN="1").ops()
    assert len((tmp_path / "starts").read_text().split()) == 3


def test_a_child_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """The real child's watch, in a process that would sleep for a minute."""
    code = (
        f"import os, sys, time; sys.path.insert(0, {str(JOBS)!r}); from harness.opcheck import child\n"
        "child._end_with_parent(int(sys.argv[1])); print('watching', flush=True); time.sleep(60)"
    )
    read, write = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", code, str(read)], pass_fds=(read,), stdout=subprocess.PIPE)
    os.close(read)
    assert child.stdout is not None and child.stdout.readline() == b"watching\n"
    os.close(write)
    assert child.wait() == 1
    child.stdout.close()
