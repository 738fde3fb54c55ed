"""The sdist holds the whole project, and builds the same wheel as the working tree."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# What a forge and a checkout need and a release does not.
OUTSIDE = (".ci/", ".gitignore")


def hatchling(folder: Path, out: Path, kind: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    (built,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def unpacked(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of the working tree, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(hatchling(root, folder, "sdist")) as archive:
        archive.extractall(folder, filter="data")
    (found,) = folder.glob("isentrope-*/")
    return found


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_sdist_holds_every_committed_file(root: Path, unpacked: Path) -> None:
    listing = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    committed = [name for name in listing.stdout.splitlines() if (root / name).is_file()]
    assert "tests/packaging/test_distribution.py" in committed
    assert [name for name in committed if not name.startswith(OUTSIDE) and not (unpacked / name).is_file()] == []
    assert not (unpacked / ".ci").exists()


def test_the_sdist_builds_the_wheel_of_the_working_tree(root: Path, unpacked: Path, tmp_path: Path) -> None:
    ours = contents(hatchling(root, tmp_path / "tree", "wheel"))
    theirs = contents(hatchling(unpacked, tmp_path / "sdist", "wheel"))
    assert len(ours) > 200
    assert theirs == ours
