"""The filter that tells secrets from other words, by names and by values: what it finds is neither captured from a
submitter's environment nor stored with a job nor shown (docs/security.md).

It is a guess. What it takes for a secret by mistake costs nothing but a look: the words that run are never changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from queue_runner.errors import UsageError

HIDDEN = "[hidden]"

_CERTAIN = re.compile(r"(?:password|passwd|passphrase|secret|credential)s?(?![a-z])", re.IGNORECASE)
"""Anywhere in a name."""
_AT_THE_END = re.compile(
    r"(?:(?:^|[-_.]|auth|access|api|bot|refresh|hf|gh)token|(?-i:(?<=[a-z])Token)"
    r"|(?:^|[-_.]|api|access|private|secret|signing|encryption|ssh)key|apikeys"
    r"|(?:^|[-_.])(?:pat|pwd|auth|cookie|creds?|bearer)|(?:^|[-_.]|db)pw|authorization|(?<!by)(?<!com)(?<!forward_)(?<!backward_)pass)\d*$",
    re.IGNORECASE,
)
"""As the last word of a name: --api-key and auth.token are secrets, --max-tokens and key_dim are not."""
_PASSWORD = re.compile(r"(?:pass|pwd|pw)\d*$", re.IGNORECASE)
"""Of those, names of what may be digits alone: DBPASS=1234, but not N_PASS=3."""
_PIN = re.compile(r"\d{4,}")
_INSIDE = re.compile(r"(?:^|[-_.])(?:token|key|pat|auth|cookie)(?=[-_.])", re.IGNORECASE)
"""Elsewhere in a name: TOKEN_GITHUB holds a secret if its value looks like one, KEY_DIM=64 does not."""
_RANDOM = re.compile(r"(?=[^\s/]*\d)(?=[^\s/]*[A-Za-z])[^\s/]{16,}")
_HARMLESS = re.compile(r"true|false|yes|no|on|off|none|null|[01]?|<[\w/|]{1,20}>|\[[a-z]{2,8}\]", re.IGNORECASE)
"""Values that are no secret under any name: switches, and a tokenizer's words such as <pad> and [CLS]."""
_NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?", re.IGNORECASE)

PLACEHOLDER = re.compile(r"\[mpsq-secret-[0-9a-f]{24}\]")
"""Placeholder in the database for words that are stored apart (host/job_secrets.py)."""
_VALUES = re.compile(
    PLACEHOLDER.pattern
    + r"""|(?<=://)[^\s/:@]*:(?P<url>[^\s/]+)(?=@)"""
    + r"""|(?<=://)(?P<user>(?=[^\s/:@]*\d)(?=[^\s/:@]*[a-z])[^\s/:@]{16,})(?=@)"""
    + r"""|\bauthorization["']?\s*[:=]\s*(?:(?:bearer|basic|token|digest)\s+)?(?P<header>[^\s"',;]+)"""
    + r"""|\bbearer\s+(?P<bearer>[^\s"',;]+)"""
    + r"""|\b(?:password|passwd|pwd|accountkey|sharedaccesskey)\s*=\s*(?P<dsn>[^\s;&"']+)"""
    + r"""|\b(?:gh[pousr]_|github_pat_|hf_|glpat-|npm_|pypi-|sk-|[rs]k_live_|xox[abeprs]-)[\w-]{16,}"""
    + r"""|\bSG\.[\w-]{20,}\.[\w-]{20,}"""
    + r"""|(?<=//hooks\.slack\.com/services/)(?P<hook>[\w/]+)"""
    + r"""|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{35}|\beyJ[\w-]{8,2000}\.[\w-]{8,4000}\.[\w-]*"""
    + r"""|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*""",
    re.IGNORECASE,
)
"""Secrets that show by themselves; where there is a group, it alone is the secret."""

_ASSIGNMENT = re.compile(r"""(?<![\w.-])-{0,2}(?P<name>[A-Za-z_][\w.-]*)["']?(?:=|:\s*)(?=\S)""")
_SPOKEN = re.compile(r"""(?<![\w.-])-{1,2}(?P<name>[A-Za-z_][\w.-]*)\s+(?=[^\s-])""")
_VALUE = re.compile(r"""'[^']*'|"[^"]*"|[^\s;|&"']+""")
_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
_OPTION = re.compile(r"-{1,2}([A-Za-z_][\w.-]*)")
_SHELL = re.compile(r"-[a-z]*c")
_NO_PASSWORD = re.compile(r"[\d.:]+|.*[/\\].*")
"""The word after -p where it names a port or a folder."""
_OTHER_P = frozenset({"mkdir", "cp", "install", "tar", "rsync", "touch", "tee", "time", "read", "pytest"})
"""Programs whose -p is no password."""
_ATTACHED = frozenset({"mysql", "mysqladmin", "mysqldump", "mariadb", "mariadb-dump", "sshpass"})
"""Programs that read -pPASSWORD."""
_USERS = frozenset({"-u", "--user", "-U", "--proxy-user"})
"""Options of curl, for USER:PASSWORD."""
_USER = re.compile(r"(?:-[uU]|--(?:proxy-)?user=)?[^\s:/]+:(?P<user>\S+)")
_SEPARATOR = re.compile(r"[;|&\n({`]")

_OF_THE_TERMINAL = frozenset({"_", "SHLVL", "OLDPWD", "PWD", "TERM", "COLUMNS", "LINES", "PS1", "WINDOWID", "STY"})
"""Variables of the submitting terminal; a job has no terminal."""


