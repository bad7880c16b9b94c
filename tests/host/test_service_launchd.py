"""The LaunchAgent against a stand-in for launchctl (tests/fake_launchctl.py). None of this has met a Mac."""

from __future__ import annotations

import os
import plistlib
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fake_launchctl import SAMPLE, FakeLaunchd

import queue_runner
from queue_runner.config_file import Config
from queue_runner.errors import MpsqError
from queue_runner.host import protected, services
from queue_runner.host.run_dir import cut_middle
from queue_runner.host.services import launchd
from queue_runner.host.services.launchd import Launchd, parse_print
from queue_runner.paths import Layout

pytestmark = pytest.mark.process

GUI = "gui/501/dev.mpsq.worker"
USER = "user/501/dev.mpsq.worker"


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLaunchd:
    monkeypatch.delenv("SUDO_UID", raising=False)
    fake = FakeLaunchd(tmp_path / "launchd.json")
    monkeypatch.setattr(launchd, "run_tool", lambda argv, _: CompletedProcess(argv, *fake.run(argv[1:])))
    return fake


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Launchd]:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    yield make(tmp_path, python)


def make(tmp_path: Path, python: Path, settings: Config | None = None, **environ: str) -> Launchd:
    environ = {"PATH": "/opt/homebrew/bin:relative:/usr/bin", "SECRET_TOKEN": "x", **environ}
    program = services.program_for(Layout(tmp_path / "q"), settings or Config(), str(python), environ)
    clock = Clock()
    return Launchd(program, user_home=tmp_path / "me", uid=501, clock=clock, sleep=clock.sleep)


def verbs(fake: FakeLaunchd) -> list[str]:
    return [call[0] for call in fake.state["calls"] if call[0] != "print"]


# -- the plist ------------------------------------------------------------------------------------------------------


def test_plist_has_every_key(agent: Launchd, tmp_path: Path) -> None:
    plist = plistlib.loads(plistlib.dumps(agent.definition(), sort_keys=False))
    assert plist == agent.definition()
    environment = plist.pop("EnvironmentVariables")
    assert plist == {
        "Label": "dev.mpsq.worker",
        "ProgramArguments": [str(tmp_path / "venv/bin/python"), "-m", "queue_runner.cli", "worker", "--service"],
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ProcessType": "Interactive",
        "ExitTimeOut": 60,
        "WorkingDirectory": str(tmp_path / "q"),
        "StandardOutPath": str(tmp_path / "me/Library/Logs/mpsq/worker.log"),
        "StandardErrorPath": str(tmp_path / "me/Library/Logs/mpsq/worker.log"),
        "LimitLoadToSessionType": ["Aqua", "Background"],
        "Umask": 63,
        "SoftResourceLimits": {"NumberOfFiles": 4096},
    }
    assert environment == {
        "MPSQ_HOME": str(tmp_path / "q"),
        "MPSQ_SERVICE_VERSION": queue_runner.__version__,
        "PATH": f"{tmp_path}/venv/bin:/opt/homebrew/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONUNBUFFERED": "1",
    }


def test_plist_keeps_odd_paths_and_torch_settings(tmp_path: Path) -> None:
    agent = make(tmp_path, tmp_path / "a & <b>/python", PYTORCH_MPS_FAST_MATH="1", MPSQ_LOCKS="/x", MPSQ_RUN="1.1")
    plist = plistlib.loads(plistlib.dumps(agent.definition()))
    assert plist["ProgramArguments"][0] == str(tmp_path / "a & <b>/python")
    assert plist["EnvironmentVariables"]["PYTORCH_MPS_FAST_MATH"] == "1"
    assert plist["EnvironmentVariables"]["MPSQ_LOCKS"] == "/x"
    assert "MPSQ_RUN" not in plist["EnvironmentVariables"]


def test_it_runs_the_installed_command_by_its_name(agent: Launchd, tmp_path: Path) -> None:
    """pip writes `#!PYTHON`, and for a path with a space a line of sh; a script of another Python is not ours."""
    python, script = Path(agent.program.python), Path(agent.program.python).with_name("mpsq")
    through_sh = "#!/bin/sh\n" + "'" * 3 + f'exec\' "{python}" "$0" "$@"\n'
    for head in (f"#!{python}\n", f"#!{python}3.12\n", through_sh):
        script.write_text(head + "import sys\n")
        assert make(tmp_path, python).definition()["ProgramArguments"] == [str(script), "worker", "--service"]
    script.write_text("#!/usr/bin/python3\nimport sys\n")
    assert make(tmp_path, python).definition()["ProgramArguments"][0] == str(python)


