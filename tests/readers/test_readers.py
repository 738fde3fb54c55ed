"""What each reader makes of files as the frameworks write them; the fixtures are built from their schemas."""

import csv
import json
import math
import pickle
import re
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
import torch

from isentrope import presets, record, spec
from isentrope.errors import IsentropeError
from isentrope.findings import diagnose, measured
from isentrope.readers import read
from isentrope.token_dump import TokenWriter

STEPS = 30


def one(path, **options):
    (found,) = read(path, **options)
    return found


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def values(run, name):
    return list(run.series[name].values)


# -- our own run folder -----------------------------------------------------------------------------

RECIPE = """
seed = 0
[trainer]
minibatches = 4
passes = 2
group_size = 8
temperature = 0.9
max_completion_length = 24
OBJECTIVE
"""
EXPECTED_COEF = 1e-3


def recipe(objective, updates=4):
    """A recipe as a run folder holds it: every rule of the objective written out."""
    tables = tomli_w.dumps({"objective": spec.to_dict(objective)})
    return RECIPE.replace("OBJECTIVE", tables).replace("minibatches = 4", f"minibatches = {updates}")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "mine"
    path.mkdir()
    (path / "recipe.toml").write_text(recipe(presets.entropy_bonus))
    for step in range(1, 4):
        numbers = {"entropy/current_exact": 0.5 / step, "entropy": 9.0, "clip/high": 0.01}
        numbers |= {"entropy/current_exact/maths": 0.1, "reward/maths": 0.4, "controller/surrogate.high.value": 0.3}
        record.append_metrics(path / "metrics.jsonl", step, numbers | ({"reward": 0.25} if step == 2 else {}))
    return path


def test_our_run_folder(folder):
    run = one(folder)
    assert (run.name, run.engine) == ("mine", "isentrope")
    assert values(run, "entropy") == [0.5, 0.25, pytest.approx(0.5 / 3)]
    assert run.series["reward"].steps == (2.0,)
    assert run.series["entropy/maths"].values == (0.1,) * 3
    assert {"reward/maths", "controller/surrogate.high.value", "clip_high"} <= run.series.keys()
    assert run.facts.updates_per_rollout == 8
    assert (run.facts.temperature, run.facts.max_length, run.facts.entropy_coef) == (0.9, 24, EXPECTED_COEF)
    assert run.facts.entropy_kind == "exact"
    assert run.facts.inert == ()
    assert not any("exact or an estimate" in lack for lack in run.lacks)


def test_tokens_of_our_run_folder_are_measured(folder):
    writer = TokenWriter(folder / "tokens")
    columns = {
        "row": torch.tensor([0, 1]),
        "group": torch.tensor([0, 0]),
        "token_id": torch.ones(2, 3, dtype=torch.long),
        "logp": torch.log(torch.tensor([[0.5, 0.9, 0.5], [0.1, 0.2, 0.5]])),
        "old_logp": torch.log(torch.tensor([[0.5, 0.6, 0.5], [0.1, 0.2, 0.5]])),
        "entropy": torch.full((2, 3), 0.7),
        "advantage": torch.tensor([[1.0] * 3, [-1.0] * 3]),
        "weight": torch.tensor([[0.5] * 3, [-0.5, -0.5, 0.0]]),
        "mask": torch.tensor([[True, True, False], [True, True, True]]),
    }
    writer(2, columns)
    writer.close()
    run = measured(one(folder))
    assert run.series["tokens/entropy"].steps == (2.0,)
    assert values(run, "tokens/entropy") == pytest.approx([0.7])
    assert values(run, "tokens/clip_high") == pytest.approx([1 / 5])  # one of five tokens, .9 / .6
    assert values(run, "tokens/ratio_one") == pytest.approx([4 / 5])
    # NA: .1 and .2 are LP, .5 is HP (-.693 + .7 > 0) and has no weight
    assert values(run, "tokens/silenced/NA&HP") == [1.0]
    assert sum(abs(values(run, f"change_share/{q}")[0]) for q in ("PA&HP", "NA&LP", "NA&HP")) == pytest.approx(1)


def test_a_recipe_that_names_code_is_read_as_data(folder, tmp_path):
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (folder / "recipe.toml").write_text(recipe(presets.grpo).replace('"PPOClip"', f'"{trap}:Rule"'))
    run = one(folder)
    assert run.facts.inert is None
    assert run.facts.updates_per_rollout == 8
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("name", "matters"), [("grpo", False), ("adapo", True), ("ce_gppo", True)])
def test_a_rule_that_cannot_act_is_known_and_a_plain_clip_is_none(folder, name, matters):
    text = recipe(getattr(presets, name), updates=1).replace("passes = 2", "passes = 1")
    (folder / "recipe.toml").write_text(text)
    assert bool(one(folder).facts.inert) == matters


