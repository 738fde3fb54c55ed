"""Dynamic sampling: groups without reward variance make room for further prompts."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor

from isentrope import presets
from isentrope.advantage import SoftOverlong
from isentrope.engines.trl import OptionError
from isentrope.engines.trl_resampling import _splice_output, further_prompts, stale_groups
from isentrope.rollout import Rollout

from .conftest import length_reward
from .harness import MARKS, NoEngine

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::isentrope.engines.trl_options.InertObjectiveWarning")]

OFF_POLICY = {"steps_per_generation": 4, "num_iterations": 2, "per_device_train_batch_size": 8}
FROZEN = OFF_POLICY | {"learning_rate": 0.0, "max_steps": 8}  # one rollout batch of 8 groups


def dynamic(rounds: int, **slots: Any) -> Any:
    return replace(presets.dapo, rollout=Rollout(rounds=rounds), **slots)


def varies(prompt: str) -> bool:
    """Every second pair of prompts: those that begin with 0, 1, 4, 5, ..."""
    return int(prompt.split("+")[0]) // 2 % 2 == 0


class Half:
    """Rewards that vary only in groups of prompts that `varies`; keeps what it was called with."""

    __name__ = "half"

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(self, prompts: list[str], completions: list[str], completion_ids: Any, **columns: Any) -> list[float]:
        self.calls.append({"prompts": prompts, "completions": completions} | columns)
        scores = [sum(ids) + i for i, ids in enumerate(completion_ids)]
        return [score if varies(prompt) else 1.0 for prompt, score in zip(prompts, scores, strict=True)]


def groups(prompts: list[str]) -> list[str]:
    assert all(prompts[i] == prompts[i - i % 4] for i in range(len(prompts))), "whole groups"
    return prompts[::4]


def kept_prompts(trainer: Any) -> list[str]:
    return groups(list(trainer._logs["prompt"]))


def test_groups_without_variance_are_replaced(run: Callable[..., Any]) -> None:
    reward = Half()
    done = run(dynamic(10), FROZEN, reward_funcs=reward)
    first, *further = [groups(call["prompts"]) for call in reward.calls]
    stale = [prompt for prompt in first if not varies(prompt)]
    assert 0 < len(stale) < len(first) == 8
    assert len(further[0]) == len(stale)
    kept = kept_prompts(done.trainer)
    assert all(varies(prompt) for prompt in kept)
    assert [a == b for a, b in zip(first, kept, strict=True)] == [varies(prompt) for prompt in first]
    assert not set(first) & {p for calls in further for p in calls}, "further prompts are not in the batch yet"
    assert done.logged("dynamic_sampling/replaced") == [len(stale)]
    assert done.logged("dynamic_sampling/left") == [0.0]
    assert done.logged("dynamic_sampling/rounds") == [len(further)]
    assert len(further) > 1, "one round is not enough here"
    assert done.logged("tokens/selected") == [1.0] * 8


def test_the_rows_that_are_put_together_belong_together(run: Callable[..., Any]) -> None:
    """At learning rate 0 every ratio is 1 only if a row's prompt, tokens and old log-probabilities are its own."""
    seen: list[dict[str, Tensor]] = []
    reward = Half()
    sink = {"token_sink": lambda _, c: seen.append(c), "token_interval": 1}
    done = run(dynamic(10), FROZEN, reward_funcs=reward, **sink)
    assert len({len(p) for call in reward.calls for p in call["prompts"]}) > 2
    assert done.logged("ratio/mean") == pytest.approx([1.0] * 8, abs=1e-5)
    assert done.logged("kl_old") == pytest.approx([0.0] * 8, abs=1e-7)
    for columns in seen[:4]:
        assert torch.allclose(columns["logp"], columns["old_logp"], atol=1e-5)
    slices = done.trainer._buffered_inputs
    assert int(slices[0]["num_items_in_batch"]) == sum(int(c["mask"].sum()) for c in seen[:4])
    by_row = {int(r): ids for c in seen[:4] for r, ids in zip(c["row"], c["token_id"], strict=True)}
    masks = {int(r): m for c in seen[:4] for r, m in zip(c["row"], c["mask"], strict=True)}
    logs = done.trainer._logs
    for row in range(32):
        text = done.trainer.processing_class.decode(by_row[row][masks[row]], skip_special_tokens=True)
        assert logs["completion"][row] == text
    tasks = {int(r): int(t) for c in seen[:4] for r, t in zip(c["row"], c["task"], strict=True)}
    for row, prompt in enumerate(logs["prompt"]):
        assert done.trainer._tasks.names[tasks[row]] == ("odd" if int(prompt.split("+")[0]) % 2 else "even")
    rewards = torch.tensor(list(logs["rewards"]["half"]))
    assert not stale_groups(rewards, 4)
    assert done.logged("dynamic_sampling/reward") == pytest.approx([float(rewards.mean())])
    advantage = (rewards.view(8, 4) - rewards.view(8, 4).mean(1, keepdim=True)).flatten()
    for row, logged in enumerate(logs["advantages"]):
        assert logged * float(advantage[row]) > 0


