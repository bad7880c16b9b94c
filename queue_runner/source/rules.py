"""Rules for source trees: which files are stored at submit, which are never read, and which changes count."""

from __future__ import annotations

import fnmatch
import re
from functools import cache

MAX_FILE_BYTES = 10 << 20
"""The limit for one untracked file: source code is smaller, data and checkpoints are larger."""
MAX_UNTRACKED_BYTES = 100 << 20
"""The limit for all of them: what one submission may add to MPSQ_HOME."""
MAX_FILES = 20_000
"""The limit for a folder outside a repository and for untracked files: more is data or an environment, not code."""
MAX_TREE_BYTES = 1 << 30
"""The limit for a stored tree: each run in a copy waits until it is copied again."""

_SECRET_GLOBS = (
    *(".env*", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "id_*", ".netrc", "_netrc"),
    *(".git-credentials", ".pgpass", ".pypirc", ".htpasswd"),
)
_SECRET = re.compile("|".join(map(fnmatch.translate, _SECRET_GLOBS)), re.IGNORECASE)
_NO_CONTENT = re.compile(r"(.*/)?(__pycache__/.*|[^/]*\.py[co]|\.DS_Store|[^/]*\.sw[op])", re.DOTALL)
"""By-products of programs that read the code: never stored, never reported."""
_OUTPUT = re.compile(
    r".*\.(log|out|err|txt|csv|tsv|jsonl|md|pt|pth|ckpt|safetensors|npz|npy|bin|pkl|pickle|parquet|arrow|h5|hdf5|onnx"
    r"|png|jpe?g|svg|pdf|gif|mp4|tfevents.*|trace|prof|db|sqlite3?|gz|zip|tar|lock|pid)",
    re.IGNORECASE,
)
_SOURCE = re.compile(
    r".*\.(py|pyi|pyx|pxd|pth|so|dylib|sh|bash|zsh|c|cc|cpp|cxx|h|hh|hpp|cu|cuh|m|mm|metal|cl|rs|go|jl|lua|js|ts|ini"
    r"|toml|cfg|ya?ml)",
    re.IGNORECASE,
)


def is_secret(path: str) -> bool:
    """Return whether a path inside the tree, or a folder above it, has a name typical of keys and passwords."""
    return any(_SECRET.fullmatch(part) for part in path.split("/"))


def secret_pathspecs() -> list[str]:
    """Return the same rule as pathspecs that exclude such files from git's output."""
    return [f":(exclude,glob,icase)**/{glob}{below}" for glob in _SECRET_GLOBS for below in ("", "/**")]


def is_kept(path: str) -> bool:
    """Return whether an untracked file is more than a by-product of editors and interpreters."""
    return _NO_CONTENT.fullmatch(path) is None


@cache
def _patterns(not_code: str) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, not_code.split())) or r"(?!)", re.IGNORECASE)


def matters(path: str, not_code: str, *, tracked: bool, is_new: bool) -> bool:
    """Return whether a difference in this file means that the code has changed.

    `not_code` are the patterns of the setting of that name, which match a whole path or its last part. A job writes its
    results into its own folder, and the next job must not take them for an edit. So a new untracked file matters only
    if it is source code, and a changed one unless its name is that of output.
    """
    pattern = _patterns(not_code)
    if pattern.fullmatch(path) or pattern.fullmatch(path.rpartition("/")[2]):
        return False
    if tracked:
        return True
    return _SOURCE.fullmatch(path) is not None if is_new else _OUTPUT.fullmatch(path) is None
