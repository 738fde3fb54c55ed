"""The study on a language model: figures of made-up run folders, refusals, and results that belong to the code."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from isentrope import presets, recipe, record, spec
from isentrope.cli._comparison_run import Plan
from isentrope.comparison import Measured
from isentrope.errors import IsentropeError
from isentrope.record import RunFolder
from isentrope.report.data import Curve
from isentrope.study import __main__ as study
from isentrope.study import divergence, language, language_runs
from isentrope.study.language import EXPERIMENTS, Arm, Group
from isentrope.study.rounding import RoundedRatio

RESULTS = Path(__file__).parents[2] / "docs" / "study"
STEPS = 16
SMALL = {"trainer.steps": STEPS, "trainer.prompts": 4, "evaluation.problems": 2, "output.diagnostics_every": 2}
GROUP = Group("mine", {"repo_r": presets.repo_r}, changes=SMALL)


def evaluation(one: float, k: float) -> list[dict[str, object]]:
    passes = {"1": one, "8": k}
    return [{"pass_at": passes, "distinct_answers": 3.0, "distinct_right": 1.0, "entropy": 0.2}]


def line(step: int) -> dict[str, float]:
    """Entropy falls by .01 an update; the reward of a rollout batch, every eighth, is .5 and then .9."""
    found = {
        "step": step,
        "entropy/current_exact": 1 - 0.01 * step,
        "grad_norm": 2.0,
        "clip/low": 0.1,
        "clip/high": 0.3,
    }
    found |= {"kl_old": 0.001, "controller/shaping.0.zeta.value": 0.001 * step}
    if step % 8 == 1:
        found["reward"] = 0.5 if step == 1 else 0.9
    if step % 4 == 0:
        found |= {"diagnostics/predicted_change": float(step), "diagnostics/measured_change": 8.0 - step}
    return found


def write_run(plan: Plan, name: str, seed: int) -> RunFolder:
    folder = RunFolder(language.run_folder(plan.out, name, seed))
    folder.path.mkdir(parents=True)
    record.write_text(folder.recipe, plan.recipe_of(name, seed).to_toml())
    folder.metrics.write_text("".join(json.dumps(line(step)) + "\n" for step in range(1, STEPS + 1)))
    record.write_json(folder.evaluation("before"), evaluation(0.25, 0.75))
    record.write_json(folder.evaluation("after"), evaluation(0.5, 0.625))
    record.write_json(folder.summary, {"seconds": 60.0 + seed})
    return folder


def collected(tmp_path: Path) -> Mapping[str, language_runs.Result]:
    plan = GROUP.plan(tmp_path, (0, 1))
    for seed in plan.seeds:
        write_run(plan, "repo_r", seed)
    arms = {"mine": Arm(GROUP, "repo_r")}
    language_runs.collect("x", arms, tmp_path, tmp_path, plan.seeds, lambda folder, recipe: 0.5 + recipe.seed)
    return language_runs.results(tmp_path / "x.json")


def test_figures_are_read_off_a_run_folder(tmp_path: Path) -> None:
    figures = collected(tmp_path)["mine"].figures
    assert figures["seconds"] == [60.0, 61.0]
    assert figures["kl_start"] == [0.5, 1.5]
    expected = {
        "entropy_start": 0.99,
        "entropy_end": 0.84,
        "entropy_mean": 1 - 0.01 * 8.5,
        "entropy_at_reward": 0.99 + (0.52 - 0.5) / (0.7 - 0.5) * (0.95 - 0.99),  # means so far: .5, .7; .99, .95
        "gradient_norm": 2.0,
        "clip_low": 0.1,
        "clip_high": 0.3,
        "kl_rollout": 0.001,
        "controller_end": 0.016,
        "change_correlation": -1.0,
        "change_sign": 0.25,  # of 4, 8, 12, 16 against 4, 0, -4, -8
        "before/pass@1": 0.25,
        "after/pass@8": 0.625,
        "pass_at_k": 0.625,
    }
    assert {name: figures[name][0] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_curves_are_means_over_seeds_of_thinned_ones(tmp_path: Path) -> None:
    found = collected(tmp_path)["mine"]
    curve = found.curves["entropy/current_exact"]
    assert curve["steps"] == list(range(1, STEPS + 1))
    assert curve["mean"][-1] == curve["low"][-1] == pytest.approx(0.84)
    assert found.curves["controller/shaping.0.zeta.value"]["mean"][0] == 0.001
    steps, values = language_runs.thinned(Curve(tuple(range(1, 481)), tuple(float(x) for x in range(480))))
    assert (len(steps), steps[0], steps[-1]) == (60, 8, 480)
    assert values[0] == 3.5


def test_stages_have_what_the_one_before_left() -> None:
    """Stages of 8, 56 and 8 updates: the second has seven rollout batches, of which five count at either end."""
    tasks = ["countdown", "digitsum", "countdown"]
    stages = [{"tasks": [task], "steps": steps} for task, steps in zip(tasks, (8, 56, 8), strict=True)]
    table = {"task": [{"name": "countdown"}, {"name": "digitsum"}], "stage": stages, "trainer.steps": 72}
    steps = range(1, 73)
    entropy = Curve(tuple(steps), tuple(100.0 - step for step in steps))
    reward = Curve(tuple(steps[::8]), tuple(float(number) for number in range(9)))
    run = Measured({"entropy/current_exact": entropy, "reward": reward}, [], 1.0)
    assert language_runs._stages(run, recipe.load("default", overrides=table)) == {
        "stage2/entropy_left": 100 - 4.5,  # updates 1 to 8
        "stage2/mean_reward": 4.0,  # of 1 to 7
        "stage2/reward_start": 3.0,
        "stage2/reward_end": 5.0,
        "stage3/entropy_left": 100 - 60.5,  # updates 57 to 64
        "stage3/mean_reward": 8.0,
        "stage3/reward_start": 8.0,
        "stage3/reward_end": 8.0,
    }


def test_a_run_of_another_recipe_is_refused(tmp_path: Path) -> None:
    plan = GROUP.plan(tmp_path, (0,))
    folder = write_run(plan, "repo_r", 0)
    assert language.check(plan, "repo_r", 0).path == folder.path
    other = replace(GROUP, changes=SMALL | {"trainer.learning_rate": 1e-3}).plan(tmp_path, (0,))
    with pytest.raises(IsentropeError, match=r"another recipe than the study's \(trainer differ\)"):
        language.check(other, "repo_r", 0)
    with pytest.raises(IsentropeError, match=r"seed-1.*recipe\.toml"):
        language.check(plan, "repo_r", 1)


def test_finished_runs_are_not_made_again(tmp_path: Path) -> None:
    write_run(GROUP.plan(tmp_path, (0,)), "repo_r", 0)
    assert language.make([GROUP], tmp_path, (0,), told=pytest.fail) is False
    assert not (tmp_path / "mine" / "plan.json").exists()


@pytest.mark.slow
@pytest.mark.engine
def test_missing_runs_are_made_once_and_read(tmp_path: Path) -> None:
    tiny = {"trainer.steps": 8, "trainer.problems": 8, "trainer.learning_rate": 1e-3}
    group = Group("mine", {"bf16": language.ROUNDED["bf16"]}, changes=SMALL | tiny)
    told: list[str] = []
    assert language.make([group], tmp_path, (0,), told.append) is False
    assert told == ["mine: run 1 of 1: bf16, seed 0"]
    assert language.make([group], tmp_path, (0,), pytest.fail) is False
    language_runs.collect("x", {"a": Arm(group, "bf16")}, tmp_path, tmp_path, (0,), divergence.to_start)
    found = language_runs.results(tmp_path / "x.json")["a"]
    assert found.figures["kl_start"][0] > 0
    assert 0 <= found.figures["before/pass@1"][0] <= 1
    assert len(found.curves["entropy/current_exact"]["steps"]) == 8


def test_every_experiment_names_runs_that_its_group_makes() -> None:
    for name, arms in EXPERIMENTS.items():
        for arm in arms.values():
            assert arm.objective in arm.group.objectives
            assert arm.group in language.groups([name])
    assert [group.name for group in language.groups(["language", "language-precision"])] == ["compare", "ratios"]


def test_a_mark_is_of_objective_recipe_and_changes() -> None:
    others = [
        replace(GROUP, objectives={"repo_r": presets.grpo}),
        replace(GROUP, world="sequence"),
        replace(GROUP, changes=SMALL | {"trainer.steps": 8}),
    ]
    assert len({Arm(group, "repo_r").mark for group in [GROUP, *others]}) == 4


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_results_of_the_repository_are_those_of_its_arms(name: str) -> None:
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path.name} has not been made; python -m isentrope.study --language-model")
    kept = record.read_json(path)
    assert {label: found["mark"] for label, found in kept["conditions"].items()} == {
        label: arm.mark for label, arm in EXPERIMENTS[name].items()
    }
    assert kept["seeds"] == list(language.seeds_of(name))
    assert len(kept["seeds"]) >= 3
    assert path.stat().st_size < 150_000


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"conditions": {"a": 1}}')
    with pytest.raises(IsentropeError, match="holds no results of the study"):
        language_runs.results(tmp_path / "x.json")


@pytest.mark.parametrize(("name", "grid"), [("bf16", 7), ("fp16", 10)])
def test_rounded_ratios_lie_on_the_formats_grid_and_keep_the_gradient(name: str, grid: int) -> None:
    old = torch.linspace(-6.0, -0.01, 200, dtype=torch.float64)
    logp = (old + torch.linspace(-0.5, 0.5, 200, dtype=torch.float64)).requires_grad_()
    log_ratio = RoundedRatio(name)(logp=logp, old_logp=old)
    mantissa, _ = log_ratio.exp().frexp()
    steps = mantissa * 2 ** (grid + 1)
    assert torch.allclose(steps, steps.round(), atol=1e-9)
    assert (log_ratio - (logp - old)).abs().max() > 2.0 ** -(grid + 2)  # it rounds at all
    log_ratio.sum().backward()
    assert logp.grad is not None
    assert logp.grad.equal(torch.ones_like(logp))


def test_rounded_ratios_are_finite_far_out_and_go_into_a_recipe() -> None:
    far = RoundedRatio("fp16")(logp=torch.tensor([[0.0, -200.0]]), old_logp=torch.tensor([[-200.0, 0.0]]))
    assert far.exp().isfinite().all()
    assert far.tolist()[0] == pytest.approx([9.0, -9.0], abs=1e-3)
    objective = replace(presets.grpo, ratio=RoundedRatio("fp16"))
    assert spec.load(spec.to_dict(objective)) == objective
    with pytest.raises(ValueError, match=r"RoundedRatio.format must be one of bf16, fp16; found 'fp8'"):
        RoundedRatio("fp8")


def test_the_command_keeps_the_figures_of_finished_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (0, 1):
        write_run(GROUP.plan(tmp_path, (0, 1)), "repo_r", seed)
    monkeypatch.setitem(EXPERIMENTS, "mine", {"a": Arm(GROUP, "repo_r")})  # type: ignore[misc]
    monkeypatch.setattr(divergence, "to_start", lambda *_: 0.5)
    out = tmp_path / "out"
    study.main(out, only="mine", seeds=2, language_model=True, runs=tmp_path)
    assert language_runs.results(out / "mine.json")["a"].figures["seconds"] == [60.0, 61.0]
