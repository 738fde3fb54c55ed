"""Environments that hold a built wheel and what it declares, and nothing else.

Third-party packages come from the environment that runs the tests, file by file, so nothing is downloaded; which of
them is decided by the metadata alone, from the wheel's requirements onwards. What the package uses and does not
declare is missing there, as it would be at a user's.
"""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(requirements: Iterable[str], extras: Iterable[str] = ()) -> set[str]:
    """Names of all packages that the requirements bring, those of the extras included; they must be installed here."""
    found: set[str] = set()
    waiting = [(Requirement(text), frozenset(extras)) for text in requirements]
    seen = set()
    while waiting:
        requirement, context = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (str(requirement), context) in seen or not applies(requirement, context):
            continue
        seen.add((str(requirement), context))
        if name == "isentrope":  # an extra that contains another
            waiting += [(Requirement(text), frozenset(requirement.extras)) for text in requirements]
            continue
        found.add(name)
        children = metadata.requires(name) or []
        waiting += [(Requirement(text), frozenset(requirement.extras)) for text in children]
    return found


def applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether the requirement's marker holds here, with one of the extras or with none."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


class Environment:
    """A virtual environment in `folder` that holds `wheel` with the extras, run from the empty folder `work`."""

    def __init__(self, folder: Path, wheel: Path, extras: Iterable[str]) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.bin = folder / "bin"
        self.work = folder / "work"
        self.work.mkdir()
        (self.site,) = folder.glob("lib/python*/site-packages")
        self._pip("install", "--no-deps", "--no-index", str(wheel))
        (own,) = self.site.glob("isentrope-*.dist-info")
        self.packages = needed(metadata.Distribution.at(own).requires or [], extras)
        for name in self.packages:
            put(metadata.distribution(name), self.site)

    def _pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)

    def check(self) -> None:
        """What is installed satisfies every requirement of what is installed."""
        self._pip("check")

    def run(self, program: str, *arguments: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        """A program of the environment, in an empty folder, with nothing of ours on its path."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        command = [str(self.bin / program), *arguments]
        done = subprocess.run(command, cwd=self.work, env=kept, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done


def put(distribution: metadata.Distribution, site: Path) -> None:
    """The files of an installed package, in another site-packages; its scripts, which name an interpreter, stay."""
    assert distribution.files, f"{distribution.name} lists no files"
    for file in distribution.files:
        source = Path(str(distribution.locate_file(file)))
        if ".." in file.parts or not source.is_file():
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)  # gigabytes, in no time
        except OSError:
            shutil.copy2(source, target)
