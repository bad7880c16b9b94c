"""mpsq for a box that lacks it: wheels of the packages here, installed beside a Python there."""

from __future__ import annotations

import base64
import hashlib
import re
import tarfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from importlib.metadata import Distribution
from pathlib import Path
from typing import IO

from msgspec import Struct, ValidationError

from queue_runner import __version__, paths
from queue_runner.decoding import convert
from queue_runner.errors import MpsqError
from queue_runner.remote import box_setup
from queue_runner.remote.link import Link
from queue_runner.remote.target import Refused, Unreachable

INSTALL_S = 900.0
"""Time limit of an installation, which may fetch packages for another platform."""
OLDEST = (3, 11)
_LOOK = f"""
import json, sys
have = {{"python": ".".join(map(str, sys.version_info[:3])), "mpsq": None, "makes": True}}
try:
    import queue_runner
    have["mpsq"] = queue_runner.__version__
except ImportError:
    pass
try:
    import ensurepip, venv
except ImportError:
    have["makes"] = False
print("\\n{box_setup.MARK}\\n" + json.dumps(have))
"""
"""Any Python understands it."""
_LEFT_OUT = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
_CHECKOUT = {
    **{"queue_runner": "queue_runner", "mpsq": "mpsq"},
    **{"jobs": "queue_runner/_jobs", "migrations": "queue_runner/_migrations"},
}
"""Where the folders of a checkout are in its wheel, as setup.py says; also jobs/mpsq_report*.py at its top."""


class PythonThere(Struct):
    """An interpreter of a box: its version, that of its mpsq, and whether it `makes` environments."""

    python: str
    mpsq: str | None
    makes: bool


def look(link: Link) -> PythonThere:
    """Return what the Python of a link is. Raises: MpsqError with a remedy where mpsq cannot be put there."""
    name = link.python
    try:
        with link.run(["-c", _on_one_line(_LOOK)]) as answered:
            there = convert(answered.answer, PythonThere)
    except (Unreachable, Refused, ValidationError) as error:
        raise MpsqError(f"{link.host}: {error}", "--python names the Python there that has your framework") from error
    version = tuple(int(part) for part in re.findall(r"\d+", there.python)[:2])
    if version < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise MpsqError(
            f"{name} on {link.host} is Python {there.python}, and mpsq needs {needed}", "name another one with --python"
        )
    if there.mpsq != __version__ and not there.makes:
        raise MpsqError(
            f"{name} on {link.host} cannot make environments: it lacks venv or ensurepip",
            "install them there, on Debian as python3-venv, or name another Python with --python",
        )
    return there


class Package(Struct, frozen=True):
    """mpsq and its dependencies as wheels in a folder, which also has the versions of all as constraints."""

    folder: Path
    version: str
    n_wheels: int
    n_bytes: int


def pack(folder: Path) -> Package:
    """Write wheels of mpsq and of what it needs, as they are installed here."""
    n_bytes = 0
    constraints = []
    for distribution in _needed():
        tags = _tags(distribution)
        if tags is None or not (files := dict(_files(distribution))):
            continue  # as from another package manager: the box gets it from the index of its pip
        name = re.sub(r"[-_.]+", "_", distribution.name)
        path = folder / f"{name}-{distribution.version}-{tags}.whl"
        info = f"{name}-{distribution.version}.dist-info"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
            for target, source in files.items():
                wheel.write(source, re.sub(r"^[^/]+\.dist-info(?=/)", info, target))
            wheel.writestr(f"{info}/RECORD", "".join(f"{target},,\n" for target in wheel.namelist()))
        constraints.append(f"{distribution.name}=={distribution.version}\n")
        n_bytes += path.stat().st_size
    (folder / "constraints.txt").write_text("".join(constraints))
    return Package(folder, metadata.version("mpsq"), len(constraints), n_bytes)


def install(link: Link, package: Package, place: str) -> str:
    """Make an environment with mpsq in a folder of a box; return its interpreter there. Raises: MpsqError."""

    def feed(stream: IO[bytes]) -> None:
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            for path in sorted(package.folder.iterdir()):
                archive.add(path, arcname=path.name)

    source = _on_one_line(Path(box_setup.__file__).read_text())
    try:
        with link.run(["-c", source, place, package.version], feed, INSTALL_S) as answered:
            return str(answered.answer.get("python"))
    except (Unreachable, Refused) as error:
        raise MpsqError(f"{link.host}: mpsq could not be installed there: {error}", "fix that, then repeat") from error


def _on_one_line(source: str) -> str:
    """Return a program that runs another one: csh, which may be the login shell there, quotes no end of a line. It
    imports nothing from the folder of the login."""
    code = base64.b64encode(source.encode()).decode()
    return f'import sys; sys.path = [p for p in sys.path if p]; exec(__import__("base64").b64decode("{code}"))'


def environment(version: str, python: str, there: PythonThere) -> str:
    """Return the folder on a box of the environment that adds mpsq to one of its Pythons, named by its path there."""
    of_python = hashlib.sha256(f"{python} {there.python}".encode()).hexdigest()[:6]
    return f"~/.mpsq/mpsq-{version}-{of_python}"


def _needed() -> Iterator[Distribution]:
    """Yield mpsq and its dependencies as they are installed here, without those of extras."""
    waiting, known = ["mpsq"], set()
    while waiting:
        distribution = _installed(waiting.pop())
        if distribution is None or distribution.name in known:  # none: of another platform
            continue
        known.add(distribution.name)
        waiting += [
            re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            for requirement in distribution.requires or ()
            if "extra ==" not in requirement
        ]
        yield distribution


def _installed(name: str) -> Distribution | None:
    """Return a package as it is installed here, rather than what a build left in a folder of sys.path."""
    copies = list(metadata.distributions(name=name))
    return next((copy for copy in copies if _tags(copy)), copies[0] if copies else None)


def _tags(distribution: Distribution) -> str | None:
    """Return the tags of a wheel's name; None where it was not installed from a wheel."""
    text = distribution.read_text("WHEEL") or ""
    tags = [line.removeprefix("Tag: ").split("-") for line in text.splitlines() if line.startswith("Tag: ")]
    return "-".join(".".join(dict.fromkeys(column)) for column in zip(*tags, strict=True)) if tags else None


def _files(distribution: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the files of a wheel by their paths in it."""
    code = paths.checkout() if distribution.name == "mpsq" else None
    for file in distribution.files or ():
        is_info = file.parts[0].endswith(".dist-info")
        if file.parts[0] == ".." or "__pycache__" in file.parts or (is_info and file.name in _LEFT_OUT):
            continue
        if is_info or code is None:
            yield file.as_posix(), Path(str(distribution.locate_file(file)))
    if code is None:
        return
    for name, target in _CHECKOUT.items():
        for path in sorted((code / name).rglob("*")):
            if path.is_file() and not {"__pycache__"} & {*path.parts} and ".egg-info" not in str(path):
                yield f"{target}/{path.relative_to(code / name).as_posix()}", path
    for path in sorted((code / "jobs").glob("mpsq_report*.py")):
        yield path.name, path
