"""The worked rules in examples/: short, without registration, and they do what they say."""

import ast
import math
import shutil
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from isentrope import presets, spec
from isentrope.cli import app
from isentrope.control import is_controller
from isentrope.surrogate import PPOClip

EXAMPLES = {"faded_clip": "faded", "explore_hard": "explore", "adaptive_kl": "held"}


@pytest.fixture
def example(root):
    def load(file, name=None):
        return spec.load_object(f"{root / 'examples' / file}.py:{name or EXAMPLES[file]}")

    return load


def batch(rows=8, tokens=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, tokens, generator=g, dtype=torch.float64) * 3
    return {
        "reward": torch.tensor([1.0, 0, 0, 0] * (rows // 4), dtype=torch.float64),
        "group": torch.arange(rows) // 4,
        "mask": torch.rand(rows, tokens, generator=g) < 0.8,
        "old_logp": old,
        "ref_logp": old + 1.0,
        "logp": old + torch.randn(rows, tokens, generator=g, dtype=torch.float64) * 0.4,
    }


def test_every_file_of_the_folder_is_tested(root):
    assert {path.stem for path in (root / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_is_short_and_has_no_base_class(root, file):
    text = (root / "examples" / f"{file}.py").read_text()
    assert len(text.splitlines()) < 40
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    assert len(classes) == 1
    assert classes[0].bases == []


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_says_how_to_run_it(root, file):
    text = (root / "examples" / f"{file}.py").read_text()
    reference = f"examples/{file}.py:{EXAMPLES[file]}"
    for command in (f"isentrope show {reference}", f"isentrope train --objective {reference}"):
        assert f"\n    {command}\n" in text


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_computes_a_finite_gradient_and_reads_back_from_its_specification(example, file):
    objective = example(file)
    columns = batch()
    prepared, state = objective.prepare({k: x for k, x in columns.items() if k != "logp"})
    now = objective.at(state)
    logp = columns["logp"].clone().requires_grad_()
    loss = now.loss(prepared | {"logp": logp}, now.count(prepared))
    (gradient,) = torch.autograd.grad(loss, logp)
    assert gradient.isfinite().all()
    assert gradient[columns["mask"]].abs().sum() > 0
    assert spec.load(str(objective)) == objective


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_can_be_shown_from_any_folder(root, file, tmp_path, monkeypatch):
    shutil.copy(root / "examples" / f"{file}.py", tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["show", f"mine.py:{EXAMPLES[file]}"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert "Gradient weight over the ratio" in result.stdout
    assert "cannot be measured" not in result.stdout


def test_a_faded_clip_halves_every_half_width_beyond_the_band(example):
    """At log(1 + high) + 2 half the weight is r / 4; inside the band it is r; for A < 0 likewise below log(1 - low)."""
    rule = example("faded_clip", "FadedClip")(low=0.2, high=0.28, half=0.1)
    log_ratio = torch.tensor([[0.1, math.log(1.28) + 0.2, math.log(0.8) - 0.1, 3.0]], dtype=torch.float64)
    advantage = torch.tensor([[2.0, 1.0, -1.0, -1.0]], dtype=torch.float64)
    logp = torch.full_like(log_ratio, -1.0).requires_grad_()
    (weight,) = torch.autograd.grad(rule(log_ratio, advantage, logp=logp).sum(), logp)
    r = log_ratio.exp()[0].tolist()
    assert weight[0].tolist() == pytest.approx([2 * r[0], r[1] / 4, -r[2] / 2, -r[3]])


def test_a_faded_clip_of_no_width_has_the_gradient_of_ppo(example):
    sharp = replace(presets.dapo, surrogate=example("faded_clip", "FadedClip")(half=1e-9))
    clipped = replace(presets.dapo, surrogate=PPOClip(low=0.2, high=0.28))
    columns = batch()
    found = []
    for objective in (sharp, clipped):
        prepared, _ = objective.prepare({k: x for k, x in columns.items() if k != "logp"})
        found.append(objective.weights(prepared | {"logp": columns["logp"]}, objective.count(prepared)))
    torch.testing.assert_close(found[0], found[1])
    assert found[0].unique().numel() > 5


def test_rare_steps_on_hard_problems_count_more(example):
    """One success of four, p = .5: A (1 + gain .75 .5); a failure keeps its advantage."""
    rule = example("explore_hard", "ExploreHard")(gain=2.0)
    reward, group = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64)
    solved = rule.prepare(reward=reward, group=group)["solved"]
    assert solved.tolist() == [0.25] * 4
    logp = torch.full((4, 1), math.log(0.5))
    shaped = rule(torch.tensor([[1.0], [-1.0], [0.0], [-2.0]]), logp=logp, solved=solved)
    assert shaped.flatten().tolist() == pytest.approx([1 + 2 * 0.75 * 0.5, -1, 0, -2])


def test_a_slice_of_rows_gets_the_pass_rate_of_the_whole_group(example):
    objective = example("explore_hard")
    columns = batch()
    prepared, _ = objective.prepare({k: x for k, x in columns.items() if k != "logp"})
    rows, totals = prepared | {"logp": columns["logp"]}, objective.count(prepared)
    whole = objective.weights(rows, totals)
    for part in (slice(0, 3), slice(3, 8)):
        part_of = objective.weights({k: x[part] for k, x in rows.items()}, totals)
        assert torch.equal(part_of, whole[part])


def test_the_coefficient_rises_while_kl_is_over_its_target_and_falls_while_it_is_under(example):
    """k3 of d = -1 is e - 2 = .718: beyond twice the target, so the step is the whole rate."""
    kind = example("adaptive_kl", "AdaptiveKL")
    controller = kind(start=0.01, target=0.05, rate=0.1)
    assert is_controller(controller)
    columns = {k: x for k, x in batch().items() if k in ("old_logp", "ref_logp", "mask")}
    up = controller.observe(controller.init(), **columns)
    assert controller.value(up) == pytest.approx(0.011)
    down = controller.observe(up, **(columns | {"ref_logp": columns["old_logp"]}))
    assert controller.value(down) == pytest.approx(0.0099)
    k3 = math.e - 2
    held = kind(start=0.01, target=k3 / 1.5, rate=0.1).observe({"value": 0.01}, **columns)
    assert held["value"] == pytest.approx(0.01 * 1.05), "KL is 1.5 times the target: half the rate"
    empty = columns | {"mask": torch.zeros_like(columns["mask"])}
    assert controller.observe(up, **empty) == up


def test_the_controller_stands_in_the_preset_and_its_number_reaches_the_loss(example):
    objective = example("adaptive_kl")
    assert list(objective.controllers()) == ["penalties.0.coef"]
    _, state = objective.prepare({k: x for k, x in batch().items() if k != "logp"})
    assert state == {"penalties.0.coef.value": pytest.approx(0.011)}
    assert objective.at(state).penalties[0].coef == state["penalties.0.coef.value"]


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_obeys_the_laws(root, file):
    result = CliRunner().invoke(app, ["check", f"{root / 'examples' / file}.py:{EXAMPLES[file]}"])
    assert result.exit_code == 0, result.output


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_trains_a_model(root, file, tmp_path):
    settings = [
        "trainer.prompts=4",
        "trainer.group_size=4",
        "trainer.max_completion_length=20",
        "evaluation.problems=3",
    ]
    settings += ["evaluation.samples=2"]
    result = CliRunner().invoke(
        app,
        [
            "train",
            *("--objective", f"{root / 'examples' / file}.py:{EXAMPLES[file]}"),
            *("--steps", "2", "--out", str(tmp_path / "run")),
            *(word for setting in settings for word in ("--set", setting)),
        ],
    )
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
