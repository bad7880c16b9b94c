"""mpsq completion: the script of each shell.

The scripts know nothing of mpsq: they ask `mpsq __complete` (complete/) and hand its answer to the shell. That of bash
is for version 3.2 too, which macOS has.
"""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import new_app
from queue_runner.errors import UsageError, did_you_mean

app = new_app()

EPILOG = (
    "For the current shell only: source <(mpsq completion bash), or in fish: mpsq completion fish | source. "
    "For every shell: mpsq completion bash > ~/.local/share/bash-completion/completions/mpsq; "
    "in zsh > _mpsq in a folder of fpath; in fish > ~/.config/fish/completions/mpsq.fish"
)

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


@app.command("completion", epilog=EPILOG)
def completion(shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the script that completes commands, options, ids and names with TAB."""
    print(script(shell), end="")


def script(shell: str) -> str:
    """Return the script for that shell. Raises: UsageError for another shell."""
    if shell not in SHELLS:
        raise UsageError(f'unknown shell "{shell}"', did_you_mean(shell, SHELLS, "use bash, zsh or fish"))
    first = "#compdef mpsq\n" if shell == "zsh" else ""
    return f"{first}# completion of mpsq, made by: mpsq completion {shell}{SHELLS[shell]}"
