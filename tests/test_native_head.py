"""The compiled head: where it comes from, what it leaves to PyTorch, and why it is not there."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from isentrope._kernels import build, choose, native
from isentrope.logprobs import backend_in_use

from .heads import LIBRARY, NATIVE, distance, draw, ours, plain, run


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache and nothing remembered of earlier choices; afterwards as before."""
    caches = (native.load, choose.native_fault)
    for cache in caches:
        cache.cache_clear()
    monkeypatch.setenv("ISENTROPE_CACHE", str(tmp_path))
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


avx512 = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX512"), reason="the compiled head needs AVX-512"
)


@avx512
def test_without_a_compiler_pytorch_computes_and_the_reason_is_told(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    case = draw(3, 9, 4, torch.float32)
    choice = backend_in_use(case.hidden, case.weight)
    assert str(choice).startswith("eager: no C++ compiler")
    torch.testing.assert_close(run(case).logp, run(case, backend="eager").logp, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"backend='native' cannot be used: no C\+\+ compiler"):
        run(case, backend="native")


@pytest.mark.skipif(NATIVE.backend != "native", reason=NATIVE.reason)
def test_a_library_in_the_cache_needs_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(LIBRARY, fresh)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert backend_in_use(torch.zeros(1, 2), torch.zeros(1, 2)).backend == "native"


@avx512
def test_a_compiler_that_fails_is_the_reason(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fresh / "broken"
    broken.write_text("#!/bin/sh\necho 'x.cpp:1: error: no such thing' >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert "no such thing" in backend_in_use(torch.zeros(1, 2), torch.zeros(1, 2)).reason
    assert [path.name for path in fresh.iterdir()] == ["broken"]


@avx512
def test_a_cache_that_cannot_be_written_is_the_reason(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("ISENTROPE_CACHE", str(fresh / "file"))
    if NATIVE.backend == "native":
        assert str(fresh / "file") in backend_in_use(torch.zeros(1, 2), torch.zeros(1, 2)).reason


@avx512
def test_a_damaged_library_is_the_reason(fresh: Path) -> None:
    if NATIVE.backend == "native":
        build.target().write_bytes(b"not a library")
        choice = backend_in_use(torch.zeros(1, 2), torch.zeros(1, 2))
        assert choice.backend == "eager"
        assert str(fresh) in choice.reason


def test_the_cache_tells_machines_versions_and_sources_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [build.target(), build.target()]
    assert found[0] == found[1]
    monkeypatch.setattr(torch, "__version__", "9.9")
    found.append(build.target())
    monkeypatch.setattr(build, "cpu_features", lambda: "flags: none")
    found.append(build.target())
    monkeypatch.setattr(build, "FLAGS", ("-O1",))
    found.append(build.target())
    monkeypatch.setattr(build, "SOURCE", Path(__file__))
    assert len({*found, build.target()}) == 5


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ISENTROPE_CACHE", str(tmp_path / "mine"))
    assert build.cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("ISENTROPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / "isentrope"


@pytest.mark.slow
@pytest.mark.skipif(NATIVE.backend != "native", reason=NATIVE.reason)
def test_processes_that_start_together_all_get_the_library(tmp_path: Path) -> None:
    code = """
import torch
from isentrope.logprobs import backend_in_use
print(backend_in_use(torch.zeros(1, 2), torch.zeros(1, 2)).backend)
"""
    environment = os.environ | {"ISENTROPE_CACHE": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate(timeout=300)[0].strip() for process in started] == ["native"] * 3
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("dtype", "width", "words"), [(torch.float64, 4, "float64"), (torch.bfloat16, 5, "even hidden size")]
)
def test_what_the_compiled_head_leaves_to_pytorch_is_told(dtype: torch.dtype, width: int, words: str) -> None:
    case = draw(6, 9, width, dtype)
    choice = backend_in_use(case.hidden, case.weight)
    assert choice.backend == "eager"
    assert words in choice.reason
    assert distance(run(case).logp, plain(case, torch.ones(6), torch.ones(6))[0]) < 1e-6


@pytest.mark.skipif(NATIVE.backend != "native", reason=NATIVE.reason)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [20, 700])
def test_threads_share_the_work_and_change_nothing(dtype: torch.dtype, rows: int) -> None:
    case = draw(rows, 1000, 16, dtype)
    weights, threads = torch.randn(rows), torch.get_num_threads()
    alone = ours(case, weights, torch.ones(rows), backend="native")
    try:
        torch.set_num_threads(3)
        together = ours(case, weights, torch.ones(rows), backend="native")
    finally:
        torch.set_num_threads(threads)
    for f, e in zip(together, alone, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-4)
