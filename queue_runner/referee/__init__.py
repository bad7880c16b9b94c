"""A referee for changes: `mpsq judge` keeps or discards a candidate by rounds against the champion.

`trees` finds what the two names mean. `request` makes one submission of two rows. After each round the worker calls
`goal.look`, which puts the `evidence` of analysis/ before `decision.decide`; `judge_command` prints the same decision.
"""

from queue_runner.errors import UsageError
from queue_runner.extensions import AddedCommand, Extension

EXTENSION = Extension(
    commands={
        "judge": AddedCommand(
            "Submit", "keep or discard a change", "queue_runner.referee.judge_command", UsageError.exit_code
        )
    },
    goals={"judge": "queue_runner.referee.goal:look"},
)