@lru_cache(4096)  # the jobs of a grid have the same environment
def is_secret(name: str, value: str) -> bool:
    """Return whether a variable, or an option, of this name and value holds a secret."""
    if _HARMLESS.fullmatch(value):
        return False
    if _CERTAIN.search(name):
        return True
    if _AT_THE_END.search(name) and not _NUMBER.fullmatch(value):
        return True
    if _PASSWORD.search(name) and _AT_THE_END.search(name) and _PIN.fullmatch(value):
        return True
    return bool(_INSIDE.search(name) and _RANDOM.fullmatch(value)) or _VALUES.search(value) is not None


def names_a_secret(name: str) -> bool:
    """Return whether an option of this name holds a secret, whatever its value."""
    return bool(_CERTAIN.search(name) or _AT_THE_END.search(name))


def environment(source: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job inherits: neither ours (MPSQ_*), nor secrets, nor the terminal's."""
    return {
        name: value
        for name, value in source.items()
        if not (name.startswith(("MPSQ_", "TMUX")) or name in _OF_THE_TERMINAL or is_secret(name, value))
    }


def secrets(source: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are never stored: a run gets them from the worker's environment, if set there."""
    return {
        n: v for n, v in source.items() if n not in _OF_THE_TERMINAL and not n.startswith("MPSQ_") and is_secret(n, v)
    }


def assignments(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Parse `K=V` strings into a dict. Raises: UsageError where `=` or the name is missing, or for a name of ours."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f'{option} "{pair}" is not NAME=VALUE', f"write {option} NAME=VALUE")
        if option == "--env" and name.startswith("MPSQ_"):
            raise UsageError(f"{name} is reserved for mpsq", "set it for the worker, not for a job")
        if "\0" in pair:
            raise UsageError(f"{option} {name} contains a NUL character", "remove it")
        found[name] = value
    return found


def redact(argv: Iterable[str]) -> list[str]:
    """Return the command line for display, with `--api-key=...`, the word after `--api-key` and the like hidden."""
    return replaced(argv, lambda _: HIDDEN)


def redact_script(script: str) -> str:
    """Return a command line for a shell with its secrets hidden."""
    return redact(("sh", "-c", script))[2]


def replaced(argv: Iterable[str], stand_in: Callable[[str], str]) -> list[str]:
    """Return the words of a command line with `stand_in(secret)` in the place of each secret."""
    found, before = [], ""
    programs: dict[str, None] = {}
    for word in argv:
        spans = _announced(before, word, programs) or _spans(word, before)
        programs[word.rpartition("/")[2]] = None
        for start, end in reversed(spans):
            word = word[:start] + stand_in(word[start:end]) + word[end:]
        found.append(word)
        before = word
    return found


def _announced(before: str, word: str, programs: Mapping[str, None]) -> list[tuple[int, int]]:
    """Return where a secret is in a word because of the words before it: an option, or the program, which may come
    after a wrapper or `mpsq submit --`."""
    named = before in _USERS or word.startswith(("-u", "-U", "--user=", "--proxy-user="))
    if named and "curl" in programs and (match := _USER.fullmatch(word)):
        return [match.span("user")]
    if not _ATTACHED.isdisjoint(programs):
        if word.startswith("-p") and len(word) > 2:
            return [(2, len(word))]
        if before == "-p" and not word.startswith("-"):
            return [(0, len(word))]
    return [(0, len(word))] if _is_announced(before, word, next(iter(programs), "")) else []


def _is_announced(before: str, word: str, program: str) -> bool:
    if word.startswith("-"):
        return False
    if before == "-p":
        return program not in _OTHER_P and not _NO_PASSWORD.fullmatch(word)
    option = _OPTION.fullmatch(before)
    name = option[1] if option else before.lower() if before.lower() == "bearer" else ""
    return names_a_secret(name) and is_secret(name, word)


@lru_cache(4096)
def _spans(word: str, before: str) -> list[tuple[int, int]]:
    """Return where secrets are in a word, which may be a whole script after `sh -c`; overlapping ones are one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(_every_span(word, is_script=_SHELL.fullmatch(before) is not None)):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _every_span(word: str, *, is_script: bool) -> Iterator[tuple[int, int]]:
    for pattern in (_ASSIGNMENT, _SPOKEN) if is_script else (_ASSIGNMENT,):
        at = 0
        while match := pattern.search(word, at):
            at = match.end()
            if not names_a_secret(match["name"]):
                continue
            if match.start() > 0 or is_script:
                value = _VALUE.match(word, at)
                at = value.end() if value else at
            else:
                at = len(word)
            if is_secret(match["name"], word[match.end() : at].strip("'\"")):
                yield match.end(), at
    if is_script:
        yield from _of_commands(word)
    for match in _VALUES.finditer(word):
        yield match.span(match.lastgroup or 0)


def _of_commands(script: str) -> Iterator[tuple[int, int]]:
    """Yield where secrets are that an option of one letter announces, command by command of a script."""
    at = 0
    for command in _SEPARATOR.split(script):
        before, programs = "", dict[str, None]()
        for match in _WORD.finditer(command):
            word = match[0].strip("'\"")
            skipped = at + match.start() + match[0].find(word)
            if before in _USERS or before == "-p" or word[:2] in ("-p", "-u", "-U"):
                yield from ((skipped + start, skipped + end) for start, end in _announced(before, word, programs))
            if programs or "=" not in word:
                programs[word.rpartition("/")[2]] = None
            before = word
        at += len(command) + 1
