"""ObjectiveTrainer: what enters the loss, what is logged, what is refused."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from trl import GRPOTrainer

from isentrope import IsentropeError, presets, tasks
from isentrope.engines.trl import (
    CompletionError,
    InertObjectiveWarning,
    ObjectiveTrainer,
    OptionError,
    RewardError,
)

from .conftest import length_reward
from .harness import MARKS, NoEngine, relative_distance

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::isentrope.engines.trl_options.InertObjectiveWarning")]

OFF_POLICY = {"steps_per_generation": 2, "num_iterations": 2, "per_device_train_batch_size": 4}


@pytest.mark.parametrize("name", ["ce_gppo", "gepo", "repo_d", "gspo", "dr_grpo"])
def test_the_split_into_micro_batches_does_not_matter(name: str, run: Any) -> None:
    common = {"max_steps": 2, "optim": "sgd", "learning_rate": 0.3, "max_grad_norm": 0.0}
    splits = [(8, 1), (4, 2), (2, 4)]
    whole, *parts = [
        run(name, common | {"per_device_train_batch_size": size, "gradient_accumulation_steps": number})
        for size, number in splits
    ]
    assert whole.gradients[0].abs().max() > 1e-3
    for part in parts:
        for mine, theirs in zip(part.gradients, whole.gradients, strict=True):
            assert relative_distance(mine, theirs) < 2e-5
        assert part.logged("loss") == pytest.approx(whole.logged("loss"), abs=1e-6)
        for key in ("entropy", "entropy/current_exact", "clip/high", "ratio/mean", "clip_ratio/high_max"):
            assert part.logged(key) == pytest.approx(whole.logged(key), rel=1e-5, abs=1e-7)


def test_the_constructor_is_trls_with_more_keywords() -> None:
    stock, ours = (inspect.signature(c.__init__).parameters for c in (GRPOTrainer, ObjectiveTrainer))
    assert list(ours)[: len(stock)] == list(stock)
    more = [ours[name] for name in list(ours)[len(stock) :]]
    assert {"objective", "token_sink", "token_interval", "diagnostics_interval"} <= {p.name for p in more}
    assert all(p.kind is p.KEYWORD_ONLY for p in more)
    assert [p.name for p in more if p.default is p.empty] == ["objective"]
    assert all(ours[name].default == p.default for name, p in stock.items())


def test_an_objective_comes_by_name_toml_or_file(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from isentrope import presets\nmine = presets.gppo\n")
    for source, expected in [
        ("ce_gppo", presets.ce_gppo),
        (str(presets.adapo), presets.adapo),
        (f"{file}:mine", presets.gppo),
    ]:
        assert run(source, {"max_steps": 1}).trainer.objective == expected
    with pytest.raises(IsentropeError, match="ce_gpo"):
        run("ce_gpo")


def test_an_objective_that_cannot_act_is_announced_before_training(run: Any) -> None:
    with pytest.warns(InertObjectiveWarning, match="surrogate: .* 1 update per rollout batch"):
        on_policy = run("ce_gppo", {"max_steps": 1})
    assert on_policy.trainer.updates_per_rollout == 1


@pytest.mark.filterwarnings("error::isentrope.engines.trl_options.InertObjectiveWarning")
def test_an_objective_that_can_act_is_not_warned_about(run: Any) -> None:
    assert run("ce_gppo", OFF_POLICY | {"max_steps": 1}).trainer.updates_per_rollout == 4


def test_both_sets_of_metrics_are_logged(run: Any) -> None:
    line = run("adapo", OFF_POLICY).trainer.state.log_history[0]
    trls = ["loss", "reward", "reward_std", "frac_reward_zero_std", "entropy", "num_tokens", "completions/mean_length"]
    trls += ["clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "clip_ratio/low_min"]
    ours = ["entropy/current_exact", "entropy/old_exact", "clip/low", "clip/high", "ratio/mean", "kl_old"]
    ours += [
        "tokens/selected",
        "tokens/excluded",
        "controller/surrogate.high.value",
        "controller/surrogate.high.target",
    ]
    by_task = [f"{key}/{task}" for key in ("reward", "entropy/current_exact") for task in ("even", "odd")]
    missing = {*trls, "clip_ratio/high_max", *ours, *by_task} - set(line)
    assert not missing
    assert line["entropy"] == line["entropy/current_exact"] == pytest.approx(line["entropy/old_exact"], rel=1e-2)
    assert line["tokens/selected"] == 1.0
    assert line["tokens/excluded"] == 0.0


def test_entropy_is_pooled_over_tokens_of_all_micro_batches(run: Any) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    done = run(
        "grpo",
        OFF_POLICY | {"gradient_accumulation_steps": 2, "max_steps": 1},
        token_sink=lambda _, c: seen.append((c["entropy"], c["mask"])),
        token_interval=1,
    )
    assert len(seen) == 2
    pooled = sum(h[m].sum() for h, m in seen) / sum(m.sum() for _, m in seen)
    mean_of_means = sum(h[m].mean() for h, m in seen) / 2
    assert abs(pooled - mean_of_means) > 1e-5, "the example must tell the two apart"
    assert done.logged("entropy/current_exact")[0] == pytest.approx(float(pooled), rel=1e-6)


def test_controllers_move_once_a_rollout_and_not_in_evaluation(run: Any, prompts: Dataset) -> None:
    options = OFF_POLICY | {"max_steps": 8, "eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}
    options["per_device_eval_batch_size"] = 8
    done = run("adapo", options, eval_dataset=prompts.select(range(4)))
    values = done.logged("controller/surrogate.high.value")
    assert len(values) == 8
    assert len(set(values)) == 2, "two rollouts: the first sets the target, the second moves"
    assert values[0] == 0.28
    evaluations = done.logged("eval_entropy/current_exact")
    assert len(evaluations) == 9
    assert all(math.isfinite(x) for x in evaluations + done.logged("eval_loss") + done.logged("eval_reward"))
    assert not [key for line in done.history for key in line if key.startswith("eval_controller")]


def test_evaluation_does_not_change_the_run(run: Any, prompts: Dataset) -> None:
    alone = run("gepo", OFF_POLICY)
    torch.manual_seed(0)
    options = OFF_POLICY | {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 8}
    watched = run("gepo", options, eval_dataset=prompts.select(range(4)))
    for a, b in zip(alone.parameters, watched.parameters, strict=True):
        assert torch.equal(a, b)


# rewards


def half_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float | None]:
    """Applies to every other row."""
    return [len(ids) / 3 if i % 2 else None for i, ids in enumerate(completion_ids)]


def test_weighted_reward_functions_are_trls(run: Any) -> None:
    options = {"reward_weights": [0.5, 2.0], "max_steps": 2}
    sgd = {"optim": "sgd", "learning_rate": 0.3, "max_grad_norm": 0.0}
    functions = [length_reward, half_reward]
    ours = run("dr_grpo", options | sgd, reward_funcs=list(functions))
    stock = run(
        None,
        options | sgd | {"loss_type": "dr_grpo", "scale_rewards": "none"},
        trainer=GRPOTrainer,
        reward_funcs=list(functions),
    )
    assert relative_distance(ours.gradients[-1], stock.gradients[-1]) < 1e-4
    for key in ("reward", "rewards/half_reward/mean", "reward_std"):
        assert ours.logged(key) == pytest.approx(stock.logged(key))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.0, math.nan], r"no finite reward for row 1 \(4 of 8 rows\): 'bad' returned NaN or None"),
        ([0.0, None], r"no finite reward for row 1 \(4 of 8 rows\): 'bad' returned NaN or None"),
        ([math.inf, 0.0], r"reward function 'bad' returned inf for row 0"),
        ([0.0, -math.inf], r"reward function 'bad' returned -inf for row 1"),
    ],
)
def test_a_reward_that_is_no_number_is_an_error(values: list[float | None], message: str, run: Any) -> None:
    def bad(completions: list[str], **kwargs: Any) -> list[float | None]:
        return [values[i % 2] for i in range(len(completions))]

    with pytest.raises(RewardError, match=message):
        run("grpo", reward_funcs=bad)


def abstaining(values: list[float | None]) -> Any:
    """A reward function like those of `tasks.reward_function`: None says that the completion could not be scored."""

    def reward(completions: list[str], **kwargs: Any) -> list[float | None]:
        return [values[i % len(values)] for i in range(len(completions))]

    reward.may_abstain = True  # type: ignore[attr-defined]
    return reward


def test_what_could_not_be_scored_is_left_out_of_its_group(run: Any) -> None:
    """Of four completions of a prompt two are scored: their advantages are those of a group of two."""
    options = {"max_steps": 1, "optim": "sgd", "learning_rate": 0.3, "max_grad_norm": 0.0}
    sink: list[dict[str, Tensor]] = []
    more = {"token_sink": lambda step, columns: sink.append(columns), "token_interval": 1}
    done = run("dr_grpo", options, reward_funcs=abstaining([1.0, None, 0.0, None]), **more)
    rows = {
        int(row): (a, m)
        for columns in sink
        for row, a, m in zip(columns["row"], columns["advantage"], columns["mask"], strict=True)
    }
    assert len(rows) == 8
    for row, (advantage, mask) in rows.items():
        assert mask.any() == (row % 2 == 0)
        expected = 0.5 if row % 4 == 0 else -0.5
        assert advantage[mask].tolist() == [expected] * int(mask.sum())
    assert done.gradients[0].abs().max() > 0
    assert done.logged("rewards/reward/mean") == [0.5]


def test_a_batch_of_which_nothing_could_be_scored_changes_nothing(run: Any) -> None:
    done = run("grpo", {"max_steps": 1}, reward_funcs=abstaining([None]))
    assert done.gradients[0].abs().max() == 0
    assert done.logged("loss") == [0.0]


def test_the_share_that_could_not_be_scored_is_logged(run: Any, prompts: Dataset) -> None:
    class Sometimes:
        name = "sometimes"

        def examples(self, split: str, count: int, seed: int) -> list[tasks.Example]:
            return [tasks.Example(f"{i}+{i}=", i, self.name) for i in range(count)]

        def score(self, completion: str, example: tasks.Example) -> tasks.Score:
            return (
                tasks.unscored("time-out")
                if example.answer % 2
                else tasks.judge(len(completion) > 3, completion or "-")
            )

        def validate(self) -> None:
            """Nothing to check."""

    rows = Dataset.from_list(tasks.dataset_rows(Sometimes(), "train", 32, 0))
    done = run("grpo", {"max_steps": 4}, train_dataset=rows, reward_funcs=tasks.reward_function(Sometimes()))
    assert set(done.logged("unscored")) <= {0.0, 0.5, 1.0}
    assert 0 < sum(done.logged("unscored")) / 4 < 1


def test_equal_rewards_give_a_step_of_zero(run: Any) -> None:
    def constant(completions: list[str], **kwargs: Any) -> list[float]:
        return [1.0] * len(completions)

    for name in ("grpo", "dapo"):
        done = run(name, {"max_steps": 1}, reward_funcs=constant)
        assert done.gradients[0].abs().max() == 0
        assert done.logged("loss") == [0.0]


# rollouts of the user's own, tool output, the sampler's log-probabilities


def rollouts(completions: list[list[int]], **extra: list[Any]) -> Callable[..., dict[str, Any]]:
    """A rollout function that answers with the given completions in turn, and extra fields likewise."""

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        def spread(values: list[Any]) -> list[Any]:
            return [list(values[i % len(values)]) for i in range(len(prompts))]

        return {
            "prompt_ids": trainer.processing_class(prompts)["input_ids"],
            "completion_ids": spread(completions),
            "logprobs": spread(extra.get("logprobs", [[-1.0] * len(ids) for ids in completions])),
            **{key: spread(values) for key, values in extra.items() if key != "logprobs"},
        }

    return rollout


ANSWERS = [[5, 6, 7, 1], [8, 9, 1], [4, 5, 6, 7, 8, 9], [10, 1]]
MASKS = [[1, 0, 0, 1], [1, 1, 1], [1, 1, 0, 0, 1, 1], [0, 0]]
SGD = {"optim": "sgd", "learning_rate": 0.3, "max_grad_norm": 0.0, "max_steps": 2}
TRL_DAPO = replace(presets.dapo, advantage=replace(presets.dapo.advantage, eps=1e-4), select=())


@pytest.fixture(autouse=True)
def quiet_rollout_func(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def test_a_completion_without_tokens_is_an_error(run: Any) -> None:
    with pytest.raises(CompletionError, match="rollout_func returned a completion of length 0 for row 2"):
        run("grpo", rollout_func=rollouts([[5, 1], [6, 1], [], [7, 1]]))


def test_tool_output_has_no_part_in_the_loss(run: Any) -> None:
    seen: list[dict[str, Tensor]] = []
    given = {"rollout_func": rollouts(ANSWERS, env_mask=MASKS)}
    ours = run(TRL_DAPO, SGD, token_sink=lambda _, c: seen.append(c), token_interval=1, **given)
    stock = run(None, SGD | {"epsilon_high": 0.28}, trainer=GRPOTrainer, **given)
    for mine, theirs in zip(ours.gradients, stock.gradients, strict=True):
        assert theirs.abs().max() > 1e-3
        assert relative_distance(mine, theirs) < 1e-5
    lengths = {int(m.sum()) for m in seen[0]["mask"]}
    assert lengths == {2, 3, 4, 0}, "rows of each mask, one without any token of the policy"
    assert seen[0]["weight"][~seen[0]["mask"]].abs().max() == 0
    assert (seen[0]["weight"] != 0).any()


def test_truncated_completions_can_be_masked(run: Any) -> None:
    given = {"rollout_func": rollouts(ANSWERS)}  # the third has no end token
    ours = run(TRL_DAPO, SGD | {"mask_truncated_completions": True}, **given)
    stock = run(None, SGD | {"mask_truncated_completions": True, "epsilon_high": 0.28}, trainer=GRPOTrainer, **given)
    unmasked = run(TRL_DAPO, SGD, **given)
    assert relative_distance(ours.gradients[-1], stock.gradients[-1]) < 1e-5
    assert relative_distance(ours.gradients[0], unmasked.gradients[0]) > 1e-2


def test_the_length_limit_is_a_column(run: Any) -> None:
    from isentrope.select import Untruncated

    seen: list[dict[str, Tensor]] = []
    objective = replace(presets.grpo, select=(Untruncated(),))
    run(
        objective,
        {"max_steps": 1},
        rollout_func=rollouts(ANSWERS),
        token_sink=lambda _, c: seen.append(c),
        token_interval=1,
    )
    dropped = (seen[0]["weight"] == 0).all(dim=1)
    assert dropped.tolist() == (seen[0]["mask"].sum(1) == 6).tolist()
    assert dropped.sum() == 2


SAMPLED = [[-1.0, -2.0, -0.5, -3.0], [-2.5, None, -1.0], [-3.0] * 6, [-1.5, -2.0]]


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_trls_correction_for_vllm_is_applied_once(mode: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", NoEngine)
    options = SGD | {"use_vllm": True, "vllm_importance_sampling_mode": mode}
    given = {"rollout_func": rollouts(ANSWERS, logprobs=SAMPLED)}
    ours = run(TRL_DAPO, options, **given)
    stock = run(None, options | {"epsilon_high": 0.28}, trainer=GRPOTrainer, **given)
    off = run(TRL_DAPO, options | {"vllm_importance_sampling_correction": False}, **given)
    assert relative_distance(ours.gradients[0], off.gradients[0]) > 1e-2
    for mine, theirs in zip(ours.gradients, stock.gradients, strict=True):
        assert relative_distance(mine, theirs) < 1e-5
    assert ours.logged("kl_rollout")[0] > 0


def test_our_correction_reads_the_samplers_columns(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from isentrope.correction import TruncatedImportance

    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", NoEngine)
    given = {"rollout_func": rollouts(ANSWERS, logprobs=SAMPLED)}
    trls = SGD | {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"}
    theirs = run(TRL_DAPO, trls | {"vllm_importance_sampling_clip_max": 2.0}, **given)
    ours = run(
        replace(TRL_DAPO, correction=TruncatedImportance(cap=2.0)),
        SGD | {"use_vllm": True, "vllm_importance_sampling_correction": False},
        **given,
    )
    for a, b in zip(ours.gradients, theirs.gradients, strict=True):
        assert relative_distance(a, b) < 1e-5


def test_two_corrections_are_refused(run: Any) -> None:
    from isentrope.correction import IcePop

    with pytest.raises(
        OptionError, match=r"corrected twice: by IcePop.* and by vllm_importance_sampling_correction=True"
    ):
        run(replace(presets.grpo, correction=IcePop()), {"use_vllm": True})


# reference model, adapters, experts


def test_a_kl_penalty_is_trls_beta(run: Any, tiny: Any) -> None:
    from isentrope.penalty import ReferenceKL

    options = SGD | {"max_steps": 4, "learning_rate": 0.03} | OFF_POLICY
    ours = run(replace(TRL_DAPO, penalties=(ReferenceKL(0.2),)), options)
    stock = run(
        None,
        options | {"beta": 0.2, "use_bias_correction_kl": False, "epsilon_high": 0.28},
        trainer=GRPOTrainer,
    )
    for mine, theirs in zip(ours.gradients, stock.gradients, strict=True):
        assert relative_distance(mine, theirs) < 1e-4
    assert ours.logged("kl") == pytest.approx(stock.logged("kl"), rel=1e-2, abs=1e-7)
    assert ours.logged("kl")[-1] > 1e-4
    assert ours.trainer.args.beta == 0.0
    assert run(TRL_DAPO, {"max_steps": 1}).trainer.ref_model is None


def test_lora_trains_the_adapter_alone_as_in_trl(run: Any) -> None:
    from peft import LoraConfig

    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    options = SGD | {"max_steps": 3}
    ours = run(TRL_DAPO, options, peft_config=adapter)
    stock = run(None, options | {"epsilon_high": 0.28}, trainer=GRPOTrainer, peft_config=adapter)
    trainable = [n for n, p in ours.trainer.model.named_parameters() if p.requires_grad]
    assert trainable
    assert all("lora_" in name for name in trainable)
    for mine, theirs in zip(ours.gradients, stock.gradients, strict=True):
        assert relative_distance(mine, theirs) < 1e-4
    assert not torch.equal(ours.parameters[0], ours.parameters[-1])


def test_the_reference_of_an_adapter_is_the_model_without_it(run: Any) -> None:
    from peft import LoraConfig

    from isentrope.penalty import ReferenceKL

    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    ours = run(replace(TRL_DAPO, penalties=(ReferenceKL(0.2),)), SGD, peft_config=adapter)
    stock = run(
        None,
        SGD | {"beta": 0.2, "use_bias_correction_kl": False, "epsilon_high": 0.28},
        trainer=GRPOTrainer,
        peft_config=adapter,
    )
    for mine, theirs in zip(ours.gradients, stock.gradients, strict=True):
        assert relative_distance(mine, theirs) < 1e-4
    assert ours.logged("kl")[0] > 1e-2


def test_a_stream_of_prompts_trains_too(run: Any, prompts: Dataset) -> None:
    done = run("gepo", OFF_POLICY | {"max_steps": 9}, train_dataset=prompts.to_iterable_dataset())
    assert sorted(done.trainer._tasks.names) == ["even", "odd"]
    assert [key for line in done.history for key in line if key.startswith("entropy/current_exact/")]


def test_the_router_loss_of_experts_is_trls(run: Any, tokenizer: Any) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    def experts() -> Any:
        torch.manual_seed(0)
        return MixtralForCausalLM(
            MixtralConfig(
                vocab_size=len(tokenizer),
                hidden_size=32,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                num_local_experts=4,
                max_position_embeddings=64,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                router_aux_loss_coef=0.5,
                initializer_range=0.3,
            )
        )

    options = SGD | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    ours = run(TRL_DAPO, options, model=experts())
    stock = run(None, options | {"epsilon_high": 0.28}, trainer=GRPOTrainer, model=experts())
    for mine, theirs in zip(ours.gradients, stock.gradients, strict=True):
        assert relative_distance(mine, theirs) < 1e-4
    assert ours.logged("aux_loss") == pytest.approx(stock.logged("aux_loss"), rel=1e-4)


def test_the_sampling_temperature_scales_the_logits(run: Any) -> None:
    options = SGD | {"temperature": 0.6} | OFF_POLICY
    ours = run(TRL_DAPO, options)
    stock = run(None, options | {"epsilon_high": 0.28}, trainer=GRPOTrainer)
    for mine, theirs in zip(ours.gradients, stock.gradients, strict=True):
        assert relative_distance(mine, theirs) < 1e-4
    assert ours.logged("ratio/mean")[0] == pytest.approx(1.0, abs=1e-6)
    assert ours.logged("entropy")[0] < run(TRL_DAPO, SGD).logged("entropy")[0]


# the token sink


def test_the_sink_gets_the_micro_batches_of_every_second_step(run: Any) -> None:
    seen: list[tuple[int, dict[str, Tensor]]] = []
    options = OFF_POLICY | {"max_steps": 8}
    run("repo_r", options, token_sink=lambda step, columns: seen.append((step, columns)), token_interval=2)
    assert [step for step, _ in seen] == [2, 4, 6, 8]
    for _, columns in seen:
        shape = columns["mask"].shape
        assert shape[0] == 4
        assert all(columns[name].shape == shape for name in ("token_id", "logp", "old_logp", "entropy", "advantage"))
        assert all(columns[name].shape == shape[:1] for name in ("row", "group", "task"))
        assert not any(value.requires_grad for value in columns.values())
        assert columns["weight"].abs().max() > 0
        assert torch.equal(columns["group"], columns["row"] // 4)
    rows = [columns["row"].tolist() for _, columns in seen]
    assert sorted(rows[0]) == sorted(rows[1])  # the second slice of the first rollout, in both iterations
    assert set(rows[0]) < set(range(8))
    assert set(rows[2]) < set(range(8, 16))


def test_the_dumped_weights_are_those_of_the_gradient(run: Any) -> None:
    seen: list[dict[str, Tensor]] = []
    done = run("rloo", {"max_steps": 1, "learning_rate": 0.0}, token_sink=lambda _, c: seen.append(c), token_interval=1)
    columns = seen[0]
    leave_one_out = columns["advantage"] / columns["mask"].sum()
    assert torch.allclose(columns["weight"], leave_one_out.where(columns["mask"], 0.0))
    loss = -(columns["advantage"] * columns["logp"])[columns["mask"]].sum() / columns["mask"].sum()
    assert done.logged("loss")[0] == pytest.approx(float(loss), rel=1e-5)


def test_a_sink_without_an_interval_that_fits_is_refused(run: Any) -> None:
    with pytest.raises(ValueError, match="token_interval=5 needs a token_sink"):
        run("grpo", token_interval=5)


def test_our_advantages_stand_in_trls_table_of_completions(run: Any) -> None:
    seen: list[dict[str, Tensor]] = []
    done = run("dr_grpo", {"max_steps": 2}, token_sink=lambda _, c: seen.append(c), token_interval=2)
    logged = dict(enumerate(done.trainer._logs["advantages"]))
    assert len(logged) == 8
    for row, advantage in zip(seen[-1]["row"].tolist(), seen[-1]["advantage"][:, 0].tolist(), strict=True):
        assert logged[row - 8] == pytest.approx(advantage)


def test_rows_with_and_without_a_task_do_not_mix(run: Any) -> None:
    data = Dataset.from_dict({"prompt": ["1+1=", "2+2="] * 4, "task": ["sum", None] * 4})
    with pytest.raises(ValueError, match="column `task`: 4 of 8 rows have none"):
        run("grpo", train_dataset=data)


def test_a_column_that_trl_has_no_source_of_is_refused_at_construction(run: Callable[..., Any]) -> None:
    with pytest.raises(OptionError, match="needs `value`, which the TRL engine has no source of"):
        run(objective=presets.ppo)
