"""The driver moves and holds no token column beyond verl's own, unless the objective reads or makes one."""

import importlib
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

from isentrope import presets

pytest.importorskip("verl", reason="needs verl 0.9")


BENCH = Path(__file__).parents[2] / "bench"
ROWS, TOKENS = 32, 512
A_ROW = 16  # bytes: columns with a value a row do not grow with the tokens
pytestmark = pytest.mark.engine


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's and verl's about themselves
        found = importlib.import_module("verl_driver")
    monkeypatch.setattr(found.tq, "kv_batch_get", found.tq.kv_batch_get)  # put back what a step replaces
    monkeypatch.setattr(found.tq, "kv_batch_put", found.tq.kv_batch_put)
    return found


def costs(driver: ModuleType, preset: str | None) -> tuple[int, int, int]:
    fields = driver.draw(ROWS, TOKENS, seed=0)
    step = driver.Driver(preset, fields, TOKENS)
    queue = step()
    return queue.num_read, queue.num_written, driver.peak_bytes(step)


def num_tokens(driver: ModuleType) -> int:
    return int(driver.draw(ROWS, TOKENS, seed=0)["response_mask"].values().numel())


@pytest.mark.parametrize("preset", ["grpo", "ce_gppo", "gepo", "gspo", "dr_grpo"])
def test_an_objective_that_reads_no_entropy_moves_what_verl_moves(driver: ModuleType, preset: str) -> None:
    read, written, peak = costs(driver, preset)
    theirs = costs(driver, None)
    assert read == theirs[0]
    assert 0 <= written - theirs[1] <= A_ROW * ROWS
    assert peak < 1.02 * theirs[2]


@pytest.mark.parametrize("preset", ["adapo", "repo_d", "aepo"])
def test_an_objective_that_reads_entropy_moves_one_float_a_token_more(driver: ModuleType, preset: str) -> None:
    assert "old_entropy" in getattr(presets, preset).columns().optional
    read, written, _ = costs(driver, preset)
    theirs = costs(driver, None)
    assert read - theirs[0] == 4 * num_tokens(driver)
    assert 0 <= written - theirs[1] <= A_ROW * ROWS


@pytest.mark.parametrize(("preset", "num_columns"), [("clip_cov", 1), ("kl_cov", 1), ("high_entropy", 2)])
def test_a_selection_of_tokens_writes_a_byte_a_token_for_each_of_its_columns(
    driver: ModuleType, preset: str, num_columns: int
) -> None:
    _, written, _ = costs(driver, preset)
    more = written - costs(driver, None)[1] - num_columns * num_tokens(driver)
    assert 0 <= more <= A_ROW * ROWS


def test_a_straight_line_gives_the_price_of_a_cell(driver: ModuleType) -> None:
    made = [
        driver.Cost(cells=n, tokens=n, read=3 * n, written=2 * n, peak=7 * n + 100, seconds=1e-6 * n) for n in (10, 20)
    ]
    assert driver.slope(made, "peak") == (pytest.approx(7.0), pytest.approx(0.0, abs=1e-12))
    assert "7.00" in driver.line("x", made, (1, 1))


def test_the_batch_is_as_verl_holds_it(driver: ModuleType) -> None:
    fields = driver.draw(ROWS, TOKENS, seed=0)
    assert fields["response_mask"].is_nested
    lengths = fields["response_mask"].offsets().diff()
    assert torch.equal(fields["rm_scores"].offsets().diff(), lengths)
    assert int(lengths.max()) == TOKENS
    assert len(set(fields["uid"])) == ROWS // driver.GROUP_SIZE
