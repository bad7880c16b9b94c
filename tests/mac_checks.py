"""What mpsq relies on of macOS itself: the kernel's calls, the texts of Apple's tools. No torch."""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import plistlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from queue_runner import paths
from queue_runner.analysis import validity
from queue_runner.config_file import Config
from queue_runner.host import (
    apple_gpu,
    energy_meters,
    filesystem,
    keep_awake,
    low_priority,
    machine,
    power,
    run_sampler,
)
from queue_runner.host import processes as host_processes
from queue_runner.host.command import ask
from queue_runner.host.processes import boot_id
from queue_runner.host.services import launchd
from queue_runner.host.services.user_service import run_tool
from queue_runner.warden import files, process_tree
from tests.mac_check import Check, Unknown

JOBS = Path(__file__).resolve().parents[1] / "jobs"
sys.path.append(str(JOBS))
TOUCHED = 1 << 28
BUSY = (sys.executable, "-c", "import time; time.sleep(60)")


def system() -> Iterator[Check]:
    """All of them."""
    for check in (
        native_python, chip, same_gpu, version, boot, mounts, default_home, battery, low_power, thermal, gpu_use,
        gpu_clients, gpu_idle, energy, priority, swap, two_clocks, one_counter, own_process, a_zombie, a_stop, a_tag,
        every_process, time_of_children, footprint, footprint_of_the_ended, left_reader, to_the_platter, kept_awake,
        launchd_answers, definition, developer_tools,
    ):  # fmt: skip
        yield Check("system", (check.__doc__ or "").rstrip("."), check)


def _asked(*argv: str) -> str:
    said = ask(argv)
    assert said is not None, f"{' '.join(argv)} failed or is not there"
    return said


def native_python() -> str:
    """Python is native."""
    told = f"machine {platform.machine()}, processor {platform.processor()}"
    assert (platform.machine(), platform.processor()) == ("arm64", "arm"), told
    return told


def chip() -> str:
    """chip, model, memory, cores, identity."""
    told = machine.describe()
    wanted = ("cpu", "model", "memory_gib", "cores_physical", "cores_logical", "cores_by_tier", "id", "gpus")
    missing = [name for name in wanted if not getattr(told, name)]
    assert not missing and told.gpu_cores, f"not told: {', '.join(missing) or 'GPU cores'}; {told}"
    return f"{told.cpu}, {told.model}, {told.memory_gib} GiB, GPU cores {told.gpu_cores}; {told}"


def same_gpu() -> str:
    """ioreg and system_profiler name the same GPU."""
    chip = machine._sysctl(ask, ["machdep.cpu.brand_string"]).get("machdep.cpu.brand_string")
    by_driver = machine._apple_gpu(ask, chip)
    by_profiler = machine._mac_gpus(_asked("/usr/sbin/system_profiler", "SPDisplaysDataType", "-json"))
    assert by_driver is not None and by_driver == by_profiler, f"{by_driver}, {by_profiler}"
    return str(by_driver)


def version() -> str:
    """the true version of macOS."""
    from harness.apple import macos_version

    told = machine.software().os_version or ""
    assert re.match(r"(1[4-5]|2\d)\.", told) and told == macos_version(), f"{told!r}, {macos_version()!r}"
    return told


def boot() -> str:
    """the boot has an id."""
    told = boot_id()
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", told), told
    return told


def mounts() -> str:
    """the output of mount can be parsed."""
    text = _asked("/sbin/mount")
    points = {point: kind for point, kind, _ in filesystem._mac_mounts(text)}
    assert points.get("/") == "apfs", f"/ is {points.get('/')}: {text}"
    return f"{len(points)} mounts; {text}"


def default_home() -> str:
    """the default home is local, without a space."""
    said = os.environ.pop("MPSQ_HOME", None)
    try:
        home = paths.home()
    finally:
        if said is not None:
            os.environ["MPSQ_HOME"] = said
    assert " " not in str(home) and filesystem.network_kind(home) is None, str(home)
    return str(home)


def battery() -> str:
    """pmset reports the power source."""
    text = _asked("/usr/bin/pmset", "-g", "batt")
    assert power.parse_battery(text).on_battery is not None, text
    return text


def low_power() -> str:
    """pmset reports low power mode."""
    text = _asked("/usr/bin/pmset", "-g")
    if power.parse_low_power(text) is None:
        raise Unknown(f"neither lowpowermode nor powermode: {text}")
    return f"{power.parse_low_power(text)}; {text}"


def thermal() -> str:
    """notifyutil reports thermal pressure."""
    text = _asked("/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel")
    assert power.parse_pressure(text) is not None, text
    return text


def gpu_use() -> str:
    """ioreg reports the GPU's use."""
    text = _asked(*apple_gpu.HINT)
    assert apple_gpu.hinted_share(text) is not None, text
    return f"{apple_gpu.hinted_share(text)}; by its clients' time {apple_gpu.use_now(ask)}; {text}"


