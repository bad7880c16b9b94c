"""The seed of a run: each round has its own, which its rows share, unless the user has chosen one."""

from __future__ import annotations

from typing import Any

import pytest

from queue_runner.control import new_attempts
from queue_runner.model import parse_selector
from queue_runner.submit import plan
from tests.patience import UNTIL_S
from tests.queue_support import Queue
from tests.submit_support import requested

pytestmark = pytest.mark.process

WORKLOAD = '''
"""A workload that only writes down how it was started."""
WORKLOAD = {
    "name": "seeds",
    "framework": "torch",
    "prepares": True,
    "about": "A workload for tests.",
    "source": "nowhere",
    "params": {"max_iters": {"default": 1, "unit": "iterations", "help": "how many"}},
    "configs": {},
}
import os, pathlib, sys
if "MPSQ_PREPARE" in os.environ:
    path = pathlib.Path(os.environ["MPSQ_PREPARED"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as prepared:
        prepared.write("x")
else:
    with open(os.environ["JOURNAL"], "a") as journal:
        run, seed, prepared = (os.environ[f"MPSQ_{name}"] for name in ("RUN", "SEED", "PREPARED"))
        print(run, sys.argv[sys.argv.index("--seed") + 1], seed, prepared, file=journal)
'''


def written(queue: Queue) -> dict[str, list[str]]:
    """The rest of the line that each run wrote."""
    return {run: words for run, *words in (line.split() for line in queue.written())}


def test_a_command_gets_the_seed_of_its_round_and_a_retry_keeps_it(queue: Queue) -> None:
    script = 'echo "$MPSQ_RUN $MPSQ_SEED" >> $J; [ "$MPSQ_RUN" != 1.2 ]'
    job = queue.submit(script, repeats=3, retries=1)
    queue.worker("", "--until-idle").wait(UNTIL_S)
    expected = {"1.1": ["1337"], "1.2": ["1338"], "1.3": ["1339"], "1.4": ["1338"]}
    assert job == 1 and written(queue) == expected
    new_attempts.retry(queue.layout, [parse_selector("1.3")], succeeded_too=True)
    queue.worker("", "--until-idle")
    queue.done(5)
    assert written(queue) == {**expected, "1.5": ["1339"]}


def test_a_chosen_seed_is_that_of_every_round(queue: Queue) -> None:
    queue.submit('echo "$MPSQ_RUN $MPSQ_SEED" >> $J', repeats=2, seed=7)
    queue.worker("", "--until-idle")
    queue.done(2)
    assert written(queue) == {"1.1": ["7"], "1.2": ["7"]}


@pytest.mark.parametrize("seed", [None, 7])
def test_the_rows_of_a_round_share_a_seed_and_prepared_values(queue: Queue, seed: int | None) -> None:
    queue.layout.workloads.mkdir(exist_ok=True)
    (queue.layout.workloads / "seeds.py").write_text(WORKLOAD)
    options: dict[str, Any] = {"cwd": str(queue.folder), "home": str(queue.layout.home), "seed": seed}
    env = (f"JOURNAL={queue.journal}",)
    request = requested(workload="seeds", device="cpu", compile="both", repeats=2, preflight=False, env=env, **options)
    plan.store(queue.layout, plan.plan(request))
    queue.worker("", "--until-idle").wait(UNTIL_S)
    seeds = ["1337", "1338"] if seed is None else ["7", "7"]
    runs = written(queue)
    assert {run: words[:2] for run, words in runs.items()} == {
        f"{job}.{number}": [seeds[number - 1]] * 2 for job in (1, 2) for number in (1, 2)
    }
    assert runs["1.1"][2] == runs["2.1"][2] and runs["1.2"][2] == runs["2.2"][2]
    assert (runs["1.1"][2] == runs["1.2"][2]) == (seed is not None)
