"""A secret of --secret is the content of a private file."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_runner.errors import UsageError
from queue_runner.host import job_secrets
from queue_runner.paths import Layout


def secret(layout: Layout, name: str, text: str) -> Path:
    layout.secrets.mkdir(mode=0o700)
    path = layout.secrets / name
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_named_secret_is_the_content_of_a_private_file(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    path = secret(layout, "HF_TOKEN", "abc\n")
    assert job_secrets.named(layout, ["HF_TOKEN"]) == {"HF_TOKEN": "abc"}
    assert job_secrets.check_names(layout, ["HF_TOKEN", "HF_TOKEN"]) == ("HF_TOKEN",)
    path.chmod(0o640)
    with pytest.raises(UsageError, match="other users can read") as caught:
        job_secrets.check_names(layout, ["HF_TOKEN"])
    assert f"chmod 600 {path}" in caught.value.hint
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="not a file of yours"):
        job_secrets.check_names(layout, ["HF_TOKEN"])


@pytest.mark.parametrize("name", ["", "a/b", "../x", "MPSQ_HOME", ".words", "A=B"])
def test_a_name_is_that_of_a_variable(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a variable"):
        job_secrets.check_names(Layout(tmp_path), [name])


def test_without_a_file_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no secret HF_TOKEN") as caught:
        job_secrets.check_names(Layout(tmp_path), ["HF_TOKEN"])
    assert f"cat > {tmp_path}/secrets/HF_TOKEN" in caught.value.hint
