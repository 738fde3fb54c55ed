"""The two backends of an evaluation. vLLM is a stand-in here with the calls and the answers of its offline engine."""

import importlib.util
import math
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from isentrope import models, samplers, tasks
from isentrope.errors import IsentropeError
from isentrope.evaluate import ESTIMATE, EXACT
from isentrope.sampling import encode_prompt, sample
from isentrope.tasks import Example

PROMPTS = ["2,5,6,9>75:", "17!138:", "47+85:"]
TASK = tasks.get("countdown")  # of one turn; nothing here scores
EXAMPLES = [Example(prompt, None, "countdown") for prompt in PROMPTS]


@pytest.fixture(scope="module")
def sampler():
    pytest.importorskip("transformers")
    return samplers.load("auto", "embedded")


def test_transformers_is_the_backend_without_vllm(sampler):
    assert (sampler.name, sampler.entropy_kind, sampler.context) == ("transformers", EXACT, 512)


def test_the_samples_of_a_prompt_do_not_depend_on_its_neighbours(sampler):
    seeds = [11, 22, 33]
    together = sampler.draw(TASK, EXAMPLES, 5, 24, 1.0, seeds)
    for place in range(3):
        (alone,) = sampler.draw(TASK, EXAMPLES[place : place + 1], 5, 24, 1.0, seeds[place : place + 1])
        assert [one.text for one in alone] == [one.text for one in together[place]]
    changed = sampler.draw(TASK, EXAMPLES, 5, 24, 1.0, [12, 22, 33])
    assert [one.text for one in changed[0]] != [one.text for one in together[0]]
    assert [one.text for one in changed[1]] == [one.text for one in together[1]]


def test_seeds_and_prompts_go_together():
    model = models.load("embedded")
    with pytest.raises(ValueError, match="2 seeds for 3 prompts"):
        sample(*model, PROMPTS, seed=[1, 2])
    assert sample(*model, [], seed=[]) == []


def test_an_unknown_backend_and_a_missing_one_are_named(monkeypatch):
    with pytest.raises(IsentropeError, match="no backend 'vlm'; use auto, transformers, vllm"):
        samplers.load("vlm", "embedded")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    with pytest.raises(IsentropeError, match="vLLM, which is not installed"):
        samplers.load("vllm", "some/model")


class StandIn(ModuleType):
    """vLLM's offline engine as far as an evaluation uses it: LLM, SamplingParams, and what `generate` returns."""

    def __init__(self, tokenizer):
        super().__init__("vllm")
        self.tokenizer, self.made, self.asked = tokenizer, [], []
        self.SamplingParams = SimpleNamespace
        self.LLM = self._engine

    def _engine(self, **options):
        self.made.append(options)
        config = SimpleNamespace(max_model_len=4096)
        return SimpleNamespace(
            get_tokenizer=lambda: self.tokenizer,
            llm_engine=SimpleNamespace(model_config=config),
            generate=self._generate,
        )

    def _generate(self, prompts, params, use_tqdm):
        self.asked += list(zip(prompts, params, strict=True))
        return [SimpleNamespace(outputs=[self._output(i) for i in range(one.n)]) for one in params]

    def _output(self, i):
        tokens = [5, 6, 7][: 2 + i % 2]
        logprobs = [{token: SimpleNamespace(logprob=-0.5 * (place + 1))} for place, token in enumerate(tokens)]
        reason = "length" if i % 2 else "stop"
        return SimpleNamespace(text=f"text {i}", token_ids=tokens, logprobs=logprobs, finish_reason=reason)


@pytest.fixture
def vllm(monkeypatch):
    stand_in = StandIn(models.load("embedded")[1])
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: stand_in if name == "vllm" else find(name, *a))
    return stand_in


def test_vllm_is_asked_for_what_the_evaluation_wants(vllm):
    sampler = samplers.load("vllm", "some/model", "bfloat16", 32)
    assert (sampler.name, sampler.entropy_kind, sampler.context) == ("vllm", ESTIMATE, 4096)
    (options,) = vllm.made
    assert options["model"] == "some/model"
    assert (options["dtype"], options["max_num_seqs"]) == ("bfloat16", 32)
    assert options["logprobs_mode"] == "processed_logprobs"  # at the temperature of the draw
    sampler.draw(TASK, EXAMPLES[:2], 2, 24, 0.6, [7, 2**40])
    encoded = [encode_prompt(vllm.tokenizer, prompt) for prompt in PROMPTS[:2]]
    assert [prompt["prompt_token_ids"] for prompt, _ in vllm.asked] == encoded
    params = vllm.asked[1][1]
    assert (params.n, params.max_tokens, params.temperature, params.logprobs) == (2, 24, 0.6, 0)
    assert [one.seed for _, one in vllm.asked] == [7, 2**40 % 2**31]


def test_vllms_answers_become_completions_with_estimated_entropies(vllm):
    rows = samplers.load("vllm", "some/model").draw(TASK, EXAMPLES[:1], 2, 24, 1.0, [0])
    first, second = rows[0]
    assert (first.text, first.tokens, first.is_truncated) == ("text 0", (5, 6), False)
    assert (second.tokens, second.is_truncated) == ((5, 6, 7), True)
    assert math.fsum(second.entropies) == 0.5 + 1.0 + 1.5


def test_several_turns_are_played_with_transformers_alone(vllm, sampler):
    task = tasks.get("apps")
    examples = task.examples("test", 2, 0)
    with pytest.raises(IsentropeError, match="task apps has several turns"):
        samplers.load("vllm", "some/model").draw(task, examples, 1, 24, 1.0, [0, 1])
    rows = sampler.draw(task, examples, 2, 48, 1.0, [0, 1])
    assert [len(row) for row in rows] == [2, 2]
    assert all(len(one.entropies) == len(one.tokens) for row in rows for one in row)


def test_vllm_is_taken_by_itself_only_where_it_can_serve(vllm, monkeypatch):
    assert samplers.load("auto", "embedded").name == "transformers"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert samplers.load("auto", "some/model").name == "vllm"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(IsentropeError, match="cannot load model 'some/model'"):
        samplers.load("auto", "some/model")  # transformers, which looks for it
    with pytest.raises(IsentropeError, match="no folder that vLLM could read"):
        samplers.load("vllm", "embedded")