def test_a_service_of_version_0_1_is_rewritten(mac: FakeLaunchd, agent: Launchd, tmp_path: Path) -> None:
    for verb in ("start", "restart", "install"):
        agent.install()
        old = agent.definition() | {
            "ProgramArguments": [agent.program.python, "-m", "queue_runner.daemon", "--service"]
        }
        agent.path.write_bytes(plistlib.dumps(old))
        assert any("another version" in problem for problem, _ in agent.status().problems)
        assert "reinstalled" in getattr(agent, verb)()
        assert plistlib.loads(agent.path.read_bytes())["ProgramArguments"][-2:] == ["worker", "--service"]


# -- install --------------------------------------------------------------------------------------------------------


def test_install_enables_and_bootstraps(mac: FakeLaunchd, agent: Launchd) -> None:
    answer = agent.install()
    assert all(x in answer for x in ("dev.mpsq.worker", "is installed", "process 35711, gui/501", "log out"))
    assert verbs(mac) == ["enable", "bootstrap"]
    assert stat.S_IMODE(agent.path.stat().st_mode) == 0o644
    assert agent.log.exists()
    status = agent.status()
    assert (status.installed, status.running, status.pid, status.problems) == (True, True, 35711, ())


def test_install_again_changes_nothing(mac: FakeLaunchd, agent: Launchd) -> None:
    agent.install()
    written = agent.path.stat()
    mac.state["calls"].clear()
    assert "nothing was changed" in agent.install()
    assert verbs(mac) == []
    assert agent.path.stat().st_mtime_ns == written.st_mtime_ns and agent.path.stat().st_ino == written.st_ino


def test_a_changed_plist_is_booted_out_first(mac: FakeLaunchd, agent: Launchd, tmp_path: Path) -> None:
    agent.install()
    other = make(tmp_path, Path(agent.program.python), PYTORCH_MPS_FAST_MATH="1")
    mac.state["calls"].clear()
    assert "reinstalled" in other.install()
    assert verbs(mac) == ["bootout", "enable", "bootstrap"]
    calls = [call[0] for call in mac.state["calls"]]
    assert calls[calls.index("bootout") + 1 : calls.index("enable")].count("print") >= 3, "it did not wait for the end"
    assert other.status().pid == 35712


def test_a_stopped_service_is_started(mac: FakeLaunchd, agent: Launchd) -> None:
    agent.install()
    mac.state["jobs"][GUI] |= {"state": "not running", "pid": 0, "last_exit": "0"}
    mac.state["calls"].clear()
    answer = agent.install()
    assert "is started" in answer and "process 35712" in answer
    assert verbs(mac) == ["kickstart"]


def test_without_a_screen_the_users_domain_is_taken(mac: FakeLaunchd, agent: Launchd) -> None:
    mac.state["gui"] = False
    assert agent.install().endswith("running (process 35711, user/501)")
    assert list(mac.state["jobs"]) == [USER]
    assert agent.status().running


def test_125_from_gui_goes_to_the_users_domain(mac: FakeLaunchd, agent: Launchd) -> None:
    mac.state["answers"] = {"bootstrap": [[125, "Bootstrap failed: 125: Domain does not support specified action"]]}
    assert "user/501" in agent.install()
    assert verbs(mac) == ["enable", "bootstrap", "enable", "bootstrap"]


@pytest.mark.parametrize("code", [5, 37])
def test_a_refusal_of_what_is_loaded_is_no_failure(mac: FakeLaunchd, agent: Launchd, code: int, tmp_path: Path) -> None:
    def late(arguments: Any) -> tuple[int, str, str]:  # launchd loaded it by itself meanwhile, as it does at login
        answer = real(arguments)
        return (code, "", f"Bootstrap failed: {code}: said twice") if arguments[0] == "bootstrap" else answer

    real = mac.run
    mac.run = late  # type: ignore[method-assign]
    assert "installed and running" in agent.install()
    assert verbs(mac) == ["enable", "bootstrap"]


def test_bootstrap_while_draining_is_tried_again(mac: FakeLaunchd, agent: Launchd) -> None:
    busy = [[5, "Bootstrap failed: 5: Input/output error"], [36, "in progress"], [37, "Operation already in progress"]]
    mac.state["answers"] = {"bootstrap": busy}
    assert "installed and running" in agent.install()
    assert verbs(mac) == ["enable", *["bootstrap"] * 4]


