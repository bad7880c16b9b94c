"""A referee for changes: `mpsq judge` keeps or discards a candidate by rounds against the champion.

`trees` finds what the two names mean. `request` makes one submission of two rows. After each round the worker calls
`goal.look`, which puts the `evidence` of analysis/ before `decision.decide`; `judge_command` prints the same decision.
`sealed` starts each run, and `evaluation` ends it. `contest` reads many judgements as one night.

`bisection` decides which two versions `bisect_search` submits next, and `bisect_goal` when their rounds end.
"""

from queue_runner.errors import UsageError
from queue_runner.extensions import AddedCommand, Extension

EXTENSION = Extension(
    commands={
        "judge": AddedCommand(
            "Submit", "keep or discard a change", "queue_runner.referee.judge_command", UsageError.exit_code
        ),
        "contest": AddedCommand(
            "Submit", "judge many changes", "queue_runner.referee.contest_command", UsageError.exit_code
        ),
        "bisect": AddedCommand("Submit", "find the change", "queue_runner.referee.bisect_command"),
    },
    goals={
        "judge": "queue_runner.referee.goal:look",
        "confirm": "queue_runner.referee.goal:look_at_end",
        "contest": "queue_runner.referee.contest:look",
        "bisect": "queue_runner.referee.bisect_goal:look",
    },
    status_lines="queue_runner.referee.contest:status_lines",
    refuses_erasure="queue_runner.referee.contest:refuse_erasure",
)
