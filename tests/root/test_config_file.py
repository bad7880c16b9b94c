"""config.toml: typed values or a sentence; setting a value leaves the rest of the file alone."""

from __future__ import annotations

import dataclasses
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_runner import config_file
from queue_runner.config_file import KEYS, Config
from queue_runner.errors import MpsqError, UsageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_every_key_has_a_field_and_every_field_a_key(path: Path) -> None:
    assert set(KEYS) == {f.name for f in dataclasses.fields(Config)}
    assert all(
        key.help and (key.unit == key.name.rsplit("_", 1)[-1] or not key.name.endswith(("_s", "_bytes")))
        for key in KEYS.values()
    )


def test_no_file_means_defaults(path: Path) -> None:
    assert config_file.load(path) == Config()
    assert config_file.load(path).grace_int_s == KEYS["grace_int_s"].default == 5.0


def test_values_are_typed(path: Path) -> None:
    path.write_text(
        "\ufeffgrace_int_s = 0\noutput_limit_bytes = 1_000_000\nkeep_awake = false\n[peak_tflops]\nmps = 10\n"
    )
    loaded = config_file.load(path)
    assert loaded.grace_int_s == 0.0 and isinstance(loaded.grace_int_s, float)
    assert (loaded.output_limit_bytes, loaded.keep_awake, loaded.peak_tflops) == (1_000_000, False, {"mps": 10.0})
    assert loaded.grace_term_s == 5.0


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("grace_int = 3", 'unknown setting "grace_int"', "grace_int_s"),
        ("grace_int_s = true", "grace_int_s takes a time in seconds, not true", ""),
        ('grace_int_s = "5"', 'grace_int_s takes a time in seconds, not "5"', ""),
        ("grace_int_s = -1", "grace_int_s cannot be -1 s: between 0 and 86400", ""),
        ("grace_int_s = nan", "grace_int_s cannot be nan s", ""),
        ("cooldown_s = inf", "cooldown_s cannot be inf s", ""),
        ("output_limit_bytes = 1.5", "takes a size in bytes, not 1.5", ""),
        ("output_limit_bytes = 99999999999999999999", "cannot be 99999999999999999999 bytes: at least 4096", ""),
        ("keep_awake = 1", "keep_awake takes true or false, not 1", ""),
        ('service_label = "no/slash"', 'service_label cannot be "no/slash"', "dev.mpsq.worker"),
        ("peak_tflops = 10", "peak_tflops takes a table of numbers, not 10", "peak_tflops.mps"),
        ('peak_tflops.mps = "x"', 'peak_tflops.mps takes a number, not "x"', ""),
        ("[grace_int_s]\nx = 1", "takes a time in seconds, not", ""),
        ("grace_int_s = 5\ngrace_term_s 5\n", "line 2: ", "key = value"),
        ("a = 1\na = 2", "line 2: Cannot overwrite a value: a = 2", ""),
        ("x = [", "line 1", ""),
    ],
)
def test_a_bad_file_has_a_sentence(path: Path, text: str, said: str, hint: str) -> None:
    path.write_text(text)
    with pytest.raises(MpsqError) as caught:
        config_file.load(path)
    assert str(path) in caught.value.message and said in caught.value.message
    assert hint in caught.value.hint and caught.value.hint