def test_a_bootout_in_progress_is_tried_again(mac: FakeLaunchd, agent: Launchd) -> None:
    agent.install()
    mac.state |= {"answers": {"bootout": [[36, "Boot-out failed: 36: Operation now in progress"]]}, "calls": []}
    assert "uninstalled" in agent.uninstall()
    assert verbs(mac) == ["bootout", "bootout"]


def test_a_bootstrap_on_a_job_that_is_leaving_waits_for_its_end(mac: FakeLaunchd, agent: Launchd) -> None:
    agent.install()
    mac.state["drain"] = 4
    mac.run(["bootout", GUI])
    agent._load_into("gui/501")
    assert mac.state["jobs"][GUI]["state"] == "running"


def test_a_worker_that_dies_within_a_second_is_said(mac: FakeLaunchd, agent: Launchd) -> None:
    def dies(arguments: Any) -> tuple[int, str, str]:
        answer = real(arguments)
        if tuple(arguments) == ("print", GUI) and answer[0] == 0:
            mac.state["jobs"][GUI] |= {"state": "not running", "pid": 0, "last_exit": "1"}
        return answer

    real = mac.run
    mac.run = dies  # type: ignore[method-assign]
    with pytest.raises(MpsqError, match="exited with code 1"):
        agent.install()


def test_the_exit_code_of_the_last_time_is_not_this_times(mac: FakeLaunchd, agent: Launchd) -> None:
    def slow(arguments: Any) -> tuple[int, str, str]:
        if arguments[0] == "kickstart":
            waits.extend([3, 2, 1])
            return 0, "", ""
        if waits and tuple(arguments) == ("print", GUI):
            waits.pop()
            if not waits:
                mac.do_kickstart(GUI)
        return real(arguments)

    agent.install()
    mac.state["jobs"][GUI] |= {"state": "spawn scheduled", "pid": 0, "last_exit": "0"}
    waits: list[int] = []
    real = mac.run
    mac.run = slow  # type: ignore[method-assign]
    assert "is started" in agent.install()


def test_stop_and_start(mac: FakeLaunchd, agent: Launchd, tmp_path: Path) -> None:
    with pytest.raises(MpsqError, match="is not installed"):
        agent.start()
    assert "not run" in agent.stop()
    agent.install()
    written = agent.path.read_bytes()
    assert "already running (process 35711)" in agent.start()
    mac.state["calls"].clear()
    assert "is stopped" in agent.stop()
    assert not agent.status().running and not mac.state["jobs"]
    other_shell = make(tmp_path, Path(agent.program.python), PATH="/elsewhere")
    answer = other_shell.start()
    assert "is started" in answer and "process 35712" in answer
    assert verbs(mac) == ["bootout", "enable", "bootstrap"] and agent.path.read_bytes() == written
    mac.state["jobs"][GUI] |= {"state": "not running", "pid": 0, "last_exit": "0"}
    assert "is started" in agent.start()
    assert verbs(mac)[3:] == ["kickstart"]


@pytest.mark.parametrize(("kept", "left"), [(GUI, USER), (USER, GUI)])
def test_a_restart_in_both_domains_keeps_the_one_that_runs(
    mac: FakeLaunchd, agent: Launchd, kept: str, left: str
) -> None:
    """An ssh login came before one at the screen: the second worker found the first one's lock, and exited 0."""
    agent.install()
    mac.run(["bootstrap", "user/501", str(agent.path)])
    mac.state["jobs"][left] |= {"state": "not running", "pid": 0, "last_exit": "0"}
    mac.state["calls"].clear()
    answer = agent.restart()
    assert "is restarted" in answer and "process 35713" in answer
    assert list(mac.state["jobs"]) == [kept] and verbs(mac) == ["bootout", "kickstart"]


def test_a_disabled_service_is_enabled(mac: FakeLaunchd, agent: Launchd) -> None:
    mac.state["disabled"] = [GUI]
    assert "installed and running" in agent.install()


def test_what_launchd_never_takes_is_an_error_in_the_end(mac: FakeLaunchd, agent: Launchd) -> None:
    mac.state["answers"] = {"bootstrap": [[5, "Bootstrap failed: 5: Input/output error"]] * 50}
    with pytest.raises(MpsqError, match="launchd could not load the service: Bootstrap failed: 5") as caught:
        agent.install()
    assert "launchctl error 5" in caught.value.hint
    assert 30 <= agent.clock() < 40


def test_what_never_leaves_is_an_error_in_the_end(mac: FakeLaunchd, agent: Launchd) -> None:
    agent.install()
    mac.state["drain"] = 10_000
    with pytest.raises(MpsqError, match="could not unload the service"):
        agent.uninstall()
    assert agent.path.exists()


