"""Several turns in TRL: what an environment writes is in no statistic, whichever way it came into the sequence."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from trl import GRPOTrainer

from isentrope import episodes, models, presets, tasks
from isentrope.engines import trl_tools
from isentrope.engines.trl import ObjectiveTrainer, OptionError
from isentrope.engines.trl_tools import TaskRollouts
from isentrope.rollout import Rollout
from isentrope.tasks import Example, appworld

from ..tasks.appworld_server import serving
from . import tool_model
from .harness import MARKS, Run, train
from .test_trl_resume import lines_after

pytestmark = [
    *MARKS,
    pytest.mark.filterwarnings("ignore:You are using '(rollout_func|environment_factory)':UserWarning"),
]

ENVIRONMENT = 25  # a token that the policy never writes, in the rollouts below


def turns(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Two turns of the policy with the environment's answer between them, of lengths that differ."""
    rows = []
    for place in range(len(prompts)):
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        first, second = (torch.randint(3, 20, (1 + place % k,), generator=generator).tolist() for k in (2, 3))
        rows.append((first, [ENVIRONMENT] * (1 + place % 2), [*second, 1]))
    return {
        "prompt_ids": trainer.processing_class(prompts)["input_ids"],
        "completion_ids": [[*first, *answer, *second] for first, answer, second in rows],
        "env_mask": [[1] * len(first) + [0] * len(answer) + [1] * len(second) for first, answer, second in rows],
        "logprobs": [[-1.0] * sum(map(len, row)) for row in rows],
    }