def gpu_clients() -> str:
    """ioreg shows which programs use the GPU."""
    text = _asked(*apple_gpu.CLIENTS)
    found = apple_gpu.clients(text)
    assert any(client.gpu_ns > 0 for client in found.values()), f"{len(found)} clients; {text[:2000]}"
    return f"{len(found)} clients of {len({client.pid for client in found.values()})} programs; {text[:2000]}"


def gpu_idle() -> str:
    """an idle GPU is not busy."""
    found = run_sampler.gpu_use_before(validity.GPU_BUSY_SHARE)
    if found is None:
        raise Unknown("ioreg has no answer within 2 s")
    assert found <= validity.GPU_BUSY_SHARE, f"{found:.0%} in the lowest of three looks"
    return f"{found:.0%}"


def priority() -> str:
    """ps reports a priority of 31 to 37."""
    text = _asked("/bin/ps", "-o", "pri=", "-p", str(os.getpid()))
    assert 31 <= (run_sampler.parse_priority(text) or 0) <= 37, text
    return text


def energy() -> str:
    """the chip's energy is counted."""
    meter = energy_meters.apple_energy()
    if meter is None:
        raise Unknown("zeus-apple-silicon is not installed: pip install zeus-apple-silicon")
    first = meter.read()
    time.sleep(1.0)
    second = meter.read()
    assert first and second["cpu"] > first["cpu"], f"{first}, then {second}"
    return f"{first}, a second later {second}"


def swap() -> str:
    """vm_stat reports swapping."""
    text = _asked("/usr/bin/vm_stat")
    assert run_sampler.parse_vm_stat(text) is not None, text
    return f"{run_sampler.parse_vm_stat(text)}; {text}"


def two_clocks() -> str:
    """one clock counts sleep, one does not."""
    awake_s, counting_s = files.awake(), files.with_sleep()
    assert counting_s >= awake_s - 1, f"{counting_s}, {awake_s}: the clock that counts sleep is behind the other"
    return f"slept {counting_s - awake_s:.0f} s since the boot"


def one_counter() -> str:
    """perf_counter is one clock for all processes."""
    before = time.perf_counter()
    told = float(subprocess.check_output([sys.executable, "-c", "import time; print(time.perf_counter())"]))
    assert before <= told <= time.perf_counter(), f"{before} here, then {told} in a child"
    return f"{told - before:.3f} s from here to a child"


def own_process() -> str:
    """libproc and psutil agree about a process."""
    import psutil

    seen, process = host_processes.look(os.getpid()), psutil.Process()
    assert seen is not None and seen.parent == os.getppid() and seen.session == os.getsid(0), str(seen)
    if not _linux():
        assert abs(seen.start - process.create_time()) < 0.02, f"{seen}, psutil {process.create_time()}"
    return str(seen)


def a_zombie() -> str:
    """an ended child does not count as alive."""
    child = subprocess.Popen(["true"])
    time.sleep(0.5)
    seen = host_processes.look(child.pid)
    child.wait()
    assert seen is None or seen.ended, str(seen)
    return str(seen)


def a_stop() -> str:
    """wait4 reports that a child stops and continues."""
    with subprocess.Popen(BUSY) as child:
        try:
            os.kill(child.pid, signal.SIGSTOP)
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            row = process_tree.row(child.pid)
            assert os.WIFSTOPPED(status) and row is not None and row.stopped, f"{status}, stopped {row and row.stopped}"
            os.kill(child.pid, signal.SIGCONT)
            _, status = os.waitpid(child.pid, os.WCONTINUED)
            assert os.WIFCONTINUED(status) and not os.WIFSTOPPED(status), str(status)
        finally:
            child.kill()
    return "stopped, then continued"


def a_tag() -> str:
    """the environment of a child is readable."""
    seen = {}
    for program in (BUSY, ("/bin/sleep", "60")):  # Apple's own may hide it
        with subprocess.Popen(program, env={**os.environ, "MPSQ_TAG": "tag-of-a-check"}) as child:
            deadline = time.monotonic() + 1  # Popen may return while exec still sets it up
            while not (told := process_tree.tagged([child.pid], "tag-of-a-check")) and time.monotonic() < deadline:
                time.sleep(0.01)
            seen[program[0]] = bool(told)
            child.kill()
    assert seen[BUSY[0]], f"no MPSQ_TAG among {len(process_tree.environment(os.getpid()))} variables of ours"
    return ", ".join(f"{name}: {'yes' if told else 'hidden'}" for name, told in seen.items())


def every_process() -> str:
    """all processes can be listed."""
    begun = time.perf_counter()
    n = len([pid for pid in process_tree.pids_darwin() if process_tree.row_darwin(pid)]) if not _linux() else 0
    took_ms = (time.perf_counter() - begun) * 1e3
    mine = process_tree.table(host_processes.look)
    assert os.getpid() in mine and os.getppid() in mine, f"{len(mine)} processes, not ours"
    return f"{n} of this user's in {took_ms:.1f} ms, {len(mine)} in all"


def _linux() -> bool:
    return sys.platform.startswith("linux")