def test_an_unexpected_answer_is_not_read_as_absent(mac: FakeLaunchd, agent: Launchd) -> None:
    agent.install()
    mac.state["answers"] = {"print": [[1, "Operation not permitted"]]}
    with pytest.raises(MpsqError, match="could not show the service: Operation not permitted"):
        agent.install()
    mac.state["answers"] = {"print": [[1, "Operation not permitted"]]}
    status = agent.status()
    assert status.installed and not status.running and status.problems


@pytest.mark.parametrize(
    ("exits", "sentence"),
    [("78: EX_CONFIG", "could not start it"), ("1", "exited with code 1"), ("0", "it exited, and")],
)
def test_a_worker_that_does_not_stay_is_said(mac: FakeLaunchd, agent: Launchd, exits: str, sentence: str) -> None:
    mac.state["exits"] = exits
    with pytest.raises(MpsqError, match=sentence) as caught:
        agent.install()
    assert "worker.log" in caught.value.hint
    assert any(sentence in problem for problem, _ in agent.status().problems)


def test_a_throttled_service_is_an_error_and_a_problem(mac: FakeLaunchd, agent: Launchd) -> None:
    mac.state["spawn_type"] = "daemon (3)"
    with pytest.raises(MpsqError, match=r"with limits \(spawn type daemon \(3\)\)"):
        agent.install()
    assert any("throttles" in problem for problem, _ in agent.status().problems)


def test_a_second_domain_is_cleared(mac: FakeLaunchd, agent: Launchd) -> None:
    mac.state["gui"] = False
    agent.install()
    mac.state["gui"] = True
    mac.do_bootstrap("gui/501", str(agent.path))
    assert "reinstalled" in agent.install()
    assert list(mac.state["jobs"]) == [GUI]


# -- the rest of its life -------------------------------------------------------------------------------------------


def test_restart_keeps_the_plist(mac: FakeLaunchd, agent: Launchd, tmp_path: Path) -> None:
    agent.install()
    mac.state["calls"].clear()
    from_another_shell = make(tmp_path, Path(agent.program.python), PATH="/elsewhere")
    answer = from_another_shell.restart()
    assert "is restarted" in answer and "process 35712" in answer
    assert verbs(mac) == ["kickstart"]
    assert ["kickstart", "-k", GUI] in mac.state["calls"]


def test_restart_of_what_is_not_there_installs(mac: FakeLaunchd, agent: Launchd) -> None:
    assert "installed and running" in agent.restart()


