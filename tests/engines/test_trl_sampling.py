"""The slot `rollout`: a temperature that moves, for whole rollout batches and for a share of their groups."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from trl.generation import vllm_generation
from trl.trainer.utils import add_fused_lm_head

from isentrope import presets
from isentrope.control import EntropyPI, EntropySwitch
from isentrope.engines.trl import OptionError
from isentrope.engines.trl_sampling import Head, Part, joined, parts
from isentrope.rollout import Rollout
from isentrope.schedule import Piecewise

from .conftest import length_reward
from .harness import MARKS

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::isentrope.engines.trl_options.InertObjectiveWarning")]

OFF_POLICY = {"steps_per_generation": 2, "num_iterations": 2, "per_device_train_batch_size": 4}
FROZEN = OFF_POLICY | {"learning_rate": 0.0}
COLD = 1e-4  # a temperature at which sampling is greedy


@pytest.fixture(autouse=True)
def quiet_rollout_func(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def at(temperature: Any, **knobs: Any) -> Any:
    return replace(presets.dapo, select=(), rollout=Rollout(temperature=temperature, **knobs))


class Recorder:
    """A reward function that keeps the completions of every rollout batch; True counts groups of equal ones."""

    __name__ = "recorder"

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []

    def __call__(self, completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        self.batches.append(completion_ids)
        return length_reward(completion_ids)

    def equal_groups(self, batch: int) -> list[bool]:
        rows = self.batches[batch]
        return [all(row == rows[i] for row in rows[i : i + 4]) for i in range(0, len(rows), 4)]


# one temperature for all rows


def test_a_constant_temperature_is_the_option(run: Callable[..., Any]) -> None:
    for share in (1, 1.0):
        slot = run(at(0.6, share=share), OFF_POLICY)
        option = run(at(None), OFF_POLICY | {"temperature": 0.6})
        plain = run(at(None), OFF_POLICY)
        for mine, theirs in zip(slot.parameters, option.parameters, strict=True):
            assert torch.equal(mine, theirs)
        assert not torch.equal(plain.parameters[-1], option.parameters[-1])
        assert slot.logged("entropy") == option.logged("entropy")
        assert slot.logged("rollout/temperature") == [0.6] * 3
        assert not option.logged("rollout/temperature")


def test_a_heads_temperature_divides_the_logits(tiny: Callable[[], Any]) -> None:
    model = tiny()
    head = Head(add_fused_lm_head, model, 1.0, {"outputs": ("log_probs", "entropy")})
    ids = torch.randint(3, 30, (2, 7))
    logits = model(ids).logits[:, :-1]
    for temperature in (1.0, 0.3, 2.0, 0.3):
        head.set(temperature)
        found = model(ids, labels=ids, fused_lm_head=True)
        expected = (logits / temperature).log_softmax(-1)
        assert torch.allclose(found.log_probs, expected.gather(-1, ids[:, 1:, None])[..., 0], atol=1e-5)
        assert torch.allclose(found.entropy, -(expected.exp() * expected).sum(-1), atol=1e-5)
    assert torch.equal(model(ids).logits[:, :-1], logits)


def test_what_wraps_a_model_later_stays_around_a_head_that_moves(tiny: Callable[[], Any]) -> None:
    model = tiny()
    head = Head(add_fused_lm_head, model, 1.0, {})
    inner, calls = model.forward, []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        return inner(*args, **kwargs)

    model.forward = wrapped
    ids = torch.randint(3, 30, (2, 7))
    before = model(ids, labels=ids, fused_lm_head=True).log_probs
    head.set(0.5)
    after = model(ids, labels=ids, fused_lm_head=True).log_probs
    assert calls == [0, 1]
    assert not torch.allclose(before, after)


def test_a_rollout_batch_keeps_its_temperature_through_its_updates(run: Callable[..., Any], prompts: Dataset) -> None:
    pieces = Piecewise(((0, 1.0), (1, 0.4), (2, 2.0)))
    options = FROZEN | {"max_steps": 16, "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    done = run(at(pieces), options, eval_dataset=prompts.select(range(4)))
    # the value of a schedule is set by the batch that it counts, for the next one
    assert done.logged("rollout/temperature") == [1.0] * 8 + [0.4] * 4 + [2.0] * 4
    assert done.logged("ratio/mean") == pytest.approx([1.0] * 16, abs=1e-5)
    assert done.logged("kl_old") == pytest.approx([0.0] * 16, abs=1e-6)
    entropies = done.logged("entropy")
    assert max(entropies[8:12]) < min(entropies[:8])
    assert min(entropies[12:]) > max(entropies[:8])
    assert len(done.logged("eval_entropy")) == 16
    assert min(done.logged("eval_entropy")) > max(entropies[8:12]), "evaluation stays at the option's temperature"


def test_the_sampler_is_at_the_temperature_too(run: Callable[..., Any]) -> None:
    seen = Recorder()
    run(at(Piecewise(((0, 1.0), (1, COLD)))), FROZEN | {"max_steps": 12}, reward_funcs=seen)
    assert len(seen.batches) == 3
    assert [all(seen.equal_groups(i)) for i in range(3)] == [False, False, True]


def test_a_model_with_a_temperature_of_its_own_samples_at_ours(run: Callable[..., Any], tiny: Any) -> None:
    """transformers fills what a generation configuration leaves at its default from the model's."""
    for option, slot, greedy in ((COLD, 1.0, False), (1.0, COLD, True)):
        seen, model = Recorder(), tiny()
        model.generation_config.temperature = COLD if slot == 1.0 else 1.0
        options = FROZEN | {"temperature": option, "max_steps": 1}
        run(at(slot), options, reward_funcs=seen, model=model)
        assert all(seen.equal_groups(0)) == greedy


