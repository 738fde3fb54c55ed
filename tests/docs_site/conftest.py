"""The site, built once for all workers, and what its pages hold."""

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MACHINERY = ROOT / "docs" / "machinery"
ADDRESSES = {"href", "src", "srcset", "data", "poster", "action", "xlink:href"}


@dataclass
class Html(HTMLParser):
    """A page: ids, the addresses of its tags as (tag, attribute, address), and its text."""

    ids: list[str] = field(default_factory=list)
    addresses: list[tuple[str, str, str]] = field(default_factory=list)
    text: str = ""

    def __post_init__(self):
        super().__init__()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"])
        self.addresses += [(tag, name, value) for name, value in attrs if name in ADDRESSES and value]

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="session")
def machinery():
    """The machinery on the path, as MkDocs has it."""
    pytest.importorskip("mkdocs", reason="no MkDocs here: make docs installs it")
    pytest.importorskip("griffe")
    sys.path.insert(0, str(MACHINERY))
    yield MACHINERY
    sys.path.remove(str(MACHINERY))


@pytest.fixture(scope="session")
def site(machinery, tmp_path_factory, worker_id):
    """The folder of the built site. The first worker builds it, others wait; a warning of MkDocs' fails the build."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log, folder = shared / "site.log", shared / "site"
        if not log.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
            environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            log.write_text(f"{done.returncode}\n{done.stdout}{done.stderr}", encoding="utf-8")
    said = log.read_text(encoding="utf-8")
    assert said.startswith("0\n"), said
    assert "WARNING" not in said, said
    return folder


@pytest.fixture(scope="session")
def pages(site):
    """Every page of the site, parsed, by its path below the site."""
    found = {}
    for path in sorted(site.rglob("*.html")):
        page = found[path.relative_to(site).as_posix()] = Html()
        page.feed(path.read_text(encoding="utf-8"))
    assert len(found) > 100
    return found