def test_an_upgrade_is_seen_and_installed(
    mac: FakeLaunchd, agent: Launchd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.install()
    monkeypatch.setattr(queue_runner, "__version__", "9.9")
    upgraded = make(tmp_path, Path(agent.program.python))
    assert any("another version" in problem for problem, _ in upgraded.status().problems)
    assert "reinstalled" in upgraded.install()
    assert upgraded.status().problems == ()


def test_uninstall_leaves_the_queue(mac: FakeLaunchd, agent: Launchd, tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    agent.install()
    assert "the queue stays" in agent.uninstall()
    assert not agent.path.exists() and (tmp_path / "q").is_dir() and not mac.state["jobs"]
    assert "was not installed" in agent.uninstall()
    status = agent.status()
    assert (status.installed, status.running, status.pid, status.problems) == (False, False, None, ())
    assert "is not installed" in status.detail


def test_status_names_what_is_wrong(mac: FakeLaunchd, agent: Launchd) -> None:
    agent.install()
    agent.path.unlink()
    Path(agent.program.python).unlink()
    answer = " ".join(problem for problem, _ in agent.status().problems)
    assert "is missing" in answer and "Python is gone" in answer
    agent.path.write_text("no plist")
    assert any("another queue" in problem for problem, _ in agent.status().problems)
    del mac.state["jobs"][GUI]
    assert any("not loaded" in problem for problem, _ in agent.status().problems)


# -- refusals -------------------------------------------------------------------------------------------------------


def test_root_is_refused(mac: FakeLaunchd, agent: Launchd, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.uid = 0
    with pytest.raises(MpsqError, match="not to root"):
        agent.install()
    agent.uid = 501
    monkeypatch.setenv("SUDO_UID", "501")
    with pytest.raises(MpsqError, match="not to root"):
        agent.uninstall()
    assert mac.state["calls"] == []


@pytest.mark.parametrize("place", ["Documents", "desktop", "Downloads/x", "Library/Mobile Documents"])
def test_protected_places_are_refused(mac: FakeLaunchd, tmp_path: Path, place: str) -> None:
    agent = make(tmp_path, tmp_path / "me" / place / "venv" / "python")
    with pytest.raises(MpsqError, match=r"this Python is in ~/"):
        agent.install()
    assert not agent.path.exists() and verbs(mac) == []


def test_a_link_into_a_protected_place_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "Documents" / "q").mkdir(parents=True)
    (tmp_path / "q").symlink_to(tmp_path / "Documents" / "q")
    assert protected.place(tmp_path / "q" / "x", tmp_path) == "~/Documents"
    assert protected.place(Path("/Volumes/disk/q"), tmp_path) == "another volume"
    assert protected.place(tmp_path / "Documents2", tmp_path) is None


def test_a_folder_that_cannot_be_written_has_a_sentence(mac: FakeLaunchd, agent: Launchd) -> None:
    agent.user_home.mkdir()
    (agent.user_home / "Library").write_text("")
    with pytest.raises(MpsqError, match="cannot be written"):
        agent.install()


@pytest.mark.parametrize("python", ["", "python3", "/Users/me/.cache/uv/archive-v0/x/bin/python", "/a\nb/python"])
def test_a_python_that_will_not_last_is_refused(tmp_path: Path, python: str) -> None:
    with pytest.raises(MpsqError):
        services.program_for(Layout(tmp_path), Config(), python, {})


def test_another_label_has_its_own_files(tmp_path: Path) -> None:
    agent = make(tmp_path, Path("/usr/bin/python3"), Config(service_label="org.me.second"))
    assert (agent.path.name, agent.log.name) == ("org.me.second.plist", "org.me.second.log")


# -- launchctl ------------------------------------------------------------------------------------------------------


def test_print_is_read_at_the_top_level_only() -> None:
    fields = {"service": GUI, "path": "/x", "state": "SIGTERMed", "runs": 2, "pid": "\tpid = 35711\n"}
    job = parse_print(SAMPLE.format(**fields, last_exit="(never exited)", spawn_type="daemon (3)"))
    assert (job.state, job.pid, job.runs, job.last_exit_code) == ("SIGTERMed", 35711, 2, None)
    assert job.leaving and job.throttled and not job.running


def test_a_block_before_the_jobs_own_lines_is_passed_over() -> None:
    job = parse_print("x = {\n\tcoalition = {\n\t\tstate = active\n\t\tpid = 1\n\t}\n\tstate = running\n\tpid = 7\n}\n")
    assert (job.state, job.pid) == ("running", 7)


@pytest.mark.parametrize(
    "text", ["", "}\n}\nstate = x", "x = {\n\tpid = many\n\tstate\n", "x = {\n\tpid = 0\n", "\x00{\n = \n"]
)
def test_print_in_other_words_is_unknown_and_no_error(text: str) -> None:
    job = parse_print(text)
    assert job.pid is None and not job.running and not job.throttled


def test_a_signal_is_said() -> None:
    job = parse_print("x = {\n\tstate = not running\n\tlast terminating signal = Terminated: 15\n}\n")
    assert job.last_signal == "Terminated: 15" and job.last_exit_code is None


def test_the_program_is_really_called(tmp_path: Path, agent: Launchd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    script = Path(__file__).resolve().parents[1] / "fake_launchctl.py"
    wrapper = tmp_path / "launchctl"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{script}" "{tmp_path}/state.json" "$@"\n')
    wrapper.chmod(0o755)
    agent.launchctl = str(wrapper)
    agent.sleep = lambda s: Clock.sleep(agent.clock, max(s, 1.0))  # type: ignore[arg-type]
    assert "installed and running" in agent.install()
    assert agent.status().running


def test_a_launchctl_that_is_not_there_has_a_sentence(agent: Launchd) -> None:
    agent.launchctl = "/no/launchctl"
    with pytest.raises(MpsqError, match="cannot be run"):
        agent.install()
    assert "cannot be run" in agent.status().detail


# -- the log --------------------------------------------------------------------------------------------------------


def test_a_long_log_is_cut_while_it_is_open(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(1000):
        os.write(descriptor, b"line %04d\n" % number)
    cut_middle(log, 10_000, 2_500)
    assert log.stat().st_size == 10_000
    cut_middle(log, 9_010, 2_500)
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    lines = log.read_text().splitlines()
    cut = next(n for n, line in enumerate(lines) if line.startswith("[mpsq: "))
    assert lines[:cut] == [f"line {n:04}" for n in range(cut)] and cut > 5
    assert lines[cut + 1] == "line 0876" and lines[-2:] == ["line 0999", "after"]
    cut_middle(tmp_path / "none", 1, 1)
