"""Every --json is what docs/json.md says, and nothing else."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from queue_runner.cli.main import commands
from tests.bundles import bundles_support
from tests.cli_support import ROOT, Cli, full_queue, schemas, stand_in_venv, use_toy_workloads

pytestmark = pytest.mark.process

LINES = {
    "mpsq.submit/1": ["submit", "toy", "--set", "lr=0.1,0.2", "--json"],
    "mpsq.plan/1": ["submit", "toy", "--dry-run", "--json"],
    "mpsq.status/1": ["status", "--json"],
    "mpsq.list/1": ["list", "--json"],
    "mpsq.show/1": ["show", "g1", "--json"],
    "mpsq.diff/1": ["show", "g1", "--diff", "--json"],
    "mpsq.rerun/1": ["rerun", "1", "--json"],
    "mpsq.why/1": ["why", "g1", "--json"],
    "mpsq.wait/1": ["wait", "1", "--json"],
    "mpsq.cancel/1": ["cancel", "1", "5", "--json"],
    "mpsq.pause/1": ["pause", "5", "1", "--json"],
    "mpsq.resume/1": ["resume", "--json"],
    "mpsq.edit/1": ["edit", "6", "--top", "--json"],
    "mpsq.retry/1": ["retry", "g1", "--json"],
    "mpsq.delete/1": ["delete", "1", "--json"],
    "mpsq.gc/1": ["gc", "--keep", "last:0", "--dry-run", "--json"],
    "mpsq.sql/1": ["db", "sql", "SELECT run FROM v_run", "--json"],
    "mpsq.export/1": ["export", "--to", "csv", "out", "1", "--json"],
    "mpsq.report/1": ["report", "--json"],
    "mpsq.reports/1": ["report", "--list", "--json"],
    "mpsq.merge/1": ["import", "BUNDLE", "--json"],
    "mpsq.import/1": ["import", "LOG", "--set", "device=mps", "--json"],
    "mpsq.workloads/1": ["workloads", "--json"],
    "mpsq.workload/1": ["workloads", "toy", "--json"],
    "mpsq.workload.new/1": ["workloads", "new", "mine", "--json"],
    "mpsq.envs/1": ["env", "list", "--json"],
    "mpsq.config/1": ["config", "list", "--json"],
    "mpsq.db.check/1": ["db", "check", "--json"],
    "mpsq.doctor/1": ["doctor", "--json"],
    "mpsq.schedules/1": ["schedule", "list", "--json"],
    "mpsq.schedule.add/1": ["schedule", "add", "0 2 * * *", "--json", "--", "toy"],
    "mpsq.service/1": ["service", "status", "--json"],
}


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    full_queue(home)
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    (tmp_path / "LOG").write_text(
        "iter 0: loss 4.2874, time 2000.00ms, mfu -100.00%\niter 1: loss 4.1, time 20.00ms, mfu 1.0%\n"
    )
    monkeypatch.chdir(tmp_path)
    return Cli(capsys)


@pytest.mark.parametrize("name", LINES)
def test_output_is_as_documented(name: str, mpsq: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "mpsq.doctor/1":
        _without_torch(monkeypatch)
    if name == "mpsq.service/1":
        _with_a_service(monkeypatch)
    if name == "mpsq.envs/1":
        stand_in_venv(home, "nightly", torch="2.14.0")
    if name == "mpsq.merge/1":
        Path("BUNDLE").write_bytes(bundles_support.exported(bundles_support.sender(home.parent / "sender")))
    if name.startswith("mpsq.schedule"):
        mpsq.ok("schedule", "add", "0 2 * * *", "--name", "nightly", "--", "toy")
    ran = mpsq(*LINES[name])
    assert ran.code in (0, 1), ran
    Draft202012Validator(schemas()[name]).validate(ran.json())


def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from queue_runner.host import compiler, torch_probe

    found = torch_probe.Torch("2.13.0", None, False, None, {"cpu": ("computes", ""), "mps": ("absent", "")})
    monkeypatch.setattr(torch_probe, "probe", lambda *_: found)
    monkeypatch.setattr(torch_probe, "others", lambda *_: {"mlx": ("0.32.4", "libmlx.so is missing")})
    monkeypatch.setattr(compiler, "probe", lambda: compiler.Check("compiler", "ok", "compiles"))


def _with_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from queue_runner.host import services
    from queue_runner.host.services.user_service import ServiceStatus

    status = ServiceStatus(True, True, 7, "running as 7", (("it is old", "install it again"),))
    fake = SimpleNamespace(kind="launchd", status=lambda: status)
    monkeypatch.setattr(services, "for_this_machine", lambda *_: fake)


def test_the_page_documents_every_schema_that_the_commands_print() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "queue_runner").rglob("*.py"))
    printed = set(re.findall(r'"(mpsq\.[\w.]+/\d+)"', code))
    need_a_worker = {"mpsq.run/1", "mpsq.judge/1", "mpsq.contest/1", "mpsq.bisect/1"}
    assert printed == set(schemas()) == set(LINES) | need_a_worker
    Draft202012Validator.check_schema({"$defs": schemas()["mpsq.list/1"]["$defs"]})


def test_every_reading_command_has_json() -> None:
    from typer.main import get_command

    from queue_runner.cli.main import app

    root = get_command(app)
    context = root.make_context("mpsq", [], resilient_parsing=True)
    without = {*("worker", "logs", "service", "config", "db", "schedule", "completion", "env", "web", "contest", "on")}
    for name in set(commands()) - without - {"mcp"}:
        command = root.get_command(context, name)  # type: ignore[attr-defined]
        assert any("--json" in parameter.opts for parameter in command.params), name


def test_colour_is_never_used(mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "FORCE_COLOR", "1")
    for line in (["status"], ["list"], ["--help"], ["nonsense"]):
        ran = mpsq(*line)
        assert "\x1b" not in ran.out + ran.err
