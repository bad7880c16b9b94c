"""What may be stored and shown: tokens of known formats are hidden in texts, and of a job's environment only variables
on a fixed list have their values in the database (docs/security.md). Nothing is guessed from a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from queue_runner.errors import UsageError

HIDDEN = "[hidden]"

PLACEHOLDER = re.compile(r"\[mpsq-secret-[0-9a-f]{24}\]")
"""Placeholder that earlier versions stored for a secret word (host/job_secrets.py)."""
_TOKEN = re.compile(
    r"""(?<=://)[^\s/:@]*:(?P<url>[^\s/@{}]+)(?=@)"""
    + r"""|(?i:\bbearer\s+)(?P<bearer>[\w.~+/-]{16,}=*)"""
    + r"""|\b(?:gh[pousr]_|github_pat_|hf_|glpat-|npm_|pypi-|sk-|[rs]k_live_|xox[abeprs]-)"""
    + r"""(?=[\w-]{0,200}\d)[\w-]{16,}"""
    + r"""|\bSG\.[\w-]{20,}\.[\w-]{20,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{35}"""
    + r"""|\beyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}\.[\w-]*|\b\d{8,10}:[\w-]{35}\b"""
    + r"""|(?<=//hooks\.slack\.com/services/)(?P<slack>[\w/]+)"""
    + r"""|(?<=/api/webhooks/)(?P<discord>\d+/[\w-]{30,})"""
    + r"""|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*"""
)
"""Tokens and passwords of known formats; where there is a group, it alone is the secret."""
_HIDDEN = re.compile(f"{PLACEHOLDER.pattern}|{_TOKEN.pattern}")

_PUBLIC = re.compile(
    r"(PYTHON|(PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO|TRITON|CUDA|CUBLAS|NCCL|MLX|METAL|MPS|JAX|XLA|OMP|MKL|OPENBLAS"
    r"|VECLIB|NUMEXPR|KMP|GOMP|MALLOC)_|(OMP|MKL|DEV|LD_PRELOAD)$)"
)
"""Names of the variables whose values may be stored and shown. Every one of a run's fingerprint is among them."""
_TERMINAL = frozenset({"_", "SHLVL", "OLDPWD", "PWD", "TERM", "COLUMNS", "LINES", "PS1", "WINDOWID", "STY"})
"""Variables of the submitting terminal; a job has no terminal."""


def is_public(name: str, value: str) -> bool:
    """Return whether the value of a variable of a job may be stored in the database and shown."""
    return _PUBLIC.match(name) is not None and _HIDDEN.search(value) is None


def private(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose values may not be stored; the placeholder of a secret may."""
    return {
        name: value
        for name, value in env.items()
        if not is_public(name, value) and PLACEHOLDER.fullmatch(value) is None
    }


def has_token(text: str) -> bool:
    """Return whether a text contains a token or a password of a known format."""
    return _TOKEN.search(text) is not None


def inherited(source: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job inherits: neither ours (MPSQ_*) nor the terminal's."""
    return {k: v for k, v in source.items() if not k.startswith(("MPSQ_", "TMUX")) and k not in _TERMINAL}


def assignments(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Parse `K=V` strings into a dict. Raises: UsageError where `=` or the name is missing."""
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f'{option} "{pair}" is not NAME=VALUE', f"write {option} NAME=VALUE")
        if "\0" in pair:
            raise UsageError(f"{option} {name} contains a NUL character", "remove it")
        if name in values:
            raise UsageError(f"{option} {name} is given twice", "give it once")
        values[name] = value
    return values


def redact(argv: Iterable[str]) -> list[str]:
    """Return the command line for display, with its tokens hidden."""
    return replaced(argv, lambda _: HIDDEN)


def replaced(argv: Iterable[str], stand_in: Callable[[str], str]) -> list[str]:
    """Return the words of a command line with `stand_in(token)` in place of each token."""

    def hide(match: re.Match[str]) -> str:
        start, end = (at - match.start() for at in match.span(match.lastgroup or 0))
        return match[0][:start] + stand_in(match[0][start:end]) + match[0][end:]

    return [_HIDDEN.sub(hide, word) for word in argv]


def without_env_values(words: Iterable[str]) -> list[str]:
    """Return a command line of mpsq for display: tokens are hidden, and values of --env that are not public."""
    return replace_env_values(redact(words), f"={HIDDEN}")


def replace_env_values(words: Iterable[str], stand_in: str) -> list[str]:
    """Return a command line of mpsq with `stand_in` for `=VALUE` in each --env whose value is not public."""
    shown: list[str] = []
    options = True
    for word in words:
        prefix = "--env=" if word.startswith("--env=") else ""
        name, equals, value = word.removeprefix(prefix).partition("=")
        if options and equals and (prefix or shown[-1:] == ["--env"]) and not is_public(name, value):
            word = f"{prefix}{name}{stand_in}"
        options = options and word != "--"
        shown.append(word)
    return shown