def time_of_children() -> str:
    """the CPU time of ended children counts for their parent."""

    def mine() -> float:
        used = process_tree.rusage_darwin(os.getpid())
        assert used is not None, "proc_pid_rusage refused"
        return used.cpu_s

    own = sum(os.times()[:4])
    assert abs(mine() - own) < 0.05 + 0.1 * own, f"{mine():.2f} s, os.times {own:.2f} s"
    before = mine()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 1: pass"], check=True)
    assert 0.9 < mine() - before < 2, f"{mine() - before:.2f} s after a child that used 1 s"
    return f"{mine() - before:.2f} s after a child that used 1 s"


def footprint() -> str:
    """the footprint of this process."""
    from harness.device import process_memory

    before = process_memory()[1] or 0
    with mmap.mmap(-1, TOUCHED) as pages:
        _touch(pages)
        during = process_memory()[1] or 0
    after = process_memory()[1] or 0
    told = f"{before / 1e6:.1f} MB, {during / 1e6:.1f} with 256 MiB, {after / 1e6:.1f} afterwards"
    assert 0.9 * TOUCHED < during - before < 1.2 * TOUCHED and during - after > 0.9 * TOUCHED, told
    if not _linux():
        used = process_tree.rusage_darwin(os.getpid())
        assert used is not None and used.max_footprint_bytes >= during > used.footprint_bytes, f"{told}; {used}"
    return told


def footprint_of_the_ended() -> str:
    """the footprint of an ended child."""
    program = "import mmap; m = mmap.mmap(-1, 1 << 28); [m.__setitem__(at, 1) for at in range(0, 1 << 28, 4096)]"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()  # returns when it has ended
    time.sleep(0.5)
    used = process_tree.rusage_darwin(child.pid)
    child.wait()
    assert used is not None and used.max_footprint_bytes > TOUCHED, f"{used and used.max_footprint_bytes}"
    return f"{used.max_footprint_bytes / 1e6:.1f} MB"


def _touch(pages: mmap.mmap) -> None:
    for at in range(0, len(pages), mmap.PAGESIZE):
        pages[at] = 1


def left_reader() -> str:
    """a pipe without a reader is noticed."""
    reads, writes = os.pipe()
    wait, begun = low_priority.Wait(writes), time.perf_counter()
    wait(0.2)
    waited = time.perf_counter() - begun
    assert waited > 0.15, f"it did not wait while there was a reader: {waited:.3f} s"
    os.close(reads)
    try:
        wait(0.2)
    except BrokenPipeError:
        return "noticed"
    finally:
        os.close(writes)
    raise AssertionError("it waited on")


def to_the_platter() -> str:
    """files and folders reach the disk."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    assert full is not None, "no F_FULLFSYNC here"
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/file", "w") as file:
        fcntl.fcntl(file.fileno(), full)
        place = os.open(folder, os.O_RDONLY)
        try:
            fcntl.fcntl(place, full)
        finally:
            os.close(place)
    return "F_FULLFSYNC of both"


def kept_awake() -> str:
    """caffeinate keeps the machine awake."""
    with subprocess.Popen(BUSY) as child:
        helper = keep_awake.keep_awake(child.pid)
        try:
            text, deadline = "", time.monotonic() + 10
            while "caffeinate" not in text and time.monotonic() < deadline:
                text = _asked("/usr/bin/pmset", "-g", "assertions")
            assert helper is not None and "caffeinate" in text, text
        finally:
            child.kill()
            child.wait()
        helper.wait(5)  # it ends with the process that it waits for
    return str(text)


def launchd_answers() -> str:
    """launchctl's codes for missing jobs."""
    label = "dev.mpsq.is-not-there"
    answer, gone = (
        run_tool([launchd.LAUNCHCTL, verb, f"gui/{os.getuid()}/{label}"], 30.0) for verb in ("print", "bootout")
    )
    assert answer.returncode in (launchd.NOT_FOUND, launchd.NO_SUCH_DOMAIN), str(answer)
    assert gone.returncode in launchd._AWAITED, str(gone)
    return f"print {answer.returncode} {answer.stderr!r}, bootout {gone.returncode} {gone.stderr!r}"


def definition() -> str:
    """plutil accepts the service's definition."""
    from queue_runner.host import services
    from queue_runner.host.services.launchd import Launchd

    program = services.program_for(paths.Layout(paths.home()), Config(), sys.executable, os.environ)
    with tempfile.NamedTemporaryFile(suffix=".plist") as file:
        file.write(plistlib.dumps(Launchd(program).definition(), sort_keys=False))
        file.flush()
        text = _asked("/usr/bin/plutil", "-lint", file.name)
    assert text.rstrip().endswith("OK"), text
    return text


def developer_tools() -> str:
    """Apple's command line tools."""
    told = ask(["/usr/bin/xcode-select", "-p"])
    if told is None:
        raise Unknown("not installed: torch.compile on the CPU, tinygrad and git need them (xcode-select --install)")
    return told
