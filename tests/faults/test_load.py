"""Long runs hold no more than short ones, and large files are read in the memory that small ones take.

Nothing is timed. The figures behind the bounds, of longer runs and larger files, stand in docs/notes.md.
"""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"
GROWTH = {"rss": 30.0, "blocks": 12_000}  # MiB and allocations for 1,000 updates; every log kept would be 43,000
LARGER = {"dumped": 100, "metrics": 80}  # MiB; 3.6 million tokens more in 12 columns are 330, 40,000 lines 130


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("soak")


def test_a_slope_has_its_unit_and_an_interval_that_holds_it(soak: ModuleType) -> None:
    steps = list(range(1, 201))
    found = soak.slope(steps, [5 + 0.003 * step for step in steps])
    assert (found.per_1000, found.within) == (pytest.approx(3.0), pytest.approx(0.0, abs=1e-9))
    rough = soak.slope(steps, [5 + 0.003 * step + 0.1 * (step % 40 < 20) for step in steps])
    assert rough.low < 3.0 < rough.per_1000 + rough.within
    with pytest.raises(ValueError, match="slope: 19 samples; it takes at least 20"):
        soak.slope(steps[:19], steps[:19])


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(("engine", "steps"), [("tabular", 300), ("trl", 120)])
def test_a_long_run_keeps_its_handles_threads_and_memory(
    engine: str, steps: int, soak: ModuleType, tmp_path: Path
) -> None:
    samples = soak.soak(engine, steps, tmp_path)
    assert [sample["step"] for sample in samples] == list(range(1, steps + 1))
    for what in ("handles", "threads"):
        held = soak.settled(samples, what)[1]
        assert min(held) == max(held) < 20
    for what, bound in GROWTH.items():
        growth = soak.slope(*soak.settled(samples, what))
        assert growth.low < bound, f"{what} grows by {growth.per_1000:.4g} ± {growth.within:.2g} in 1,000 updates"
    assert sorted(path.name for path in (tmp_path / engine / "tokens").iterdir())
    assert len(list((tmp_path / engine / "checkpoints").glob("checkpoint-*"))) == 2


def peaks(out: Path, *size: str) -> dict[tuple[str, str], float]:
    """MiB by run folder and process, of bench/dumps.py."""
    command = [sys.executable, BENCH / "dumps.py", "--only", *LARGER, "--out", out, *size]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[3:]]
    return {(kind, name): float(peak) for kind, name, peak, _ in cells if peak}


@pytest.mark.slow
@pytest.mark.engine
def test_ten_times_the_tokens_and_thrice_the_metrics_are_read_in_the_same_memory(tmp_path: Path) -> None:
    small = peaks(tmp_path / "small", "--rows", "10000", "--length", "54", "--updates", "20000")
    large = peaks(tmp_path / "large", "--rows", "100000", "--length", "54", "--updates", "60000")
    assert small.keys() == large.keys()
    assert {name for _, name in small} == {"writer", "diagnose", "report", "sampler", "tokens", "metrics"}
    assert (tmp_path / "large" / "dumped" / "tokens" / "step-000001.parquet").stat().st_size > 2**24
    more = {key: large[key] - small[key] for key in small if key != ("dumped", "writer")}
    assert all(more[kind, name] < LARGER[kind] for kind, name in more), more
    # a writer collects a million tokens: more than the small dump has, less than the large one
    assert large["dumped", "writer"] - small["dumped", "writer"] < 500
