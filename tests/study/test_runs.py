"""Runs of the study: figures by hand, results that are kept and not made twice, and results that belong to the code."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from isentrope import presets, record
from isentrope.errors import IsentropeError
from isentrope.study import runs
from isentrope.study.experiments import EXPERIMENTS, READ, STEPS
from isentrope.study.runs import Condition, Lab, Result

SMALL = {"trainer.problems": 32, "trainer.prompts": 8, "evaluation.problems": 4}
RESULTS = Path(__file__).parents[2] / "docs" / "study"


def test_a_run_has_figures_and_curves() -> None:
    figures, curves = runs.run(Condition(presets.grpo, "tabular", SMALL), seed=0, steps=32)
    assert curves["exact/entropy"][0] == [8.0, 16.0, 24.0, 32.0]
    assert figures["entropy_start"] == curves["exact/entropy"][1][0]
    assert figures["entropy_peak"] == max(curves["exact/entropy"][1])
    assert figures["reward_end"] == curves["exact/reward"][1][-1]
    assert figures["moved/e45"] > 0
    assert 0 < figures["pass_at_1"] < figures["pass_at_k"] < 1
    levels = curves["exact/entropy"][1]
    mean = (levels[0] / 2 + levels[1] + levels[2] + levels[3] / 2) / 3
    assert figures["entropy_area"] == pytest.approx(mean)  # nats: the area over the steps it covers


def test_stages_are_told_apart() -> None:
    changes = SMALL | {"stage.0.steps": 16, "stage.1.steps": 32, "stage.2.steps": 16}
    figures, curves = runs.run(Condition(presets.grpo, "stages", changes), seed=0, steps=64)
    assert figures["stage2/entropy_left"] == curves["exact/entropy"][1][1]  # after 16 updates
    assert figures["stage3/entropy_left"] == curves["exact/entropy"][1][5]
    assert "stage1/entropy_left" not in figures
    assert figures["stage2/mean_reward"] != figures["stage2/reward_end"]


def test_seeds_differ_and_conditions_of_a_seed_start_alike() -> None:
    one, other = (Condition(getattr(presets, name), "tabular", SMALL) for name in ("grpo", "cispo"))
    starts = [
        runs.TabularTrainer(c.objective, c.recipe(s, 32)).problems.logits for c, s in ((one, 0), (other, 0), (one, 1))
    ]
    assert starts[0].equal(starts[1])
    assert not starts[0].equal(starts[2])


def test_results_are_made_once(tmp_path: Path) -> None:
    told: list[str] = []
    lab = Lab(tmp_path, seeds=(0, 1), steps=16, told=told.append)
    conditions = {"a": Condition(presets.grpo, "tabular", SMALL)}
    first = lab.experiment("mine", conditions)
    assert len(first["a"].figures["pass_at_1"]) == 2
    assert len(first["a"].curves["exact/entropy"]["mean"]) == 1  # every second point of a curve
    again = lab.experiment("mine", conditions | {"b": Condition(presets.gepo, "tabular", SMALL)})
    assert repr(again["a"]) == repr(first["a"])  # figures that a run does not have are NaN
    assert [text.split(",")[0] for text in told] == ["mine: a", "mine: b"]
    changed = {"a": replace(conditions["a"], changes=SMALL | {"trainer.learning_rate": 0.01})}
    assert repr(lab.experiment("mine", changed)["a"]) != repr(first["a"])
    assert len(told) == 3
    replace(lab, steps=32).experiment("mine", changed)
    assert len(told) == 4


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"conditions": {"a": 1}}')
    with pytest.raises(IsentropeError, match="holds no results of the study"):
        runs.results(tmp_path / "x.json")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_results_of_the_repository_are_those_of_its_conditions(name: str) -> None:
    """A condition that was changed without running it again has another mark."""
    kept = record.read_json(RESULTS / f"{name}.json")
    marks = {label: found["mark"].split("/")[0] for label, found in kept["conditions"].items()}
    assert marks == {label: condition.mark for label, condition in EXPERIMENTS[name]().items()}
    assert len(kept["seeds"]) >= 5
    assert kept["steps"] == STEPS.get(name, kept["steps"])


def kept(name: str, condition: str) -> tuple[Mapping[str, Result], int]:
    return runs.results(RESULTS / f"{name}.json"), record.read_json(RESULTS / f"{name}.json")["steps"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("objectives", "grpo"),
        ("chains", "ce_gppo"),
        ("prediction", "bandits, sgd"),
        ("neutral", "no shaping, entropy 0.45"),
    ],
)
def test_a_run_gives_the_kept_result_again(name: str, condition: str) -> None:
    """To four digits: another machine rounds differently in the last bits."""
    found, steps = kept(name, condition)
    figures, _ = READ.get(name, runs.run)(EXPERIMENTS[name]()[condition], 0, steps)
    for figure, values in found[condition].figures.items():
        assert figures[figure] == pytest.approx(values[0], rel=1e-4, abs=1e-9, nan_ok=True), figure