@pytest.fixture
def disturb(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """disturb(noise, place): from now on whatever a forward pass says of the tokens at place(ids) is noise.

    None leaves it as it is.
    """
    original = GRPOTrainer._get_per_token_logps_and_entropies

    def use(noise: float | None, place: Callable[[Tensor], Tensor]) -> None:
        def scored(trainer: Any, model: Any, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            logp, entropy, *rest = original(trainer, model, input_ids, *args, **kwargs)
            where = place(input_ids[:, -logp.shape[1] :])
            assert where.any()
            if noise is not None:
                logp = torch.where(where, noise, logp)
                entropy = None if entropy is None else torch.where(where, noise, entropy)
            return logp, entropy, *rest

        monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", scored)

    return use


class Dump:
    """A token sink."""

    def __init__(self) -> None:
        self.tables: list[dict[str, Tensor]] = []

    def __call__(self, step: int, columns: dict[str, Tensor]) -> None:
        self.tables.append({name: x.clone() for name, x in columns.items()})


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "objective", ["ce_gppo", *(pytest.param(name, marks=slow) for name in ("gepo", "repo_r", "gspo", "kl_cov"))]
)
def test_the_environments_tokens_change_nothing(objective: str, run: Callable[..., Run], disturb: Any) -> None:
    options = {"steps_per_generation": 2, "num_iterations": 2, "max_completion_length": 12, "max_steps": 8}
    runs, dumps = [], []
    for noise in (None, 7.5, float("nan")):
        dumps.append(Dump())
        disturb(noise, lambda ids: ids == ENVIRONMENT)
        more = {"token_sink": dumps[-1], "token_interval": 1, "diagnostics_interval": 1}
        runs.append(run(objective, options, rollout_func=turns, **more))
    clean = runs[0]
    assert max(float(g.abs().max()) for g in clean.gradients) > 1e-3
    for other, dump in zip(runs[1:], dumps[1:], strict=True):
        for a, b in zip(clean.gradients, other.gradients, strict=True):
            assert torch.equal(a, b)
        assert lines_after(clean, 0) == lines_after(other, 0)
        for mine, theirs in zip(dumps[0].tables, dump.tables, strict=True):
            mask = mine["mask"]
            assert torch.equal(mask, theirs["mask"])
            assert not mask[mine["token_id"] == ENVIRONMENT].any()
            assert (mine["token_id"] == ENVIRONMENT).any()
            for name in ("logp", "old_logp", "entropy", "advantage", "weight"):
                assert torch.equal(mine[name][mask], theirs[name][mask])
            assert not mine["weight"][~mask].any()
            assert not theirs["weight"][~mask].any()


def test_lengths_and_normalisers_count_the_policys_tokens(run: Callable[..., Run]) -> None:
    dump, options = Dump(), {"max_completion_length": 12, "max_steps": 4, "num_iterations": 2}
    found = run("ce_gppo", options, rollout_func=turns, token_sink=dump, token_interval=1)
    counts = [table["mask"].sum(1).float() for table in dump.tables[::2]]  # two updates on each rollout batch
    assert found.logged("completions/mean_length") == pytest.approx([float(c.mean()) for c in counts])
    assert found.logged("completions/max_length") == [float(c.max()) for c in counts]
    assert found.logged("tokens/excluded") == [0.0] * 4
    for table in dump.tables[::2]:  # ratio 1: the weights are the advantages over the number of the policy's tokens
        expected = table["advantage"] / table["mask"].sum()
        assert torch.allclose(table["weight"][table["mask"]], expected[table["mask"]], rtol=1e-5)


# -- tasks with an environment of their own


@pytest.fixture
def play(config: Callable[..., Any], tmp_path: Path) -> Callable[..., Run]:
    """play(mix, folder, resume, **options): train the embedded model on a mix."""

    def go(mix: str, folder: str = "out", resume: str | None = None, objective: Any = "ce_gppo", **options: Any) -> Run:
        pairs = tasks.get_mix(mix)
        model, tokenizer = models.load("embedded", torch.float32)
        settings = {"steps_per_generation": 2, "max_completion_length": 24, "learning_rate": 1e-4}
        return train(
            ObjectiveTrainer,
            resume=resume,
            model=model,
            args=config(output_dir=str(tmp_path / folder), **settings | options),
            train_dataset=Dataset.from_list(tasks.dataset_rows(pairs, "train", 24, seed=0)),
            processing_class=tokenizer,
            reward_funcs=tasks.reward_function(pairs),
            objective=objective,
            rollout_func=TaskRollouts(pairs),
        )

    return go


@slow
def test_a_mix_of_episodes_and_single_answers_trains_with_curves_of_both(play: Callable[..., Run]) -> None:
    found = play("apps=1,countdown=1", max_steps=4)
    for key in ("entropy/current_exact/apps", "entropy/current_exact/countdown", "reward/apps", "reward/countdown"):
        assert found.logged(key), key
    assert any(reward > 0 for reward in found.logged("reward/countdown"))
    assert torch.isfinite(found.parameters[-1]).all()


def test_what_the_apps_write_is_marked(play: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[dict[str, Any]] = []
    original = TaskRollouts.__call__

    def watched(self: TaskRollouts, prompts: Any, trainer: Any) -> dict[str, Any]:
        outputs.append(original(self, prompts, trainer))
        return outputs[-1]

    temperatures = []

    def playing(*args: Any, temperature: float, **kwargs: Any) -> Any:
        temperatures.append(temperature)
        return episodes.play(*args, temperature=temperature, **kwargs)

    monkeypatch.setattr(TaskRollouts, "__call__", watched)
    monkeypatch.setattr(trl_tools, "play", playing)
    found = play("apps=3,countdown=1", max_steps=1, temperature=2.0)  # hot enough to write line breaks
    words, task = found.trainer.processing_class, tasks.get("apps")
    answered = 0
    for row, ids, mask in zip(found.trainer.rollout_examples, *list(outputs[0].values())[1:3], strict=True):
        environment = "".join(words.decode([i]) for i, is_own in zip(ids, mask, strict=True) if not is_own)
        lines = words.decode(ids, skip_special_tokens=True).split("\n")
        if row["task"] == "apps" and len(lines) > 1:
            session = task.begin(Example(row["prompt"], json.loads(row["answer"]), "apps"))
            answers = [session.step(line) for line in lines[::2][: len(lines) // 2]]
            written = "".join(f"{answer}\n" for answer in answers if answer is not None)
            # an episode may have been cut, or its turn been ended by the end token, before the answer was written
            assert environment.replace("\n", "") in (written.replace("\n", ""), written.replace("\n", "")[:-1])
            answered += environment != ""
        elif row["task"] == "countdown":
            assert environment == ""
    assert answered > 0
    assert temperatures == [2.0]


@slow
def test_episodes_resume_bit_for_bit(play: Callable[..., Run], tmp_path: Path) -> None:
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1, "num_iterations": 2}
    whole = play("apps=1,countdown=1", "whole", **options)
    for step in (2, 4):
        resumed = play("apps=1,countdown=1", "again", str(tmp_path / "whole" / f"checkpoint-{step}"), **options)
        for a, b in zip(resumed.parameters, whole.parameters[step:], strict=True):
            assert torch.equal(a, b)
        assert lines_after(resumed, step) == lines_after(whole, step)


def test_what_episodes_cannot_do_is_refused(play: Callable[..., Run]) -> None:
    shared = replace(presets.ce_gppo, rollout=Rollout(temperature=0.8, share=0.5))
    with pytest.raises(
        OptionError, match=r"cannot be sampled in parts .*leave the objective's Rollout\(share=...\) at 1"
    ):
        play("apps", objective=shared, max_steps=1)
    with pytest.raises(OptionError, match="generation_kwargs would be ignored"):
        play("apps", generation_kwargs={"do_sample": True}, max_steps=1)


# -- TRL's own way: tools and environments


class Counter:
    """An environment with one tool and a reward."""

    def reset(self, start: int, **kwargs: Any) -> str:
        self.value = start
        return f" from {start}"

    def add(self, number: int) -> str:
        """Add to the counter.

        Args:
            number: What to add.
        """
        self.value += number
        return f"now {self.value}"

    def get_reward(self) -> float:
        return float(self.value)


def double(number: int) -> str:
    """Double a number.

    Args:
        number: The number.
    """
    return str(2 * number)


@pytest.mark.parametrize("way", ["tools", pytest.param("environment_factory", marks=slow)])
def test_trls_tools_are_masked_out_of_everything(way: str, config: Callable[..., Any], disturb: Any) -> None:
    given: dict[str, Any] = {"tools": [double]} if way == "tools" else {"environment_factory": Counter}
    runs, dumps, seen = [], [], []

    def reward(completions: list[list[dict[str, Any]]], **kwargs: Any) -> list[float]:
        seen.append(completions)
        return [float(len(row[-1]["content"])) for row in completions]

    def choose(text: str) -> str:
        """Call the tool once, then answer with a text of a random length."""
        if text.count("<t>"):
            return "x" * int(torch.randint(1, 6, ())) + "<eos>"
        return tool_model.call("double" if way == "tools" else "add", number=int(torch.randint(10, 99, ())))

    words = tool_model.tokenizer()
    opens, closes = (words.convert_tokens_to_ids(tag) for tag in ("<t>", "<a>"))

    def of_a_tool(ids: Tensor) -> Tensor:
        """From <t> to the <a> behind it."""
        return ((ids == opens).cumsum(1) > (ids == closes).cumsum(1)) | (ids == closes)

    for noise in (None, float("nan")):
        disturb(noise, of_a_tool)
        dumps.append(Dump())

        def make(dump: Dump = dumps[-1], **arguments: Any) -> Any:
            trainer = ObjectiveTrainer(
                model=tool_model.model(len(words)),
                args=config(max_completion_length=160, steps_per_generation=2, max_steps=2),
                train_dataset=Dataset.from_list(
                    [{"prompt": [{"role": "user", "content": f"q{i}"}], "start": i, "task": "t"} for i in range(8)]
                ),
                processing_class=words,
                reward_funcs=reward,
                objective="ce_gppo",
                token_sink=dump,
                token_interval=1,
                **arguments,
                **given,
            )
            tool_model.scripted(trainer, choose)
            return trainer

        runs.append(train(make))
    clean, noisy = runs
    for a, b in zip(clean.gradients, noisy.gradients, strict=True):
        assert torch.equal(a, b)
    assert max(float(g.abs().max()) for g in clean.gradients) > 1e-3
    assert lines_after(clean, 0) == lines_after(noisy, 0)
    (first, *_) = seen[0]
    assert [message["role"] for message in first] == ["assistant", "tool", "assistant"]
    written = words.decode(dumps[0].tables[0]["token_id"][0][dumps[0].tables[0]["mask"][0]])
    assert "<call>" in written
    assert "<t>" not in written
    assert written.endswith("x<eos>")
    lengths = [float(table["mask"].sum(1).float().mean()) for table in dumps[0].tables]
    assert clean.logged("completions/mean_length")[0] == pytest.approx(sum(lengths) / 2, rel=1e-6)


@pytest.mark.parametrize("is_slow", [False, True])
def test_appworld_is_an_environment_whose_failure_ends_the_run(is_slow: bool, config: Callable[..., Any]) -> None:
    seen: list[str] = []

    def choose(text: str) -> str:
        """Solve every second rollout: the task's id stands at the end of the prompt."""
        seen.append(text)
        if text.count("<t>"):
            return "done<eos>"
        task_id = text.split("Set done to ")[1].split(".")[0]
        return tool_model.call(
            "execute", code="sleep 2" if is_slow else f"set done {task_id if len(seen) % 2 else 'no'}"
        )

    with serving(8) as servers:

        def make(**arguments: Any) -> Any:
            words = tool_model.tokenizer()
            trainer = ObjectiveTrainer(
                model=tool_model.model(len(words), context=2048),
                args=config(max_completion_length=160, max_steps=1, num_iterations=2),
                train_dataset=Dataset.from_list(appworld.rows([f"task{i}_1" for i in range(4)])),
                processing_class=words,
                objective="ce_gppo",
                environment_factory=appworld.Factory([one.url for one in servers], timeout=0.2 if is_slow else 20),
                **arguments,
            )
            tool_model.scripted(trainer, choose)
            return trainer

        if is_slow:
            with pytest.raises(appworld.AppWorldError, match=r"did not answer within 0\.2 s"):
                train(make)
            return
        found = train(make)
    assert found.logged("reward") == [0.5]
    assert found.logged("tools/failure_frequency") == [0.0]
    assert {server.task_id for server in servers} <= {f"task{i}_1" for i in range(4)}
    assert all([method for method, _ in server.calls] == ["initialize", "execute", "evaluate"] for server in servers)
