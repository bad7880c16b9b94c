"""mpsq mcp: the real server over stdin and stdout, by the SDK's own client.

The SDK is imported by the tests that use it: each process that collects tests would take most of a second for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from queue_runner.cli.main import main
from queue_runner.paths import Layout
from queue_runner.referee import answer
from queue_runner.store import jobs
from queue_runner.store.engine import open_engine, writing
from tests.cli_support import full_queue
from tests.patience import UNTIL_S, patience
from tests.queue_support import Queue
from tests.referee.referee_support import FAST, SLOW, Repository

if TYPE_CHECKING:
    from mcp.client.client import Client

pytestmark = pytest.mark.process


class Tools:
    """The tools of a server, as another program calls them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        result = await self._client.call_tool(tool, arguments)
        assert not result.is_error, result
        assert isinstance(result.structured_content, dict)
        return result.structured_content

    async def list(self) -> Any:
        return await self._client.list_tools()

    async def error(self, tool: str, /, **arguments: Any) -> str:
        result = await self._client.call_tool(tool, arguments)
        assert result.is_error
        return str(getattr(result.content[0], "text", ""))


def with_tools(layout: Layout, use: Callable[[Tools], Awaitable[None]]) -> None:
    """Start the server as another program does, and use its tools."""
    from mcp import StdioServerParameters
    from mcp.client.client import Client

    environment = {**os.environ, "MPSQ_HOME": str(layout.home)}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "queue_runner.cli", "mcp"], env=environment, cwd=str(layout.home)
    )

    async def session() -> None:
        async with Client(server) as client:
            await use(Tools(client))

    asyncio.run(session())


async def until(tools: Tools, tool: str, done: Callable[[dict[str, Any]], bool], **arguments: Any) -> dict[str, Any]:
    start = time.monotonic()
    while not done(answer := await tools(tool, **arguments)):
        assert time.monotonic() - start < patience(UNTIL_S), answer
        await asyncio.sleep(0.1)
    return answer


def test_a_command_is_queued_followed_read_and_reported(queue: Queue, tmp_path: Path) -> None:
    queue.worker()

    async def use(tools: Tools) -> None:
        options = {"cwd": str(tmp_path), "name": "hello", "repeats": 2}
        group = await tools("submit", command=[sys.executable, "-c", "print('good day')"], options=options)
        assert group == {"group": "g1", "jobs": [1]}
        ended = await until(tools, "status", lambda now: all(r["outcome"] for r in now["runs"]), ids=["g1"])
        assert ended["worker"] and [run["outcome"] for run in ended["runs"]] == ["SUCCEEDED"] * 2
        assert (await tools("logs", id="1.2")) == {"run": "1.2", "text": "good day\n"}
        rows = (await tools("report", name="time", ids=["g1"]))["rows"]
        assert [row["run"] for row in rows] == ["1.1", "1.2"] and rows[0]["real_s"] > 0

    with_tools(queue.layout, use)


def test_a_mistake_is_a_sentence_with_its_remedy(queue: Queue) -> None:
    async def use(tools: Tools) -> None:
        assert 'no option "repeat"' in await tools.error("submit", command=["true"], options={"repeat": 2})
        assert "there is no" in await tools.error("logs", id="99")
        assert "1 to 1000" in await tools.error("logs", lines=0)
        assert 'no report "device"' in await tools.error("report", name="device")
        assert "of mpsq judge" in await tools.error("judgement", group=str(queue.submit("true")))
        names = {tool.name: tool for tool in (await tools.list()).tools}
        assert {*names} == {"submit", "status", "judge", "judgement", "report", "logs"}
        assert all(tool.output_schema and tool.description for tool in names.values())

    with_tools(queue.layout, use)


@pytest.mark.needs_program("git")
def test_a_faster_commit_is_kept(queue: Queue, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "code")
    repository.commit(SLOW, "slow")
    repository.commit(FAST, "fast")
    queue.worker()

    async def use(tools: Tools) -> None:
        versions = {"champion": "slow", "candidate": "fast", "cwd": str(repository.folder)}
        judged = await tools("judge", command=["sh", "train.sh"], options={"no_gate": True}, **versions)
        answer = await until(tools, "judgement", lambda now: bool(now["is_final"]), group=judged["group"])
        assert answer["answer"] == "keep" and answer["rounds"] >= 3
        assert "candidate is faster" in answer["reasons"][0]

    with_tools(queue.layout, use)


@pytest.mark.needs_program("git")
def test_a_metric_of_which_more_is_better(queue: Queue, tmp_path: Path) -> None:
    from queue_runner.mcp import tools

    repository = Repository(tmp_path / "code")
    repository.commit(SLOW, "slow")
    repository.commit(FAST, "fast")
    options = {"metric": {"accuracy": "accuracy ([0-9.]+)"}}
    tools.judge("slow", "fast", ["sh", "train.sh"], str(repository.folder), options, higher=True)
    with contextlib.closing(sqlite3.connect(queue.layout.db)) as connection:
        assert '"higher":true' in connection.execute("SELECT until FROM groups").fetchone()[0]


def test_an_answer_whose_rounds_end_while_it_is_read_is_not_final_yet(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    from queue_runner.mcp import tools

    queue.submit("true")
    read = answer.of_group

    def ends_then(layout: Layout, group: int) -> answer.JudgedGroup:
        judged = read(layout, group)
        with contextlib.closing(sqlite3.connect(layout.db)) as connection, connection:
            connection.execute("UPDATE groups SET closed_at = 1.0, closed_why = 'keep: faster'")
        return judged

    with contextlib.closing(sqlite3.connect(queue.layout.db)) as connection, connection:
        connection.execute("UPDATE groups SET until = 'judge {}'")
    monkeypatch.setattr(answer, "of_group", ends_then)
    assert [tools.judgement("g1").is_final for _ in range(2)] == [False, True]


def test_without_the_package_it_says_what_to_install(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["mcp"]) == 2
    assert "pip install 'mcp>=2,<3'" in capsys.readouterr().err


def test_status_has_the_runs_of_every_lane(home: Path) -> None:
    from queue_runner.mcp import tools

    layout = full_queue(home)
    with writing(open_engine(layout.db)) as connection:
        assert jobs.claimed(connection, 6, "cpu:1", "ab" * 16, "boot", time.time())
    runs = {run.run: run.state for run in tools.status().runs}
    assert runs == {"4.1": "RUNNING", "5.1": "RUNNING", "6.1": "QUEUED"}
