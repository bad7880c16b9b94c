"""The remote lanes of a worker with a stand-in of a target: what is decided when answers are lost or are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_runner.paths import Layout
from queue_runner.remote import block
from queue_runner.remote.answers import Unreachable
from tests.remote.block_support import Front

pytestmark = pytest.mark.process


@pytest.fixture
def front(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Front:
    return Front(layout, tmp_path / "shared", monkeypatch)


def test_a_block_that_was_made_void_has_not_started(front: Front) -> None:
    """The worker has died between the fence and its transaction."""
    front.blocks.step()
    assert block.take_fence(front.folder(), {"void": "by the front"})
    assert not front.target.has_started(front.target.sent[0]) and front.target.void(front.target.sent[0])
    another = front.worker()
    for _ in range(3):
        another.step()
    assert front.row()["outcome"] is None and len(front.target.sent) == 2


def test_a_start_whose_fence_cannot_be_read_has_started(front: Front) -> None:
    front.blocks.step()
    front.folder().fence.touch()
    assert front.target.has_started(front.target.sent[0]) and not front.target.void(front.target.sent[0])


def test_a_target_that_does_not_answer_when_a_block_is_made_void_is_asked_again(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    front.blocks.step()

    def cut(token: str) -> bool:
        raise Unreachable("cut")

    with monkeypatch.context() as patch:
        patch.setattr(front.target, "void", cut)
        front.blocks.step()
    assert "does not answer" in front.said[-1] and "report" not in front.said[-1]
    front.blocks.step()
    front.blocks.step()
    assert len(front.target.sent) == 2 and front.row()["outcome"] is None
