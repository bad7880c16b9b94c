"""Completion for bash, zsh and fish: the script of each shell, and the file where the shell looks for it.

The scripts know nothing of mpsq: they ask `mpsq __complete` (complete.py) and hand its answer to the shell. That of
bash is for version 3.2 too, which macOS has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from queue_runner.atomic_file import replacing
from queue_runner.errors import MpsqError, UsageError, did_you_mean

_MARK = "# completion of mpsq, made by: mpsq completion"

_BASH = r"""
_mpsq() {
    local line="${COMP_LINE:0:COMP_POINT}" how="" word
    COMPREPLY=()
    while IFS= read -r word; do
        if [ -z "$how" ]; then how=$word; else COMPREPLY+=("$word"); fi
    done < <("${COMP_WORDS[0]/#\~/$HOME}" __complete bash "$line" "$COMP_WORDBREAKS" 2>/dev/null)
    case $how in
        nospace) type compopt >/dev/null 2>&1 && compopt -o nospace ;;
        file) _mpsq_files -f ;;
        folder) _mpsq_files -d ;;
        "command 1") _mpsq_files -c ;;
        command*) _mpsq_files -f ;;
    esac
}
_mpsq_files() {
    local word=${COMP_WORDS[COMP_CWORD]} path
    case $word in "=") word="" ;; */*) [ "$1" != -c ] || set -- -f ;; esac
    while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen "$1" -- "$word")
    type compopt >/dev/null 2>&1 && compopt -o filenames
}
complete -o nosort -F _mpsq mpsq 2>/dev/null || complete -F _mpsq mpsq
"""

_ZSH = r"""
_mpsq() {
    local -a lines
    local how
    lines=("${(@f)$("${(Q)words[1]/#\~/$HOME}" __complete zsh "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    how=$lines[1]
    shift lines
    case $how in
        words) (( $#lines )) && _describe -V -t mpsq mpsq lines ;;
        nospace) (( $#lines )) && _describe -V -t mpsq mpsq lines -S '' ;;
        file) _files ;;
        folder) _files -/ ;;
        command*)
            shift $(( CURRENT - ${how#command } )) words
            CURRENT=${how#command }
            _normal
            ;;
    esac
}
if [ "$funcstack[1]" = _mpsq ]; then
    _mpsq "$@"
else
    compdef _mpsq mpsq
fi
"""

_FISH = r"""
function __mpsq_complete
    set -l words (commandline -opc)
    set -l lines ($words[1] __complete fish (commandline -cp) 2>/dev/null)
    switch "$lines[1]"
        case words nospace
            printf '%s\n' $lines[2..-1]
        case file
            __fish_complete_path (string replace -r '^--[^=]*=' '' -- (commandline -ct))
        case folder
            __fish_complete_directories (string replace -r '^--[^=]*=' '' -- (commandline -ct))
        case 'command *'
            set -l first (math (count $words) - (string replace 'command ' '' -- $lines[1]) + 2)
            set -l behind $words[$first..-1]
            complete -C (string join ' ' -- (string escape -- $behind) (commandline -ct))
    end
end
complete -c mpsq -f -k -a '(__mpsq_complete)'
"""

SHELLS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@dataclass(frozen=True)
class Installed:
    """The path of the script, and the remaining step; "" if there is none."""

    path: Path
    remains: str


def script(shell: str) -> str:
    """Return the script for that shell. Raises: UsageError for another shell."""
    if shell not in SHELLS:
        raise UsageError(f'unknown shell "{shell}"', did_you_mean(shell, SHELLS, "use bash, zsh or fish"))
    first = "#compdef mpsq\n" if shell == "zsh" else ""
    return f"{first}{_MARK} {shell}{SHELLS[shell]}"


def install(shell: str, environment: Mapping[str, str] = os.environ) -> Installed:
    """Write the script where the shell looks for such files; files of the user are never changed.

    Raises: UsageError for another shell; MpsqError when a file is in the way that is not ours.
    """
    text, path = script(shell), _place(shell, environment)
    if path.exists() and _MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise MpsqError(
            f"{path} already exists and was not written by mpsq",
            "move it away, or redirect the output of mpsq completion to another file",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=False, mode=0o644) as partial:
        partial.write_text(text, encoding="utf-8")
    return Installed(path, _REMAINS[shell].format(path=path, folder=path.parent))


_REMAINS = {
    "bash": "if the package bash-completion is installed, the next shell uses it; else add to ~/.bashrc:\n"
    "    source '{path}'",
    "zsh": "if zsh does not search that folder yet, add to ~/.zshrc, before compinit if it is called there:\n"
    "    fpath=('{folder}' $fpath)\n    autoload -Uz compinit && compinit",
    "fish": "the next shell uses it",
}


def _place(shell: str, environment: Mapping[str, str]) -> Path:
    data = _folder(environment, "XDG_DATA_HOME", ".local/share")
    if shell == "bash":
        folder = environment.get("BASH_COMPLETION_USER_DIR", "").split(":")[0]
        return (Path(folder) if folder.startswith("/") else data / "bash-completion") / "completions" / "mpsq"
    if shell == "zsh":
        return data / "zsh" / "site-functions" / "_mpsq"
    return _folder(environment, "XDG_CONFIG_HOME", ".config") / "fish" / "completions" / "mpsq.fish"


def _folder(environment: Mapping[str, str], name: str, otherwise: str) -> Path:
    value = environment.get(name, "")
    return Path(value) if value.startswith("/") else Path(environment.get("HOME") or Path.home()) / otherwise
