"""The commands, between two queues that are two machines by the tests' stand-in identity."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from queue_runner.cli.main import main
from tests import forked_programs
from tests.bundles.bundles_support import text_of
from tests.queue_support import ANY_MACHINE

pytestmark = pytest.mark.process

TRAINER = """
import json, os
out = open(os.environ["MPSQ_EVENTS"], "a")
def say(**event): out.write(json.dumps({"v": 1, **event}) + "\\n")
say(type="hello", t=0.0, workload="toy", framework="torch", device="cpu", dtype="fp32", config="tiny", compile=False)
for i in range(12): say(type="iter", t=0.001 * i, i=i, dur_s=0.001, phase="measure", synced=True)
say(type="note", t=0.1, kind="op_fallback", text="at /home/alice/train.py api_key=sk-abc0123456789defghijklmn")
"""


@dataclass(frozen=True)
class Done:
    out: bytes
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Machine:
    """A home with a machine of its own. Commands run in this process, workers in theirs."""

    def __init__(self, name: str, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]) -> None:
        self.home = Path(name).absolute()
        self.home.mkdir()
        (self.home / "config.toml").write_text("min_free_bytes = 0\n" + ANY_MACHINE)
        self._own = {"MPSQ_HOME": str(self.home), "MPSQ_LOCKS": str(self.home / "locks"), "MPSQ_TEST_MACHINE": name}
        self._patch, self._capture = patch, capture

    def __call__(self, *words: str, code: int = 0) -> Done:
        for name, value in self._own.items():
            self._patch.setenv(name, value)
        self._capture.readouterr()
        ended = main(list(words))
        out, err = self._capture.readouterr()
        done = Done(out, err.decode())
        assert ended == code and "Traceback" not in done.err, (words, done)
        return done

    def measure(self, repeats: int) -> None:
        trainer = (sys.executable, "-I", "-S", "train.py", "--api-key", "ghp_hunter2hunter2hunter2")
        self("submit", "--repeats", str(repeats), "--env", "BAR=value-of-bar", "--allow-plain", "--", *trainer)
        forked_programs.work(**self._own)


@pytest.fixture
def capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> pytest.CaptureFixture[bytes]:
    """Two machines share this folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOO_OF_THE_SHELL", "value-of-foo")
    (tmp_path / "train.py").write_text(TRAINER)
    return capsysbinary


def test_results_travel_and_machines_stay_apart(
    monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]
) -> None:
    alpha, beta = (Machine(name, monkeypatch, capture) for name in ("alpha", "beta"))
    alpha.measure(2)
    data = alpha("export", "--bundle", "g1").out
    text = text_of(data)
    secrets = ("alice", "sk-abc", "hunter2", "value-of-foo", "value-of-bar", str(alpha.home))
    assert [secret for secret in secrets if secret in text or secret.encode() in data] == []
    assert data == alpha("export", "--bundle", "1").out
    own = alpha("report", "--json").json()["rows"]
    assert [row["factors"].pop("BAR")[0] for row in own] == ["#"]
    assert "'BAR': '[hidden-" in text.replace('"', "'")

    Path("g1.mpsq").write_bytes(data)
    first = beta("import", "g1.mpsq")
    assert b"g1 g1.mpsq: 2 new runs of 1 new job, 24 iterations" in first.out
    assert "hashes detect damage" in first.err
    again = beta("import", "g1.mpsq", "--json").json()["bundles"][0]
    assert (again["runs"], again["known"], again["groups"]) == (0, 2, ["g1"])
    assert [{**row, "factors": {}} for row in beta("report", "--json").json()["rows"]] == own

    beta.measure(1)
    report = beta("report", "--explain").out.decode()
    assert "(merged)" in report and "never compared" in report and "speedup" not in report
    gallery = beta("report", "gallery").out.decode()
    assert "(merged)" in gallery and "never compared" in " ".join(gallery.split())
    assert max(map(len, gallery.splitlines())) <= 80
    rows = beta("report", "gallery", "--json").json()["rows"]
    assert [(row["merged"], row["n_runs"], row["settings"]) for row in rows] == [(False, 1, {}), (True, 2, {})]
    assert len({row["machine"] for row in rows}) == 2

    for verb in (["rerun", "1"], ["retry", "1", "--all"], ["logs", "1.1"], ["edit", "1", "--priority", "3"]):
        assert beta(*verb, code=1 if verb[0] == "logs" else 2).err.startswith("error: ")
    for verb in (["show", "1.1"], ["why", "1.1"], ["list", "--all"], ["gc", "--keep", "0d", "--yes"]):
        beta(*verb)
    assert not re.search(rb"(?<!\d)1\.1", beta("status").out)  # nor is it in "51.1 GiB free"
    assert beta("report", "missing", "g1", "--json").json()["rows"] == []
    assert beta("report", "gallery", "--json").json()["rows"] == rows, "gc left the numbers"
    beta("export", "--bundle", "g1", code=2)
    beta("delete", "1", "--results", "--yes")
    assert b"2 new runs of 1 new job" in beta("import", "g1.mpsq").out


def test_a_command_from_a_clean_checkout_travels_without_its_code(
    monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]
) -> None:
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "trainer"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], check=True)
    alpha, beta = (Machine(name, monkeypatch, capture) for name in ("alpha", "beta"))
    alpha.measure(1)
    Path("g1.mpsq").write_bytes(alpha("export", "--bundle", "g1").out)
    assert b"1 new run of 1 new job" in beta("import", "g1.mpsq").out


def test_mistakes_are_sentences(monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]) -> None:
    alpha = Machine("alpha", monkeypatch, capture)
    assert "no queue here" in alpha("export", "--bundle", "g1", code=1).err
    Path("damaged.mpsq").write_bytes(b"\x1f\x8b\x08 no bundle")
    assert "bundle is refused" in alpha("import", "damaged.mpsq", code=1).err
    assert "cannot be read" in alpha("import", "none", code=2).err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert "it is empty" in alpha("import", "-", code=1).err
    assert "no other option" in alpha("export", "out", "--bundle", "g1", code=2).err
    assert 'export to "bundle"' in alpha("export", "--to", "bundle", "out", code=2).err
    assert "no group g1" in alpha("export", "--bundle", "g1", code=2).err
