"""mpsq config: what it prints."""

from __future__ import annotations

import json
from pathlib import Path

from queue_runner.host.redact import HIDDEN
from tests.cli_support import Cli


def test_every_setting_is_listed(mpsq: Cli, home: Path) -> None:
    """A profile ended it with a traceback."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('[peak_tflops]\nmps = 10.6\n[on.slurm]\nfolder = "/shared"\ngpus = "2"\n')
    listed = mpsq.ok("config", "list").out
    assert "mps=10.6" in listed and "slurm.folder=/shared" in listed and "slurm.gpus=2" in listed


def test_a_list_of_settings_has_no_secrets(mpsq: Cli, home: Path) -> None:
    line = "curl -H 'Authorization: Bearer abcdef0123456789abcdef' https://h"
    mpsq.ok("config", "set", "hook_done", line)
    mpsq.ok("config", "set", "on.box.ssh", "-o ProxyCommand='x https://me:abcdef@host'")
    listed = mpsq.ok("config", "list", "--json").out
    assert "abcdef" not in mpsq.ok("config", "list").out + listed and HIDDEN in listed
    assert json.loads(listed)["schema"] == "mpsq.config/1"
