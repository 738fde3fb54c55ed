"""Compiles head.cpp at first use and keeps the library in a cache: 4 to 10 seconds, once a machine and torch version.

The file's name holds a hash of the source, the flags, the torch version and the CPU's features, so that a cache on a
shared disk serves different machines, and a machine without a compiler can be given one. It is compiled under a
temporary name and renamed: processes that start together each compile, and whoever ends last replaces a file by its
equal.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("head.cpp")
FLAGS = (
    *("-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"),
    *("-std=c++20", "-fPIC", "-shared", "-w"),
)
SECONDS = 300  # a compiler that takes longer is stuck


class Unavailable(Exception):
    """The compiled backend cannot be had here; the message is the reason."""


def cache_folder() -> Path:
    """$ISENTROPE_CACHE, else $XDG_CACHE_HOME/isentrope, else ~/.cache/isentrope."""
    if given := os.environ.get("ISENTROPE_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isentrope"


def cpu_features() -> str:
    """What -march=native depends on: the kernel's list of the CPU's features, else the platform's name for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("vendor_id", "cpu family", "model\t", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def compiler() -> str:
    """$CXX, else g++ from the path; head.cpp is written with GCC's vector extensions."""
    for name in (os.environ.get("CXX"), "g++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    raise Unavailable("no C++ compiler: none of $CXX, g++, c++ was found")


def target() -> Path:
    """Where the library for this source, these flags, this torch and CPU is kept."""
    parts = (SOURCE.read_text(encoding="utf-8"), *FLAGS, torch.__version__, cpu_features())
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    return cache_folder() / f"head-{digest}.so"


def command() -> list[str]:
    """The compiler's command, without the output's name."""
    folder = Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    link = [f"-L{folder / 'lib'}", "-ltorch_cpu", "-lc10"]
    return [compiler(), *FLAGS, abi, f"-I{folder / 'include'}", str(SOURCE), *link]


def library() -> ctypes.CDLL:
    """The compiled library, from the cache or made now. Raises Unavailable with the reason."""
    path = target()
    try:
        if not path.exists():
            compile_to(path, command())
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path}: {error}") from error


def compile_to(path: Path, words: list[str]) -> None:
    """Runs the compiler and moves its output to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        made = Path(folder) / path.name
        try:
            done = subprocess.run(
                [*words, "-o", str(made)], capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{words[0]} did not end within {SECONDS} s") from error
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            raise Unavailable(f"{words[0]} failed: {first}")
        os.replace(made, path)