def test_a_folder_of_runs_gives_each(folder):
    found = read(folder.parent)
    assert [run.name for run in found] == ["mine"]


# -- TRL --------------------------------------------------------------------------------------------


def trl_log(step):
    return {
        "step": step,
        "epoch": step / 100,
        "loss": 0.01,
        "grad_norm": 0.3,
        "learning_rate": 1e-6,
        "num_tokens": 1e5 * step,
        "completions/mean_length": 300.0,
        "completions/clipped_ratio": 0.03,
        "rewards/correct/mean": 0.5,
        "reward": 0.5 + 0.01 * (step % 3),
        "reward_std": 0.4,
        "frac_reward_zero_std": 0.25,
        "entropy": 0.4,
        "clip_ratio/low_mean": 0.001,
        "clip_ratio/high_mean": 0.002,
        "clip_ratio/region_mean": 0.003,
        "sampling/sampling_logp_difference/mean": 0.012,
        "kl": None,
    }


def trainer_state(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"global_step": len(rows), "log_history": rows}))
    return path


def test_a_trainer_state_of_trl(tmp_path):
    rows = [trl_log(step) for step in range(1, STEPS + 1)]
    rows += [{"step": STEPS, "eval_reward": 0.9, "eval_entropy": 9.0}, {"step": STEPS, "train_runtime": 10.0}]
    trainer_state(tmp_path / "out" / "checkpoint-9" / "trainer_state.json", rows[:9])
    trainer_state(tmp_path / "out" / "checkpoint-30" / "trainer_state.json", rows)
    run = one(tmp_path / "out")
    assert (run.engine, run.facts.entropy_kind) == ("trl", "exact")
    assert len(run.series["entropy"]) == STEPS
    assert values(run, "entropy") == [0.4] * STEPS
    assert values(run, "mismatch") == [0.012] * STEPS
    assert "kl_ref" not in run.series
    assert diagnose(run) == []
    assert one(tmp_path / "out" / "checkpoint-30" / "trainer_state.json").series == run.series


def trl_completions(folder, step, rewards):
    folder.mkdir(parents=True, exist_ok=True)
    table = {
        "step": [step] * len(rewards),
        "prompt": [f"p{i // 4}" for i in range(len(rewards))],
        "completion": [[{"role": "assistant", "content": f"answer {i % 2}"}] for i in range(len(rewards))],
        "correct": rewards,
        "note": ["text"] * len(rewards),
        "advantage": [0.0] * len(rewards),
    }
    pq.write_table(pa.table(table), folder / f"completions_{step:05d}.parquet")