def test_a_controller_moves_the_temperature(run: Callable[..., Any]) -> None:
    servo = EntropyPI(start=1.0, ki=0.2, low=0.3, high=3.0, target=4.0)
    done = run(at(servo), OFF_POLICY | {"max_steps": 16})
    used = done.logged("rollout/temperature")
    ahead = done.logged("controller/rollout.temperature.value")
    assert used[:4] == [1.0] * 4
    assert len(set(used)) == 4
    assert used[4:] == ahead[:-4], "what a batch sets is the temperature of the next one"
    assert used == sorted(used), "entropy cannot reach 4 nats with a vocabulary of 33, so the temperature rises"


def test_the_reference_is_scored_at_the_temperature(run: Callable[..., Any], tiny_path: str, tiny: Any) -> None:
    from isentrope.penalty import ReferenceKL

    objective = replace(at(Piecewise(((0, 1.0), (1, 0.4)))), penalties=(ReferenceKL(0.1),))
    done = run(objective, FROZEN | {"max_steps": 12}, model=tiny())
    assert done.logged("kl") == pytest.approx([0.0] * 12, abs=1e-6)


def test_an_adapter_is_scored_at_the_temperature(run: Callable[..., Any]) -> None:
    from peft import LoraConfig

    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    slot = run(at(0.6), OFF_POLICY, peft_config=adapter)
    option = run(at(None), OFF_POLICY | {"temperature": 0.6}, peft_config=adapter)
    assert torch.equal(slot.parameters[-1], option.parameters[-1])


# a share of the groups


@pytest.mark.parametrize("lockstep", [False, True])
def test_every_row_is_sampled_once_at_its_temperature(lockstep: bool) -> None:
    cases = 0
    for world, size, num_groups in product((1, 2, 3, 4), (2, 4, 6), (1, 2, 3, 4, 6)):
        if size * num_groups % world:
            continue
        own = size * num_groups // world
        for tempered in range(num_groups + 1):
            check_parts(tempered * size, own, size, world, lockstep)
            cases += 1
    assert cases > 100


