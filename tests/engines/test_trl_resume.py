"""A resumed run is the uninterrupted one, bit for bit: parameters, controllers, metrics."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from isentrope import presets
from isentrope.control import EntropyPI, EntropySwitch
from isentrope.engines.trl import CheckpointError, ObjectiveTrainer
from isentrope.rollout import Rollout

from .conftest import length_reward
from .harness import MARKS, Run, train

pytestmark = MARKS
TIMES = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos"}

# rollouts of 2 x 4 rows per update; every rollout is used by 4 updates, so steps 1 to 3 of 4 are in the middle of one
SCHEDULE = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_iterations": 2,
}


@pytest.fixture
def go(tiny: Callable[[], Any], config: Callable[..., Any], tokenizer: Any, tmp_path: Path) -> Callable[..., Run]:
    """go(folder, resume, **options): train `adapo` on 12 prompts (an epoch of 3 rollouts, 12 updates)."""
    data = Dataset.from_dict({"prompt": [f"{i}+{i}=" for i in range(12)], "task": ["a", "b", "c"] * 4})

    def run(folder: str, resume: str | None = None, objective: Any = "adapo", live: int = 0, **options: Any) -> Run:
        settings = SCHEDULE | {"save_strategy": "steps", "max_steps": 16, "save_steps": 3} | options
        return train(
            ObjectiveTrainer,
            resume=resume,
            model=tiny(),
            args=config(output_dir=str(tmp_path / folder), **settings),
            train_dataset=data,
            processing_class=tokenizer,
            reward_funcs=often_constant,
            objective=objective,
            diagnostics_interval=live,
        )

    return run


def lines_after(run: Run, step: int) -> list[dict[str, float]]:
    lines = [{k: v for k, v in line.items() if k not in TIMES} for line in run.history if line["step"] > step]
    return [line for line in lines if len(line) > 2]


@pytest.mark.parametrize(
    ("step", "where"),
    [(3, "in the middle of a rollout"), (12, "at the end of an epoch"), (15, "in the middle, second epoch")],
)
def test_a_resumed_run_is_the_uninterrupted_one(step: int, where: str, go: Any, tmp_path: Path) -> None:
    whole = go("whole")
    resumed = go("whole", resume=str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert len(whole.parameters) == 16
    assert len(resumed.parameters) == 16 - step
    for a, b in zip(resumed.parameters, whole.parameters[step:], strict=True):
        assert torch.equal(a, b)
    assert resumed.trainer._state == whole.trainer._state != {}
    assert lines_after(resumed, step) == lines_after(whole, step)


WARMER = EntropyPI(start=1.0, ki=0.1, low=0.3, high=3.0, target=4.0)
SAMPLED_ANOTHER_WAY = {
    "a temperature under control": replace(presets.ce_gppo, rollout=Rollout(temperature=WARMER)),
    "arbitrary entropy": replace(
        presets.arbitrary_entropy,
        rollout=Rollout(temperature=EntropySwitch(below=1.2, above=0.8, start=1.2), share=0.3, rounds=1),
    ),
    "dynamic sampling": replace(presets.dapo, rollout=Rollout(rounds=2)),
}


def often_constant(prompts: list[str], completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """`length_reward`, and 0 for two prompts of three."""
    varies = [int(prompt.split("+")[0]) % 3 == 0 for prompt in prompts]
    return [score if v else 0.0 for v, score in zip(varies, length_reward(completion_ids), strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("way", SAMPLED_ANOTHER_WAY)
def test_a_run_that_samples_another_way_resumes_exactly(way: str, go: Any, tmp_path: Path) -> None:
    objective = SAMPLED_ANOTHER_WAY[way]
    options = {"objective": objective, "live": 2, "save_steps": 1, "max_steps": 16, "learning_rate": 3e-3}
    whole = go("whole", **options)
    for step in (6, 8, 15):
        resumed = go("whole", resume=str(tmp_path / "whole" / f"checkpoint-{step}"), **options)
        for a, b in zip(resumed.parameters, whole.parameters[step:], strict=True):
            assert torch.equal(a, b)
        assert resumed.trainer._state == whole.trainer._state
        assert lines_after(resumed, step) == lines_after(whole, step)
        assert resumed.logged("diagnostics/change_correlation")
    if objective.rollout.rounds:
        assert sum(whole.logged("dynamic_sampling/replaced")) > 0
    else:
        assert len(set(whole.logged("rollout/temperature"))) > 1


def test_measurements_that_wait_for_a_log_line_are_kept(go: Any, tmp_path: Path) -> None:
    options = {"live": 2, "save_steps": 1, "max_steps": 8, "logging_steps": 4}
    whole = go("whole", **options)
    resumed = go("whole", resume=str(tmp_path / "whole" / "checkpoint-7"), **options)
    mine, theirs = lines_after(resumed, 7), lines_after(whole, 7)
    assert "diagnostics/entropy" in theirs[0]
    assert "diagnostics/heterogeneity" in theirs[0]
    assert mine == theirs


def test_a_half_filled_log_line_is_continued(go: Any, tmp_path: Path) -> None:
    options = {"logging_steps": 4, "max_steps": 8}
    whole = go("whole", **options)
    resumed = go("whole", resume=str(tmp_path / "whole" / "checkpoint-6"), **options)
    mine, theirs = lines_after(resumed, 6), lines_after(whole, 6)
    assert len(theirs) == 1
    assert mine == theirs


def test_a_checkpoint_at_a_rollout_boundary_holds_no_rows(go: Any, tmp_path: Path) -> None:
    go("whole", save_steps=2, max_steps=4)
    middle, boundary = (torch.load(tmp_path / "whole" / f"checkpoint-{step}" / "isentrope_rank0.pt") for step in (2, 4))
    assert len(middle["rows"]) == 4
    assert boundary["rows"] is None


def test_the_state_is_readable(go: Any, tmp_path: Path) -> None:
    run = go("whole", max_steps=3)
    state = json.loads((tmp_path / "whole" / "checkpoint-3" / "isentrope_state.json").read_text())
    assert state["state"] == run.trainer._state
    assert state["tasks"] == ["a", "b", "c"]
    assert state["layout"]["processes"] == 1
    assert "EntropyServo" in state["objective"]


def test_what_cannot_be_continued_is_refused(go: Any, tmp_path: Path) -> None:
    go("whole", max_steps=3)
    checkpoint = tmp_path / "whole" / "checkpoint-3"
    with pytest.raises(CheckpointError, match=r"holds the state of another objective: .*surrogate\.high\.value"):
        go("whole", resume=str(checkpoint), objective="ce_gppo")
    with pytest.raises(CheckpointError, match="num_iterations was 2, is 4"):
        go("whole", resume=str(checkpoint), num_iterations=4)
    (checkpoint / "isentrope_rank0.pt").unlink()
    with pytest.raises(CheckpointError, match=r"isentrope_rank0\.pt is missing"):
        go("whole", resume=str(checkpoint))
    (checkpoint / "isentrope_state.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no isentrope_state\.json: ObjectiveTrainer did not save it"):
        go("whole", resume=str(checkpoint))


def test_a_checkpoint_of_weights_alone_has_no_state(go: Any, tmp_path: Path) -> None:
    go("whole", max_steps=3, save_only_model=True)
    assert not list((tmp_path / "whole" / "checkpoint-3").glob("isentrope*"))
    shutil.rmtree(tmp_path / "whole")