def test_completions_of_trl(tmp_path):
    trl_completions(tmp_path / "completions", 1, [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    trl_completions(tmp_path / "completions", 2, [0.0] * 8)
    run = one(tmp_path)
    assert run.series["reward"].steps == (1.0, 2.0)
    assert values(run, "reward") == [0.75, 0.0]
    assert values(run, "zero_std") == [0.5, 1.0]
    assert values(run, "distinct") == [0.5, 0.5]  # two texts among four completions
    assert any("no log-probabilities" in lack for lack in run.lacks)


def test_a_trl_folder_joins_log_and_completions(tmp_path):
    trainer_state(tmp_path / "checkpoint-30" / "trainer_state.json", [trl_log(s) for s in range(1, STEPS + 1)])
    trl_completions(tmp_path / "completions", 1, [1.0, 0.0] * 4)
    run = one(tmp_path)
    assert len(values(run, "reward")) == STEPS
    assert values(run, "distinct") == [0.25 * 2]


# -- verl -------------------------------------------------------------------------------------------


def verl_log(step):
    numbers = {
        "actor/entropy": 0.4,
        "actor/pg_clipfrac": 0.002,
        "actor/pg_clipfrac_lower": 0.0,
        "actor/ppo_kl": -0.0004,
        "actor/pg_loss": 0.01,
        "actor/grad_norm": 0.2,
        "actor/lr": 1e-6,
        "critic/score/mean": 0.5 + 0.01 * (step % 3),
        "critic/rewards/mean": 0.4,
        "response_length/mean": 800.0,
        "response_length/clip_ratio": 0.02,
        "rollout_corr/k3_kl": 0.0009,
        "rollout_corr/training_log_ppl": 0.41,
        "training/rollout_probs_diff_mean": 0.004,
        "timing_s/step": 30.0,
    }
    return {"step": step, "elapsed_seconds": 30.0 * step, "data": numbers}


def test_the_file_logger_of_verl(tmp_path):
    run = one(write_lines(tmp_path / "verl.jsonl", [verl_log(step) for step in range(STEPS)]))
    assert (run.engine, run.facts.entropy_kind) == ("verl", "exact")
    assert run.series["entropy"].steps == tuple(map(float, range(STEPS)))
    assert values(run, "reward")[:3] == [0.5, 0.51, 0.52]
    expected = {"clip": 0.002, "kl_old": -0.0004, "kl_rollout": 0.0009, "mismatch_p": 0.004, "truncated": 0.02}
    assert {name: run.series[name].values[0] for name in expected} == expected
    assert diagnose(run) == []


def test_an_entropy_that_old_verl_calls_a_loss(tmp_path):
    rows = [{"step": s, "data": {"actor/entropy_loss": 0.3, "actor/pg_clipfrac": 0.1}} for s in range(3)]
    assert values(one(write_lines(tmp_path / "old.jsonl", rows)), "entropy") == [0.3] * 3


def test_rollout_dumps_of_verl(tmp_path):
    for step in (9, 10):
        rows = [
            {
                "input": f"p{i // 2}",
                "output": "x" * i,
                "gts": "1",
                "score": float(i % 2),
                "step": step,
                "uid": f"u{i // 2}",
            }
            for i in range(4)
        ]
        write_lines(tmp_path / "rollouts" / f"{step}.jsonl", rows)
    run = one(tmp_path / "rollouts")
    assert run.series["reward"].steps == (9.0, 10.0)
    assert values(run, "reward") == [0.5, 0.5]
    assert values(run, "zero_std") == [0.0, 0.0]
    assert one(tmp_path / "rollouts" / "9.jsonl").series["reward"].values == (0.5,)


# -- ms-swift, prime-rl, slime ----------------------------------------------------------------------


def test_the_log_of_ms_swift(tmp_path):
    rows = [
        {
            "loss": "0.01",
            "entropy/mean": 0.4,
            "entropy/max": 3.0,
            "clip_ratio/low_mean": 0.001,
            "reward": 0.5,
            "frac_reward_zero_std": 0.2,
            "completions/mean_length": 200.0,
            "global_step/max_steps": f"{step}/{STEPS}",
            "train_speed(iter/s)": 0.1,
        }
        for step in range(1, STEPS + 1)
    ]
    rows += [{"train_runtime": 100.0, "global_step/max_steps": f"{STEPS}/{STEPS}"}, {"last_model_checkpoint": "x"}]
    run = one(write_lines(tmp_path / "logging.jsonl", rows))
    assert (run.engine, run.facts.entropy_kind) == ("ms-swift", "exact")
    assert run.series["entropy"].steps == tuple(float(s) for s in range(1, STEPS + 1))
    assert values(run, "loss") == [0.01] * STEPS
    assert not [name for name in run.series if name.startswith("entropy/")]
    assert one(tmp_path).series == run.series


def prime_sequence(step, **changes):
    return {
        "schema_version": 1,
        "step": step,
        "rank": 0,
        "env_name": "maths",
        "token_ids": [5, 6, 7],
        "loss_mask": [False, True, True],
        "advantages": [0.0, 1.0, 1.0],
        "inference_logprobs": [0.0, -1.0, None],
        "trainer_logprobs": [0.0, -1.1, -2.0],
        "entropy": [9.0, 0.5, 1.5],
    } | changes


def test_token_exports_of_prime_rl(tmp_path):
    for step in (0, 1):
        for rank in (0, 1):
            write_lines(tmp_path / "token_exports" / f"step_{step}" / f"rank_{rank}.jsonl", [prime_sequence(step)] * 2)
    run = measured(one(tmp_path))
    assert (run.engine, run.facts.entropy_kind) == ("prime-rl", "exact")
    assert run.series["entropy"].steps == (0.0, 1.0)
    assert values(run, "entropy") == [1.0, 1.0]  # the masked token's 9 nats do not count
    assert values(run, "mismatch") == pytest.approx([0.1, 0.1])  # the null is left out
    assert one(tmp_path / "token_exports" / "step_1").tokens is not None


def train_dump(path, rollout, **changes):
    sample = {
        "tokens": [1, 2, 3],
        "response_lengths": 2,
        "loss_masks": torch.tensor([1, 1]),
        "log_probs": torch.tensor([-1.0, -2.0]),
        "rollout_log_probs": torch.tensor([-1.0, -2.2]),
        "entropy": torch.tensor([0.5, 0.7]),
        "advantages": torch.tensor([1.0, 1.0]),
        "rewards": 0.5,
    } | changes
    torch.save({"format_version": 2, "rollout_id": rollout, "rank": 0, "samples": [sample, sample]}, path)
    return path


def test_train_dumps_of_slime(tmp_path):
    for rollout in (0, 1):
        train_dump(tmp_path / f"train_{rollout}.pt", rollout)
    run = measured(one(tmp_path))
    assert run.engine == "slime"
    assert run.series["entropy"].steps == (0.0, 1.0)
    assert values(run, "entropy") == pytest.approx([0.6, 0.6])
    assert values(run, "mismatch") == pytest.approx([0.1, 0.1])


def test_rollout_dumps_of_slime(tmp_path):
    samples = [
        {"group_index": i // 2, "index": i, "reward": float(i % 2), "response_length": 10 + i, "status": status}
        for i, status in enumerate(("completed", "truncated", "completed", "completed"))
    ]
    torch.save({"rollout_id": 7, "samples": samples}, tmp_path / "rollout_7.pt")
    run = one(tmp_path / "rollout_7.pt")
    assert run.series["reward"].steps == (7.0,)
    assert (values(run, "truncated"), values(run, "zero_std")) == ([0.25], [0.0])
    assert any("sampler's side alone" in lack for lack in run.lacks)


def test_a_dump_that_holds_objects_is_refused_unless_allowed(tmp_path):
    path = tmp_path / "rollout_0.pt"
    torch.save({"rollout_id": 0, "samples": [{"reward": 1.0, "when": datetime(2026, 1, 1)}]}, path)
    with pytest.raises(IsentropeError, match=r"rollout_0\.pt holds more than tensors.*--allow-pickle"):
        read(path)
    assert values(one(path, allow_pickle=True), "reward") == [1.0]


class Trap:
    def __reduce__(self):
        return (print, ("ran",))


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_a_pickle_does_not_run(tmp_path, capsys, writer):
    path = tmp_path / "rollout_0.pt"
    if writer == "torch":
        torch.save({"samples": [Trap()]}, path)
    else:
        path.write_bytes(pickle.dumps({"samples": [Trap()]}))
    with pytest.raises(IsentropeError, match=r"rollout_0\.pt"):
        read(path)
    assert capsys.readouterr().out == ""


# -- TensorBoard, W&B -------------------------------------------------------------------------------


def test_event_files_of_tensorboard(tmp_path):
    summary = pytest.importorskip("torch.utils.tensorboard")
    writer = summary.SummaryWriter(str(tmp_path / "logs"))
    for step in range(5):
        writer.add_scalar("train/entropy", 0.5, step)
        writer.add_scalar("train/reward", 0.1 * step, step)
        writer.add_scalar("train/frac_reward_zero_std", 0.2, step)
    writer.close()
    run = one(tmp_path / "logs")
    assert (run.engine, run.facts.entropy_kind) == ("trl", "exact")
    assert values(run, "entropy") == [0.5] * 5
    assert values(run, "reward") == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    (file,) = (tmp_path / "logs").iterdir()
    assert one(file).series == run.series


def test_without_tensorboard_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.backend.event_processing.event_accumulator", None)
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")
    with pytest.raises(IsentropeError, match="pip install tensorboard"):
        read(tmp_path / "events.out.tfevents.1")


def write_csv(path, heads, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([heads, *rows])
    return path


def test_a_history_exported_from_wandb(tmp_path):
    heads = ["", "_step", "_runtime", "actor/entropy", "critic/score/mean", "actor/pg_clipfrac"]
    rows = [[i, i, 10 * i, 0.5, "" if i % 2 else 0.25, 0.01] for i in range(6)]
    run = one(write_csv(tmp_path / "history.csv", heads, rows))
    assert run.engine == "verl"
    assert values(run, "entropy") == [0.5] * 6
    assert run.series["reward"].steps == (0.0, 2.0, 4.0)


def test_a_chart_exported_from_wandb_holds_several_runs(tmp_path):
    heads = ["Step", "a - actor/entropy", "a - actor/entropy__MIN", "a - actor/entropy__MAX", "b - actor/entropy"]
    path = write_csv(tmp_path / "chart.csv", heads, [[s, 0.5, 0.4, 0.6, 0.7 if s else ""] for s in range(3)])
    a, b = read(path)
    assert (a.name, b.name) == ("a", "b")
    assert values(a, "entropy") == [0.5] * 3
    assert b.series["entropy"].steps == (1.0, 2.0)


@pytest.mark.parametrize("inside", ["run-x.wandb", "run-x/run-x.wandb"])
def test_an_offline_record_of_wandb_says_what_to_do(tmp_path, inside):
    path = tmp_path / inside
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b":W&B")
    with pytest.raises(IsentropeError, match=r"wandb sync.*"):
        read(tmp_path)
    with pytest.raises(IsentropeError, match=r"to_csv"):
        read(path)


# -- anybody's tables -------------------------------------------------------------------------------

MAP = {"entropy": "h", "reward": "r", "step": "it"}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json list", "json columns", "parquet"])
def test_a_table_with_a_column_map(tmp_path, kind):
    columns = {"it": [1, 2, 3], "h": [0.5, 0.4, 0.3], "r": [0.1, 0.2, 0.3], "note": ["a", "b", "c"]}
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    path = tmp_path / f"table.{kind.split()[0]}"
    if kind == "csv":
        write_csv(path, list(columns), [list(row.values()) for row in rows])
    elif kind == "parquet":
        pq.write_table(pa.table(columns), path)
    elif kind == "jsonl":
        write_lines(path, rows)
    else:
        path.write_text(json.dumps(rows if kind == "json list" else columns))
    run = one(path, column=MAP)
    assert run.series["entropy"].steps == (1.0, 2.0, 3.0)
    assert (values(run, "entropy"), values(run, "reward")) == (columns["h"], columns["r"])
    assert run.facts.entropy_kind is None
    assert any("exact or an estimate" in lack for lack in run.lacks)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_table_with_a_line_a_token(tmp_path, kind):
    columns = {"step": [1, 1, 2], "lp": [-0.5, -1.5, -2.0], "entropy": [0.5, 1.5, 1.0], "mask": [True, True, False]}
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    path = tmp_path / f"tokens.{kind}"
    if kind == "csv":
        write_csv(path, list(columns), [list(row.values()) for row in rows])
    elif kind == "parquet":
        pq.write_table(pa.table(columns), path)
    else:
        write_lines(path, rows)
    run = measured(one(path, column={"logp": "lp"}))
    assert run.series["entropy"].steps == (1.0,)  # step 2 has masked tokens alone
    assert values(run, "entropy") == [1.0]
    assert values(run, "tokens/is_estimate") == [1.0]


def test_values_that_are_not_finite_are_kept_and_empty_cells_left_out(tmp_path):
    run = one(write_csv(tmp_path / "t.csv", ["step", "entropy"], [[1, "nan"], [2, ""], [3, "inf"], [4, 0.5]]))
    assert run.series["entropy"].steps == (1.0, 3.0, 4.0)
    assert math.isnan(run.series["entropy"].values[0])
    assert [f.name for f in diagnose(run)] == ["impossible"]


def test_a_step_that_was_made_again_counts_as_it_was_made_last(tmp_path):
    rows = [{"step": s, "entropy": h} for s, h in ((1, 0.5), (2, 0.4), (2, 0.3), (3, 0.2))]
    assert values(one(write_lines(tmp_path / "t.jsonl", rows)), "entropy") == [0.5, 0.3, 0.2]


def test_a_last_line_that_a_killed_process_left_is_dropped(tmp_path):
    path = write_lines(tmp_path / "t.jsonl", [{"step": 1, "entropy": 0.5}, {"step": 2, "entropy": 0.4}])
    path.write_text(path.read_text() + '{"step": 3, "ent')
    assert values(one(path), "entropy") == [0.5, 0.4]


# -- malformed --------------------------------------------------------------------------------------


def bad(name, content, message, **options):
    return pytest.param(name, content, message, options, id=f"{name}: {message[:40]}")


@pytest.mark.parametrize(
    ("name", "content", "message", "options"),
    [
        bad("a.jsonl", b'{"step": 1, "entropy": 0.5}\nnonsense\n{"step": 2}\n', r"a\.jsonl line 2 is not JSON"),
        bad("a.jsonl", b"[1, 2]\n", r"line 1 is not a JSON object but list"),
        bad("a.jsonl", b"", r"holds no lines"),
        bad("a.jsonl", b"\xff\xfe\x00\n{}\n", r"line 1 is not JSON"),
        bad("a.jsonl", b'{"step": 1, "x": ' + b"[" * 100_000 + b"\n{}\n", r"line 1 is not JSON"),
        bad("a.jsonl", b'{"entropy": 0.5}\n', r"has no column 'for the step'.*--column step=NAME"),
        bad("a.jsonl", b'{"step": "x", "entropy": 0.5}\n', r"line 1 has no number under 'step'"),
        bad("a.jsonl", b'{"step": 1, "loss_x": 0.5}\n', r"no column has a known name"),
        bad("a.jsonl", b'{"step": 1, "h": 0.5}\n', r"has no column 'hh'", column={"entropy": "hh"}),
        bad("a.jsonl", b'{"step": 1, "trainer_logprobs": [0.1], "loss_mask": [true, true]}\n', r"list of 2 numbers"),
        bad(
            "a.jsonl", b'{"step": 1, "trainer_logprobs": ["x"], "loss_mask": [true]}\n', r"something else than numbers"
        ),
        bad("a.csv", b"step,entropy\n1,2,3\n", r"line 2 has 3 cells under 2"),
        bad("a.csv", b"", r"holds no line of numbers"),
        bad("a.csv", b"step,entropy\n\xff,1\n", r"not a CSV file"),
        bad("a.json", b"3", r"neither a list of objects"),
        bad("a.json", b"{", r"a\.json is not JSON"),
        bad("trainer_state.json", b'{"log_history": 3}', r"no list of objects under 'log_history'"),
        bad(
            "trainer_state.json",
            b'{"log_history": [{"reward": 1}]}',
            r"entry 0 of log_history has no number under 'step'",
        ),
        bad("a.parquet", b"PAR1 not really", r"cannot read .*a\.parquet as parquet"),
        bad("completions_00001.parquet", b"", r"cannot read .* as parquet"),
        bad("a.pt", b"not a torch file", r"a\.pt"),
        bad("a.pt", b"", r"a\.pt"),
        bad("a.bin", b"", r"is of no known kind"),
        bad("events.out.tfevents.1", b"garbage garbage garbage", r"tfevents"),
    ],
)
def test_a_malformed_file_ends_in_one_clear_error(tmp_path, name, content, message, options):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(IsentropeError, match=message):
        [measured(run) for run in read(path, **options)]


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    from isentrope.readers import _text

    path = tmp_path / "a.jsonl"
    path.write_text("x" * 100)
    with pytest.raises(IsentropeError, match="line 1 is longer than 10 bytes"):
        list(_text.lines(path, limit=10))


def test_a_run_with_too_many_lines_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("isentrope.run.MAX_POINTS", 5)
    path = write_lines(tmp_path / "a.jsonl", [{"step": s, "entropy": 0.5} for s in range(6)])
    with pytest.raises(IsentropeError, match="more than 5 lines"):
        read(path)


def test_nothing_and_nothing_known(tmp_path):
    with pytest.raises(IsentropeError, match="there is no"):
        read(tmp_path / "none")
    with pytest.raises(IsentropeError, match="holds nothing that is known"):
        read(tmp_path)


@pytest.mark.parametrize(
    "samples", [3, [1], [{"log_probs": "x"}], [{"log_probs": [1.0], "loss_masks": [1, 1, 1], "entropy": [1.0, 2.0]}]]
)
def test_a_dump_of_another_shape_is_refused(tmp_path, samples):
    torch.save({"samples": samples}, tmp_path / "a.pt")
    with pytest.raises(IsentropeError, match=r"a\.pt"):
        measured(one(tmp_path / "a.pt"))


@pytest.mark.parametrize(
    ("key", "value", "fact"),
    [
        ("minibatches", 0, "updates_per_rollout"),
        ("passes", "[2]", "updates_per_rollout"),
        ("group_size", "-1", "group_size"),
        ("temperature", '"hot"', "temperature"),
        ("max_completion_length", "[]", "max_length"),
    ],
)
def test_a_number_of_a_recipe_that_is_none_is_not_known(folder, key, value, fact):
    path = folder / "recipe.toml"
    text = path.read_text()
    path.write_text(re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", text, count=1))
    assert path.read_text() != text
    assert getattr(one(folder).facts, fact) is None