def test_what_is_no_text_file_has_a_sentence(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MpsqError, match="not UTF-8"):
        config_file.load(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(MpsqError, match="cannot be read: Is a directory"):
        config_file.load(path)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("grace_int_s", "30s", 30.0),
        ("grace_int_s", "1m30s", 90.0),
        ("grace_int_s", "0", 0.0),
        ("output_limit_bytes", "2GiB", 2**31),
        ("keep_backups", "3", 3),
        ("keep_awake", "Off", False),
        ("service_label", "org.me.queue-2", "org.me.queue-2"),
        ("peak_tflops.cuda:0", "66.9", 66.9),
    ],
)
def test_values_as_typed_come_back_typed(path: Path, name: str, text: str, value: object) -> None:
    assert config_file.set_value(path, name, text) == value
    key, _, entry = name.partition(".")
    stored = getattr(config_file.load(path), key)
    assert (stored[entry] if entry else stored) == value
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("grace_ints", "5"),
        ("grace_int_s.x", "5"),
        ("peak_tflops", "10"),
        ("peak_tflops.", "10"),
        ("peak_tflops.mps", "nan"),
        ("peak_tflops.mps", "fast"),
        ("keep_backups", "0"),
        ("keep_backups", "2.5"),
        ("keep_awake", "perhaps"),
        ("grace_int_s", "soon"),
        ("output_limit_bytes", "many"),
        ("", ""),
    ],
)
def test_a_bad_value_is_a_usage_error_and_leaves_the_file(path: Path, name: str, text: str) -> None:
    path.write_text("# mine\n")
    with pytest.raises(UsageError) as caught:
        config_file.set_value(path, name, text)
    assert caught.value.hint
    assert path.read_text() == "# mine\n"


def test_comments_and_order_stay(path: Path) -> None:
    path.write_text("# my queue\ngrace_int_s = 3.0   # short\n\n[peak_tflops]  # measured\nmps = 9.5\n# end\n")
    config_file.set_value(path, "grace_int_s", "7")
    config_file.set_value(path, "keep_backups", "4")
    config_file.set_value(path, "peak_tflops.mps", "10.5")
    config_file.set_value(path, "peak_tflops.cpu", "0.5")
    assert path.read_text() == (
        "# my queue\ngrace_int_s = 7.0   # short\nkeep_backups = 4\n\n"
        "[peak_tflops]  # measured\nmps = 10.5\n# end\ncpu = 0.5\n"
    )


def test_an_inline_table_stays_one(path: Path) -> None:
    path.write_text("peak_tflops = {mps = 9.5, cpu = 1}  # measured\n")
    config_file.set_value(path, "peak_tflops.mps", "10")
    assert path.read_text() == "peak_tflops = {mps = 10.0, cpu = 1}  # measured\n"


def test_a_linked_file_stays_linked(path: Path) -> None:
    kept = path.with_name("dotfiles.toml")
    path.symlink_to(kept)
    config_file.set_value(path, "keep_backups", "4")
    assert path.is_symlink() and kept.read_text() == "keep_backups = 4\n"


def test_a_broken_file_is_never_overwritten(path: Path) -> None:
    path.write_text("grace_int_s = = 5\n")
    with pytest.raises(MpsqError, match="line 1"):
        config_file.set_value(path, "grace_int_s", "5")
    assert path.read_text() == "grace_int_s = = 5\n"


def test_an_unwritable_place_has_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(MpsqError, match="cannot be written"):
        config_file.set_value(tmp_path / "none" / "config.toml", "grace_int_s", "5")


_names = st.sampled_from(["grace_int_s", "keep_backups", "peak_tflops.mps", "peak_tflops.a b", 'peak_tflops."#='])
_steps = st.lists(st.tuples(_names, st.integers(1, 99)), max_size=8)
_starts = st.sampled_from(
    ["", "# c", "grace_int_s=1#x\n\n[peak_tflops]\r\nmps=2", "peak_tflops.mps = 3\n", "[peak_tflops]", "peak_tflops={}"]
)


@settings(max_examples=30, deadline=None)
@given(start=_starts, steps=_steps)
def test_any_order_of_edits_means_what_was_said(
    tmp_path_factory: pytest.TempPathFactory, start: str, steps: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("c") / "config.toml"
    path.write_text(start)
    wanted = {k: v for k, v in _flat(tomllib.loads(start)).items()}
    for name, value in steps:
        config_file.set_value(path, name, str(value))
        wanted[name] = value
        assert _flat(tomllib.loads(path.read_text())) == wanted
        config_file.load(path)


def _flat(data: dict[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in data.items():
        found |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    return found


def test_a_file_with_a_removed_setting_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('canary = "on"\npoll_s = 2\n')
    assert config_file.load(path).poll_s == 2
    (sentence,) = config_file.removed(path)
    assert "canary" in sentence and str(path) in sentence
    with pytest.raises(UsageError, match="canary was removed"):
        config_file.set_value(path, "canary", "off")
