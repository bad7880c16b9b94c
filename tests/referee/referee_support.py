"""A repository whose versions differ in speed and loss, and the commands that judge them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from tests import forked_programs
from tests.cli_support import schemas

MPSQ = [sys.executable, "-m", "queue_runner.cli.main"]
LOSS = ("--metric", "loss=loss ([0-9.]+)")
TRAIN = ("--", "sh", "train.sh")
BRIEFLY = ("--budget", "0.1s", "--timeout", "60s")
"""One round, and no other."""
SLOW = 'cat data/x >&2; echo "time ${MPSQ_TIME_BUDGET_S-free}"; echo "loss 1.$MPSQ_SEED"; sleep 0.5\n'
FAST = SLOW.replace("sleep 0.5", "sleep 0")
WORSE = FAST.replace("loss 1", "loss 9")


@dataclass(frozen=True)
class Answered:
    """How a judgement ended: its exit code, its JSON if any, and what it printed."""

    code: int
    json: dict[str, Any]
    text: str

    @property
    def reasons(self) -> str:
        return "; ".join(self.json["reasons"])


class Repository:
    """A repository with a training script and data that git ignores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "x").write_text("data\n")
        (folder / ".gitignore").write_text("data/\n")
        self.git("init", "-q", "-b", "main")
        for key, value in (("user.name", "A"), ("user.email", "a@example.com"), ("gc.auto", "0")):
            self.git("config", key, value)

    def git(self, *words: str) -> None:
        subprocess.run(["git", "-C", str(self.folder), *words], check=True, capture_output=True)

    def write(self, text: str, name: str = "train.sh") -> None:
        (self.folder / name).write_text(text)

    def commit(self, text: str, tag: str, name: str = "train.sh") -> None:
        self.write(text, name)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", tag)
        self.git("tag", tag)

    def judge(self, champion: str, candidate: str, *words: str) -> Answered:
        return self.mpsq("judge", "--champion", champion, "--candidate", candidate, "--no-gate", *words)

    def mpsq(self, command: str, *words: str) -> Answered:
        """Run a command with --json, which it must not have after --."""
        ran = forked_programs.run(command, *self._with_json(words), cwd=self.folder)
        answer = json.loads(ran.stdout) if ran.stdout else {}
        if answer:
            Draft202012Validator(schemas()[answer["schema"]]).validate(answer)
        return Answered(ran.returncode, answer, ran.stdout + ran.stderr)

    @staticmethod
    def _with_json(words: Sequence[str]) -> list[str]:
        at = words.index("--") if "--" in words else len(words)
        return [*words[:at], "--json", *words[at:]]


TRAINER = """
import json, os, time
seed, began = int(os.environ["MPSQ_SEED"]), time.perf_counter()
PLANNED, DONE, SYNCED, SHARE, DATA, SEED = 10, 10, True, 1.0, "a" * 64, seed
events = open(os.environ["MPSQ_EVENTS"], "a", buffering=1)
def put(type, **fields):
    events.write(json.dumps({"type": type, "t": time.perf_counter() - began, **fields}) + "\\n")
put("hello", v=1, planned_iters=PLANNED, seed=SEED, data={"name": "x", "sha256": DATA})
for i in range(DONE):
    at = time.perf_counter()
    time.sleep(0.02)
    put("iter", i=i, dur_s=SHARE * (time.perf_counter() - at), synced=SYNCED)
open("model", "w").write(str(seed))
print(f"loss 1.{seed}")
"""
"""An honest training program, in which a candidate changes a value or a line."""
EVALUATION = 'echo "loss 5.$(cat "$MPSQ_TRAINED/model")"\n'