def test_reward_functions_get_the_columns_of_the_further_prompts(run: Callable[..., Any]) -> None:
    reward = Half()
    run(dynamic(3), FROZEN | {"max_steps": 1}, reward_funcs=reward)
    assert len(reward.calls) > 1
    for call in reward.calls:
        tasks = ["odd" if int(prompt.split("+")[0]) % 2 else "even" for prompt in call["prompts"]]
        assert call["task"] == tasks


def test_trls_metrics_describe_what_was_sampled_first(run: Callable[..., Any]) -> None:
    plain = run(dynamic(0), FROZEN, reward_funcs=Half())
    filled = run(dynamic(10), FROZEN, reward_funcs=Half())
    for key in ("reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "rewards/half/mean"):
        assert filled.logged(key) == plain.logged(key)
    assert plain.logged("frac_reward_zero_std")[0] > 0
    assert filled.logged("num_tokens") == [filled.trainer.state.num_input_tokens_seen]
    assert filled.logged("num_tokens")[0] > plain.logged("num_tokens")[0]
    assert filled.logged("dynamic_sampling/reward")[0] != filled.logged("reward")[0]
    assert not plain.logged("dynamic_sampling/rounds")


def test_rounds_are_bounded_and_the_rest_leaves_the_loss(run: Callable[..., Any]) -> None:
    calls = []

    def constant(prompts: list[str], **columns: Any) -> list[float]:
        calls.append(groups(prompts))
        return [1.0] * len(prompts)

    done = run(dynamic(3), FROZEN | {"max_steps": 2}, reward_funcs=constant)
    assert [len(call) for call in calls] == [8] * 4
    assert len({prompt for call in calls for prompt in call}) == 32, "every round draws further prompts"
    assert done.logged("dynamic_sampling/rounds") == [3.0]
    assert done.logged("dynamic_sampling/left") == [8.0]
    assert done.logged("tokens/selected") == [0.0] * 2
    assert all(gradient.abs().max() == 0 for gradient in done.gradients)


def test_a_full_batch_needs_no_round(run: Callable[..., Any]) -> None:
    calls = []

    def varying(completions: list[str], **columns: Any) -> list[float]:
        calls.append(len(completions))
        return [float(i) for i in range(len(completions))]

    done = run(dynamic(3), FROZEN, reward_funcs=varying)
    plain = run(dynamic(0), FROZEN, reward_funcs=varying)
    assert calls == [32, 32]
    assert done.logged("dynamic_sampling/rounds") == [0.0]
    assert torch.equal(done.gradients[-1], plain.gradients[-1])


def test_evaluation_samples_once(run: Callable[..., Any], prompts: Dataset) -> None:
    reward = Half()
    options = FROZEN | {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 32}
    run(dynamic(3), options, reward_funcs=reward, eval_dataset=prompts.select(range(8)))
    assert [len(call["prompts"]) for call in reward.calls].count(32) == 2


def test_extra_columns_of_a_reward_function_follow_their_rows(run: Callable[..., Any]) -> None:
    def half(
        prompts: list[str], completions: list[str], log_extra: Any, log_metric: Any, **columns: Any
    ) -> list[float]:
        log_extra("seen", prompts)
        log_metric("asked", float(len(prompts)))
        return [float(i) if varies(prompt) else 0.0 for i, prompt in enumerate(prompts)]

    done = run(dynamic(10), FROZEN, reward_funcs=half)
    logs = done.trainer._logs
    assert list(logs["extra"]["seen"]) == list(logs["prompt"])
    assert done.logged("asked") == [32.0], "what further rounds log is left out"


def test_users_rollouts_are_called_for_the_further_prompts(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        rows = [[5 + i % 4, 6, 1] for i in range(len(prompts))]
        ids, masks = trainer.processing_class(prompts)["input_ids"], [[1, 0, 1]] * len(rows)
        scores = [[-1.0] * 3] * len(rows)
        return {"prompt_ids": ids, "completion_ids": rows, "logprobs": scores, "env_mask": masks, "hint": prompts}

    seen: list[list[str]] = []

    def half(prompts: list[str], hint: list[str], **columns: Any) -> list[float]:
        assert hint == prompts
        seen.append(prompts)
        return [float(i) if varies(prompt) else 0.0 for i, prompt in enumerate(prompts)]

    done = run(dynamic(10), FROZEN, reward_funcs=half, rollout_func=rollout)
    assert len(seen) > 1
    assert done.logged("dynamic_sampling/left") == [0.0]
    assert done.logged("kl_old") == pytest.approx([0.0] * 8, abs=1e-7)


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_the_samplers_correction_follows_its_rows(
    mode: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At learning rate 0 the correction of a row that was put in is the ratio of its own two policies."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", NoEngine)

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        rows = [[5 + i % 4, 6, 1][i % 3 :] for i in range(len(prompts))]
        ids = trainer.processing_class(prompts)["input_ids"]
        return {"prompt_ids": ids, "completion_ids": rows, "logprobs": [[-2.0] * len(row) for row in rows]}

    seen: list[dict[str, Tensor]] = []
    options = FROZEN | {"use_vllm": True, "vllm_importance_sampling_mode": mode}
    options |= {"vllm_importance_sampling_clip_max": 1e9}
    sink = {"token_sink": lambda _, c: seen.append(c), "token_interval": 1}
    done = run(dynamic(10), options, reward_funcs=Half(), rollout_func=rollout, **sink)
    assert done.logged("dynamic_sampling/replaced")[0] > 0
    for c in seen[:4]:
        gap = torch.where(c["mask"], c["old_logp"] + 2.0, 0.0)
        factor = (gap if mode == "token_truncate" else gap.sum(1, keepdim=True)).exp()
        tokens = sum(int(c["mask"].sum()) for c in seen[:4]) / 4
        expected = torch.where(c["mask"], factor * c["advantage"] / tokens, 0.0)
        assert torch.allclose(c["rollout_logp"][c["mask"]], torch.tensor(-2.0))
        assert torch.allclose(c["weight"], expected, rtol=1e-3, atol=1e-5)


def test_tempered_groups_are_replaced_by_tempered_ones(run: Callable[..., Any]) -> None:
    cold = Rollout(temperature=1e-4, share=0.5, rounds=4)
    sampled: list[list[bool]] = []

    def half(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        rows = range(0, len(prompts), 4)
        sampled.append([len(set(completions[i : i + 4])) == 1 for i in rows])  # greedy: one answer four times
        return [float(i) if varies(prompt) else 0.0 for i, prompt in enumerate(prompts)]

    done = run(dynamic(4, select=()), FROZEN)
    done = run(replace(done.trainer.objective, rollout=cold), FROZEN, reward_funcs=half)
    assert sampled[0] == [True] * 4 + [False] * 4
    assert 0 < sum(sampled[1]) < len(sampled[1])
    completions = list(done.trainer._logs["completion"])
    greedy = [len(set(completions[i : i + 4])) == 1 for i in range(0, 32, 4)]
    assert greedy == [True] * 4 + [False] * 4


def test_columns_of_other_widths_are_padded_as_trl_pads_them() -> None:
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(num_processes=1, process_index=0, gather=lambda x: x),
        _tokenizer=SimpleNamespace(pad_token_id=99),
    )

    def rows(prompt: list[list[int]], completion: list[list[int]]) -> dict[str, Tensor]:
        p, c = torch.tensor(prompt), torch.tensor(completion)
        masks = {"prompt_mask": (p != 99).long(), "completion_mask": (c != 99).long(), "tool_mask": torch.ones_like(c)}
        return {"prompt_ids": p, "completion_ids": c, "num_items_in_batch": torch.tensor(0)} | masks

    short, long = rows([[99, 7], [6, 7]], [[1, 99], [1, 2]]), rows([[3, 4, 5]] * 2, [[8, 8, 8], [9, 9, 99]])
    found = _splice_output(trainer, short, long, to=[1], source=[0])
    assert found["prompt_ids"].tolist() == [[99, 99, 7], [3, 4, 5]]
    assert found["prompt_mask"].tolist() == [[0, 0, 1], [1, 1, 1]]
    assert found["completion_ids"].tolist() == [[1, 99, 99], [8, 8, 8]]
    assert found["completion_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert found["tool_mask"].tolist() == [[1, 1, 1]] * 2
    assert int(found["num_items_in_batch"]) == 4
    found = _splice_output(trainer, long, short, to=[0], source=[1])
    assert found["prompt_ids"].tolist() == [[99, 6, 7], [3, 4, 5]]
    assert found["completion_ids"].tolist() == [[1, 2, 99], [9, 9, 99]]
    with pytest.raises(RuntimeError, match=r"gave other columns: \['tool_mask'\]"):
        _splice_output(trainer, long, {k: v for k, v in short.items() if k != "tool_mask"}, [0], [1])


# the whole of DAPO


def test_dapo_whole(run: Callable[..., Any]) -> None:
    """A penalty near the limit, cut rows out of the loss, groups without variance replaced."""
    objective = replace(presets.dapo_full, advantage=replace(presets.dapo_full.advantage, buffer=3))
    assert isinstance(objective.advantage, SoftOverlong)
    seen: list[dict[str, Tensor]] = []
    reward = Half()
    options = FROZEN | {"max_completion_length": 8}
    done = run(objective, options, reward_funcs=reward, token_sink=lambda _, c: seen.append(c), token_interval=1)
    lengths = torch.cat([c["mask"].sum(1) for c in seen[:4]])
    weights = torch.cat([c["weight"].abs().sum(1) for c in seen[:4]])
    last = torch.cat([c["token_id"].gather(1, c["mask"].sum(1, keepdim=True) - 1)[:, 0] for c in seen[:4]])
    ends = last <= 1  # the end token, or padding that the random model wrote
    order = torch.cat([c["row"] for c in seen[:4]]).argsort()
    lengths, weights, ends = lengths[order], weights[order], ends[order]
    assert 0 < int((~ends).sum()) < 32
    assert weights[~ends].max() == 0, "cut rows are out of the loss"
    assert weights[ends].max() > 0
    rewards = torch.tensor(list(done.trainer._logs["rewards"]["half"]))
    penalised = (rewards + ((8 - 3 - lengths) / 3).clamp(-1, 0)).view(8, 4)
    expected = (penalised - penalised.mean(1, keepdim=True)) / (penalised.std(1, keepdim=True) + 1e-6)
    advantages = torch.tensor(list(done.trainer._logs["advantages"]))
    assert torch.allclose(advantages[ends], expected.flatten()[ends], atol=1e-4)
    assert (penalised.flatten() < rewards).any()
    assert done.logged("dynamic_sampling/replaced")[0] > 0
    assert done.logged("tokens/selected")[0] < 1


def test_dapo_whole_trains(run: Callable[..., Any]) -> None:
    objective = replace(presets.dapo_full, advantage=replace(presets.dapo_full.advantage, buffer=3))
    done = run(objective, {"max_steps": 6, "per_device_train_batch_size": 32, "learning_rate": 3e-3})
    assert all(0 <= x <= 10 for x in done.logged("dynamic_sampling/rounds"))
    assert not torch.equal(done.parameters[0], done.parameters[-1])
    assert all(torch.isfinite(p).all() for p in done.parameters)


# where further prompts come from


def test_further_prompts_are_drawn_from_seed_and_rollout_alone() -> None:
    data = Dataset.from_dict({"prompt": [str(i) for i in range(20)]})

    def draw(seed: int, rollout: int, taken: list[str], count: int = 8) -> list[str]:
        return [e["prompt"] for e in islice(further_prompts(data, seed, rollout, taken), count)]

    assert draw(1, 5, []) == draw(1, 5, [])
    assert draw(1, 5, []) != draw(1, 6, [])
    assert draw(1, 5, []) != draw(2, 5, [])
    assert draw(1, 5, []) != draw(2, 4, [])
    taken = [str(i) for i in range(15)]
    assert sorted(draw(1, 5, taken, 5)) == ["15", "16", "17", "18", "19"]
    assert len(draw(1, 5, taken, 60)) == 60, "when all are taken it begins again"
    assert set(draw(1, 5, taken, 45)[5:25]) == set(map(str, range(20)))


def test_a_group_is_stale_only_if_all_rewards_are_equal() -> None:
    reward = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.1 + 0.2, 0.3])
    assert stale_groups(reward, 2) == [0, 2, 3] if reward[6] == reward[7] else [0, 2]


def test_a_stream_has_no_further_prompts(run: Callable[..., Any], prompts: Dataset) -> None:
    with pytest.raises(OptionError, match="but train_dataset is a stream"):
        run(dynamic(2), train_dataset=prompts.to_iterable_dataset())


def test_length_rewards_are_left_as_they_are(run: Callable[..., Any]) -> None:
    assert len(set(length_reward([[3, 4], [5, 7, 9]]))) == 2
    assert run(dynamic(1), FROZEN).logged("dynamic_sampling/left") == [0.0]
