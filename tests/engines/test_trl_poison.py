"""What must not go wrong silently: rewards that raise, hang or do not fit, prompts too long, weights of NaN."""

import asyncio
import copy
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from isentrope.engines.trl import CompletionError, ObjectiveTrainer, RewardError
from isentrope.engines.trl_limits import time_limit
from isentrope.errors import IsentropeError

from .harness import MARKS

pytestmark = MARKS
TWICE = {"num_iterations": 2}
Make = Callable[..., Any]


@pytest.mark.parametrize("count", [1, 11])
def test_a_reward_function_that_returns_another_number_of_rewards_is_named(count: int, run: Make) -> None:
    def short(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * count

    with pytest.raises(ValueError, match=f"'short' returned {count} rewards, but 8 were expected"):
        run("grpo", TWICE, reward_funcs=short)


def test_what_a_reward_function_raises_comes_through(run: Make) -> None:
    def broken(**_: Any) -> list[float]:
        raise KeyError("answer")

    with pytest.raises(KeyError, match="answer") as caught:
        run("grpo", TWICE, reward_funcs=broken)
    assert any(entry.name == "broken" for entry in caught.traceback)


def test_a_reward_function_that_hangs_ends_the_run_with_its_name_and_line(run: Make) -> None:
    def hangs(completions: list[str], **_: Any) -> list[float]:
        time.sleep(60)
        return [0.0] * len(completions)

    handler, started = signal.getsignal(signal.SIGUSR2), time.monotonic()
    with pytest.raises(RewardError, match=r"reward functions hangs have not returned for 0\.3 seconds at .*\.py:\d+"):
        run("grpo", TWICE, reward_funcs=hangs, reward_time_limit=0.3)
    assert time.monotonic() - started < 30
    assert signal.getsignal(signal.SIGUSR2) == handler


def test_an_asynchronous_reward_function_that_hangs_ends_the_run_too(run: Make) -> None:
    async def waits(completions: list[str], **_: Any) -> list[float]:
        await asyncio.sleep(60)
        return [0.0] * len(completions)

    with pytest.raises(RewardError, match="waits"):
        run("grpo", TWICE, reward_funcs=waits, reward_time_limit=0.3)


def test_a_limit_that_is_kept_changes_nothing(run: Make) -> None:
    plain, limited = run("grpo", TWICE), run("grpo", TWICE, reward_time_limit=60)
    assert torch.equal(plain.parameters[-1], limited.parameters[-1])


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(limit: float, run: Make) -> None:
    with pytest.raises(ValueError, match="reward_time_limit must be a number of seconds above 0"):
        run("grpo", TWICE, reward_time_limit=limit)


def test_other_threads_have_no_limit() -> None:
    found = []

    def work() -> None:
        with time_limit(0.01, ["slow"]):
            time.sleep(0.1)
            found.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["done"]


def test_a_prompt_beyond_the_context_is_refused_with_its_length(run: Make) -> None:
    with pytest.raises(CompletionError, match=r"has 80 tokens: with max_completion_length = 6 it exceeds .* of 64"):
        run("grpo", TWICE, train_dataset=Dataset.from_dict({"prompt": ["1" * 80] * 8}))
    run("grpo", TWICE | {"max_steps": 1}, train_dataset=Dataset.from_dict({"prompt": ["1" * 58] * 8}))


def test_weights_that_are_nan_stop_the_run_and_leave_the_controller(run: Make, tiny: Make) -> None:
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
    made: list[ObjectiveTrainer] = []

    def make(**arguments: Any) -> ObjectiveTrainer:
        made.append(ObjectiveTrainer(**arguments))
        return made[0]

    with pytest.raises(IsentropeError, match="the model's logits are not finite"):
        run("adapo", TWICE, trainer=make, model=model)
    assert made[0]._state == made[0]._objective.init()


def test_a_pad_token_that_ends_the_text_too_trains_like_one_of_its_own(run: Make, tokenizer: Any) -> None:
    shared = copy.deepcopy(tokenizer)
    shared.pad_token = shared.eos_token
    own, same = run("grpo", TWICE), run("grpo", TWICE, processing_class=shared)
    assert own.logged("completions/mean_length")[0] == same.logged("completions/mean_length")[0]
    assert (own.gradients[0] - same.gradients[0]).abs().max() < 1e-5 * own.gradients[0].abs().max()


def test_a_vocabulary_beyond_the_tokenizers_is_counted_in_full(run: Make, tokenizer: Any) -> None:
    size = len(tokenizer) + 30
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.zero_()  # uniform over all rows of the head, those without a token too
    found = run("grpo", TWICE, model=model)
    assert found.logged("entropy")[0] == pytest.approx(torch.log(torch.tensor(float(size))).item(), rel=1e-5)
