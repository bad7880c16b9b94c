"""Compute the metric of a judged run with the champion's code: the last step of such a run (sealed.py).

The champion's tree is written anew, beside the run's own, after the program has ended.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from queue_runner import config_file
from queue_runner.host.run_dir import RunDir
from queue_runner.paths import Layout
from queue_runner.referee.evidence import CHAMPION
from queue_runner.source import verify, working_copy
from queue_runner.spec import JobSpec
from queue_runner.store import read
from queue_runner.text import plain

TRAINED = "MPSQ_TRAINED"
"""The variable in which the evaluation reads the folder where the judged program ran."""
_SPEC = """
WITH RECURSIVE origins(id) AS (SELECT :own UNION SELECT rerun_of FROM jobs JOIN origins USING (id))
SELECT spec_json FROM jobs WHERE id = CASE WHEN :job THEN :job ELSE (
    SELECT max(c.id) FROM origins JOIN jobs j USING (id) JOIN jobs c USING (group_id) WHERE c.name = :champion
) END
"""
"""The champion's of this submission or, where it is a rerun of one row, of that which it repeats."""


def main(job: str, command: str, pattern: str, trained: str) -> str:
    """Run the evaluation, and copy what it prints. Return why there is no metric, "" if there is one. `job` is the one
    whose code evaluates; 0: the champion's of this submission."""
    layout, run = Layout(Path(os.environ["MPSQ_HOME"])), os.environ["MPSQ_RUN"]
    folder = RunDir(layout.run_dir(run))
    with read.reading(layout.db) as connection:
        values = {"job": int(job), "champion": CHAMPION, "own": int(run.partition(".")[0])}
        spec = JobSpec.from_json(read.tuples(connection, _SPEC, values).fetchone()[0]).changed(copy=True)
    code = verify.look(layout.snapshots, spec, config_file.load(layout.config).not_code)
    if code.refusal or code.copy is None:
        return f"the champion's code cannot be used: {code.refusal.reason if code.refusal else 'it was not stored'}"
    target = folder.path / "evaluation"
    shutil.rmtree(target, ignore_errors=True)
    try:
        cwd = working_copy.make(layout.snapshots, spec, target, code.copy)
        env = {name: value for name, value in os.environ.items() if name != "MPSQ_EVENTS"} | {TRAINED: trained}
        if path := working_copy.python_path(env.get("PYTHONPATH", ""), spec, code.copy, target):
            env["PYTHONPATH"] = path
        ran = subprocess.run(["sh", "-c", command], cwd=cwd, env=env, stdout=subprocess.PIPE, check=False)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    os.write(1, ran.stdout)
    folder.evaluated.unlink(missing_ok=True)
    with folder.evaluated.open("xb") as log:
        log.write(ran.stdout)
    if ran.returncode:
        return f"--evaluate ended with exit code {ran.returncode}"
    lines = map(plain, ran.stdout.decode("utf-8", "replace").splitlines())
    return "" if any(re.search(pattern, line) for line in lines) else "--evaluate printed nothing that --metric matches"


if __name__ == "__main__":
    if why := main(*sys.argv[1:]):
        sys.exit(f"mpsq judge: {why}")