def check_parts(num_tempered: int, own: int, size: int, world: int, lockstep: bool) -> None:
    rows = [list(range(rank * own, (rank + 1) * own)) for rank in range(world)]
    calls = [parts(num_tempered, own, rank, world, lockstep) for rank in range(world)]
    for rank in range(world):
        pieces = [(part, rows[rank][part.sent]) for part in calls[rank]]
        assert joined(pieces) == rows[rank]
        for part, sent in pieces:
            kept = joined([(part, sent)])
            assert all((row < num_tempered) == part.tempered for row in kept)
    if lockstep:
        for together in zip(*calls, strict=True):  # a server takes every size-th prompt of all ranks as a group
            sent = [row for rank, part in enumerate(together) for row in rows[rank][part.sent]]
            for rank, part in enumerate(together):
                start = sum(len(rows[r][p.sent]) for r, p in enumerate(together[:rank]))
                length = len(rows[rank][part.sent])
                kept = range(part.kept) if part.tempered else range(length - part.kept, length)
                assert all(sent[(start + i) // size * size] // size == sent[start + i] // size for i in kept)


def test_parts_of_one_call_or_two() -> None:
    assert parts(0, 8, 0, 2, lockstep=False) == [Part(False, slice(0, 8), 8)]
    assert parts(16, 8, 1, 2, lockstep=False) == [Part(True, slice(0, 8), 8)]
    assert parts(4, 8, 1, 2, lockstep=True) == [Part(True, slice(0, 4), 0), Part(False, slice(0, 8), 8)]


def test_the_first_groups_are_tempered_and_all_rows_scored_untempered(run: Callable[..., Any]) -> None:
    seen, columns = Recorder(), []
    options = FROZEN | {"per_device_train_batch_size": 8, "max_steps": 4}
    sink = {"token_sink": lambda _, c: columns.append(c), "token_interval": 1}
    done = run(at(COLD, share=0.3), options, reward_funcs=seen, **sink)
    assert seen.equal_groups(0) == [True, True, False, False], "ceil(.3 of 4 groups)"
    assert done.logged("ratio/mean") == pytest.approx([1.0] * 4, abs=1e-5)
    assert done.logged("rollout/temperature") == [COLD] * 4
    rewards = [length_reward(rows) for rows in seen.batches]
    assert done.logged("rollout/tempered_reward")[0] == pytest.approx(sum(rewards[0][:8]) / 8)
    assert done.logged("rollout/untempered_reward")[0] == pytest.approx(sum(rewards[0][8:]) / 8)
    entropy = torch.cat([c["entropy"][c["mask"]] for c in columns])
    assert entropy.mean() > 1.0, "nats: at the option's temperature, not at the tempered rows'"


def test_the_rows_sampled_at_the_temperature_are_marked(run: Callable[..., Any], prompts: Dataset) -> None:
    marks: list[Tensor] = []

    def watch(*, tempered: Tensor) -> Tensor:
        marks.append(tempered)
        return torch.ones_like(tempered)

    objective = replace(presets.grpo, select=(watch,))
    options = {"max_steps": 1, "eval_on_start": True, "eval_strategy": "steps", "per_device_eval_batch_size": 8}
    share = replace(objective, rollout=Rollout(temperature=0.5, share=0.5))
    run(share, options, eval_dataset=prompts.select(range(2)))
    assert [mark.tolist() for mark in marks[:2]] == [[False] * 8, [True] * 4 + [False] * 4]
    for knobs in ({"temperature": 0.5}, {}):
        with pytest.raises(OptionError, match="needs `tempered`"):
            run(replace(objective, rollout=Rollout(**knobs)), {"max_steps": 1})


def test_arbitrary_entropy_flips_between_its_temperatures(run: Callable[..., Any], prompts: Dataset) -> None:
    switch = replace(presets.arbitrary_entropy.rollout.temperature, target="initial")
    rollout = replace(presets.arbitrary_entropy.rollout, temperature=switch)
    options = {"max_steps": 20, "per_device_train_batch_size": 16, "learning_rate": 3e-3}
    options |= {"eval_strategy": "steps", "eval_steps": 10, "per_device_eval_batch_size": 8}
    done = run(replace(presets.arbitrary_entropy, rollout=rollout), options, eval_dataset=prompts.select(range(4)))
    used = done.logged("rollout/temperature")
    assert used[0] == 1.2
    flips = sum(a != b for a, b in pairwise(used))
    assert set(used) == {0.8, 1.2}
    assert flips >= 2
    measured, target = done.logged("entropy"), done.logged("controller/rollout.temperature.target")[0]
    for temperature, before in zip(used[2:], measured[1:], strict=False):
        assert temperature == (1.2 if before < target else 0.8)
    assert not torch.equal(done.parameters[0], done.parameters[-1])


def test_a_tempered_success_pulls_towards_what_was_sampled(run: Callable[..., Any]) -> None:
    """J = log pi on tempered rows with A > 0: their weight is the row's share, whatever the advantage's size."""
    columns: list[dict[str, Tensor]] = []
    rollout = Rollout(temperature=1.2, share=0.5)
    objective = replace(presets.arbitrary_entropy, rollout=rollout)
    run(objective, {"max_steps": 1}, token_sink=lambda _, c: columns.append(c), token_interval=1)
    found = columns[0]
    tempered, length = found["row"] < 4, found["mask"].sum(1)
    success = tempered & (found["advantage"][:, 0] > 0)
    assert 0 < success.sum() < 4
    rows = 4 + int(success.sum())  # the others of the tempered rows are dropped
    expected = found["mask"][success] / (rows * length[success, None])
    assert torch.allclose(found["weight"][success], expected, atol=1e-6)
    assert found["weight"][tempered & ~success].abs().max() == 0


# the user's own rollouts, and vLLM


def test_a_rollout_function_is_called_for_each_part(run: Callable[..., Any]) -> None:
    calls: list[tuple[float, int]] = []

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        calls.append((trainer.temperature, len(prompts)))
        token = 5 if trainer.temperature == 0.5 else 6
        rows = [[token, i % 4 + 7, 1] for i in range(len(prompts))]
        ids = trainer.processing_class(prompts)["input_ids"]
        return {"prompt_ids": ids, "completion_ids": rows, "logprobs": [[-1.0] * 3] * len(rows), "note": "all"}

    columns: list[dict[str, Tensor]] = []
    sink = {"token_sink": lambda _, c: columns.append(c), "token_interval": 1}
    run(at(0.5, share=0.5), {"max_steps": 1}, rollout_func=rollout, **sink)
    assert calls == [(0.5, 4), (1.0, 4)]
    order = columns[0]["row"].argsort()
    assert columns[0]["token_id"][order, 0].tolist() == [5] * 4 + [6] * 4
    calls.clear()
    run(at(0.5), {"max_steps": 1}, rollout_func=rollout)
    assert calls == [(0.5, 8)]


class Client:
    """Answers as a vLLM server does, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def generate(self, prompts: Any, **parameters: Any) -> dict[str, Any]:
        self.asked.append({"prompts": prompts} | parameters)
        count = len(prompts) * parameters["n"]
        rows = [[5 + i % 7, 6, 1] for i in range(count)]
        scores = [[[-1.0]] * 3 for _ in rows]
        return {"prompt_ids": prompts, "completion_ids": rows, "logprobs": scores}


class Sampler:
    """The same for an engine in the same process."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def generate(self, prompts: Any, sampling_params: Any, use_tqdm: bool) -> list[Any]:
        self.asked.append({"prompts": prompts} | sampling_params)
        token = SimpleNamespace(logprob=-1.0, rank=1)
        rows = [[5 + i % 7, 6, 1] for i in range(len(prompts))]
        outputs = [SimpleNamespace(token_ids=ids, logprobs=[{t: token} for t in ids]) for ids in rows]
        return [
            SimpleNamespace(prompt_token_ids=p["prompt_token_ids"], outputs=[o])
            for p, o in zip(prompts, outputs, strict=True)
        ]


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("mode", ["server", "colocate"])
def test_vllm_samples_at_the_temperature(
    mode: str, share: float, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's own generation code, with a client and an engine that answer without a model."""

    class Generation(vllm_generation.VLLMGeneration):
        def _init_vllm(self) -> None:
            self.vllm_client, self.llm = client, sampler

        def sync_weights(self) -> None:
            """No weights anywhere."""

    client, sampler = Client(), Sampler()
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", Generation)
    monkeypatch.setattr(vllm_generation, "SamplingParams", dict, raising=False)
    options = {"use_vllm": True, "vllm_mode": mode, "vllm_importance_sampling_correction": False}
    run(at(Piecewise(((0, 1.0), (1, 0.5))), share=share), options)
    asked = client.asked if mode == "server" else sampler.asked
    per_prompt = 4 if mode == "server" else 1
    if share == 1:
        assert [call["temperature"] for call in asked] == [1.0, 1.0, 0.5]
        assert [len(call["prompts"]) * per_prompt for call in asked] == [8] * 3
    else:
        assert [call["temperature"] for call in asked] == [1.0, 1.0, 1.0, 1.0, 0.5, 1.0]
        assert [len(call["prompts"]) * per_prompt for call in asked] == [4] * 6


# what is refused


@pytest.mark.parametrize(
    ("objective", "options", "message"),
    [
        (at(0.5), {"generation_kwargs": {"temperature": 1.0}}, r"but generation_kwargs fixes temperature=1\.0"),
        (at(0.5, share=0.5), {"use_vllm": True}, "but vllm_importance_sampling_correction=True would correct tempered"),
    ],
)
def test_what_contradicts_the_temperature_is_refused(
    objective: Any, options: dict[str, Any], message: str, run: Callable[..., Any]
) -> None:
    with pytest.raises(OptionError, match=message):
        run(objective, options)


def test_a_correction_of_tempered_rows_is_refused(run: Callable[..., Any]) -> None:
    from isentrope.correction import IcePop

    with pytest.raises(OptionError, match=r"but IcePop\(.*\) would correct tempered rows back"):
        run(replace(at(0.5, share=0.5), correction=IcePop()))


def test_tools_and_images_are_refused_where_rows_are_sampled_apart(run: Callable[..., Any], prompts: Dataset) -> None:
    def tool(x: int) -> int:
        """Adds one.

        Args:
            x: a number
        """
        return x + 1

    pictures = prompts.add_column("image", [None] * len(prompts))
    for knobs in ({"temperature": 0.5, "share": 0.5}, {"rounds": 2}):
        objective = replace(presets.grpo, rollout=Rollout(**knobs))
        with pytest.raises(OptionError, match="cannot be had with tools or environments"):
            run(objective, tools=[tool])
        with pytest.raises(OptionError, match="cannot be had with images"):
            run(objective, train_dataset=pictures)


def test_a_switch_starts_at_its_first_temperature(run: Callable[..., Any]) -> None:
    switch = EntropySwitch(below=1.2, above=0.8, start=0.9, target=0.5)
    assert run(at(switch), {"max_steps": 2}).logged("rollout/temperature") == [0.9, 0.8]
