"""Jobs of blocks: one that reports iterations, and one that waits until the test lets it go on."""

from __future__ import annotations

from tests.queue_support import Queue, until

EVENTS = """
say() { printf '%s\\n' "$1" >> $MPSQ_EVENTS; }
say '{"type":"hello","v":1,"t":0,"workload":"w","framework":"torch","device":"cpu","dtype":"fp32","compile":false}'
say '{"type":"phase","t":0.1,"name":"measure","edge":"begin"}'
for i in 1 2 3; do
    say '{"type":"iter","t":0.'$i',"i":'$i',"dur_s":0.1,"loss":1.0,"phase":"measure","synced":true}'
done
"""
GATED = "echo began >> $J; while [ ! -e $J.go ]; do sleep 0.05; done; echo $MPSQ_RUN >> $J"
LIMIT_S = 60.0


def began(front: Queue) -> None:
    until(lambda: "began" in front.written(), lambda: f"the first run\n{front.log()}", LIMIT_S)


def go(front: Queue) -> None:
    front.journal.with_name(front.journal.name + ".go").touch()


def each_once(front: Queue, job: int, repeats: int) -> None:
    """All succeeded, and each ran exactly once."""
    rows = front.done(repeats, LIMIT_S)
    assert [row["outcome"] for row in rows] == ["SUCCEEDED"] * repeats, front.log()
    ran = [line for line in front.written() if line != "began"]
    assert sorted(ran) == [f"{job}.{n}" for n in range(1, repeats + 1)]
    assert front.written().count("began") == repeats
