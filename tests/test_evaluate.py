"""Sampling against the model's own distribution; reports against figures known beforehand."""

import json
import math

import pytest
import torch

from isentrope import models, tasks
from isentrope.errors import IsentropeError
from isentrope.evaluate import Report, difference, encode_prompt, evaluate, sample, summarise
from isentrope.tasks import Example, Score


@pytest.fixture(scope="module")
def embedded():
    pytest.importorskip("transformers")
    return models.load("embedded")


PROMPTS = ["2,5,6,9>75:", "17!138:", "47+85:"]


def _texts(found):
    return [[one.text for one in row] for row in found]


def test_the_same_seed_gives_the_same_samples_whatever_the_batch_size(embedded):
    whole = sample(*embedded, PROMPTS, num_samples=6, max_new_tokens=24, seed=1)
    assert [len(row) for row in whole] == [6, 6, 6]
    for batch_size in (1, 4, 7, 12):
        again = sample(*embedded, PROMPTS, num_samples=6, max_new_tokens=24, seed=1, batch_size=batch_size)
        assert _texts(again) == _texts(whole)
    assert _texts(sample(*embedded, PROMPTS, num_samples=6, max_new_tokens=24, seed=2)) != _texts(whole)


def test_sampling_leaves_the_global_random_state_and_the_modes_of_modules_alone(embedded):
    model, tokenizer = embedded
    model.train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    try:
        inside = []
        hook = model.register_forward_hook(lambda module, *_: inside.append(module.training))
        sample(model, tokenizer, PROMPTS, num_samples=2, max_new_tokens=4)
        hook.remove()
        assert inside
        assert not any(inside)
        assert [module.training for module in model.modules()] == modes
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        model.eval()


def test_modes_are_restored_after_an_error(embedded):
    model, tokenizer = embedded
    model.train()
    hook = model.register_forward_pre_hook(lambda *_: 1 / 0)
    try:
        with pytest.raises(ZeroDivisionError):
            sample(model, tokenizer, PROMPTS)
        assert all(module.training for module in model.modules())
    finally:
        hook.remove()
        model.eval()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_entropies_are_those_of_the_model_without_a_cache(embedded, temperature):
    model, tokenizer = embedded
    found = sample(model, tokenizer, PROMPTS, 2, 24, temperature=temperature)
    for prompt, one in ((p, one) for p, row in zip(PROMPTS, found, strict=True) for one in row):
        start = encode_prompt(tokenizer, prompt)
        with torch.no_grad():
            logits = model(torch.tensor([[*start, *one.tokens]])).logits[0, len(start) - 1 : -1]
        expected = torch.distributions.Categorical(logits=logits / temperature).entropy()
        assert len(one.entropies) == len(one.tokens) > 0
        torch.testing.assert_close(torch.tensor(one.entropies), expected, rtol=1e-3, atol=1e-4)


def test_samples_follow_the_models_distribution(embedded):
    """The first token of 4,000 samples; the standard error of a frequency is at most 0.008."""
    model, tokenizer = embedded
    row = sample(model, tokenizer, PROMPTS[:1], num_samples=4000, max_new_tokens=1, batch_size=4000)[0]
    counts = torch.bincount(torch.tensor([one.tokens[0] for one in row]), minlength=len(tokenizer)) / 4000
    with torch.no_grad():
        expected = model(torch.tensor([encode_prompt(tokenizer, PROMPTS[0])])).logits[0, -1].softmax(dim=-1)
    assert (counts - expected).abs().max() < 0.03
    assert (counts > 0).sum() > 3


def test_temperature_zero_is_greedy(embedded):
    model, tokenizer = embedded
    row = sample(model, tokenizer, PROMPTS[2:], num_samples=3, max_new_tokens=24, temperature=0)[0]
    assert len({one.text for one in row}) == 1
    ids = torch.tensor([encode_prompt(tokenizer, PROMPTS[2])])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
    assert list(row[0].tokens) == expected[0, ids.shape[1] :].tolist()


def test_a_completion_is_truncated_unless_it_ends_itself(embedded):
    model, tokenizer = embedded
    whole = sample(model, tokenizer, PROMPTS[2:], 1, 24, temperature=0)[0][0]
    assert (whole.is_truncated, whole.tokens[-1]) == (False, tokenizer.eos_token_id)
    length = len(whole.tokens)
    exact = sample(model, tokenizer, PROMPTS[2:], 1, length, temperature=0)[0][0]
    assert exact == whole
    cut = sample(model, tokenizer, PROMPTS[2:], 1, length - 1, temperature=0)[0][0]
    assert (cut.is_truncated, cut.text, len(cut.tokens)) == (True, whole.text, length - 1)


def test_no_prompts_give_no_completions(embedded):
    assert sample(*embedded, []) == []


def test_prompts_that_cannot_be_continued_are_refused(embedded):
    model, tokenizer = embedded
    with pytest.raises(IsentropeError, match="has no tokens"):
        sample(model, tokenizer, [""])
    with pytest.raises(IsentropeError, match="exceed the model's context of 512; lower max_new_tokens"):
        sample(model, tokenizer, ["1+1:"], max_new_tokens=512)


def test_a_model_that_has_diverged_is_named_as_the_cause(embedded):
    model, tokenizer = embedded
    hook = model.lm_head.register_forward_hook(lambda _, __, logits: logits * math.nan)
    try:
        with pytest.raises(IsentropeError, match="weights have diverged"):
            sample(model, tokenizer, PROMPTS)
    finally:
        hook.remove()


@pytest.mark.engine
def test_a_model_with_an_adapter_is_sampled_like_any_other(embedded):
    peft = pytest.importorskip("peft")
    model, tokenizer = models.load("embedded")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    assert _texts(sample(adapted, tokenizer, PROMPTS, 2, 24)) == _texts(sample(*embedded, PROMPTS, 2, 24))


@pytest.mark.parametrize(
    "options",
    [{"num_samples": 0}, {"max_new_tokens": 0}, {"batch_size": 0}, {"temperature": -1}, {"temperature": math.nan}],
)
def test_impossible_settings_are_refused(embedded, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        sample(*embedded, PROMPTS, **options)


def test_chat_prompts_go_through_the_template(embedded):
    _, tokenizer = embedded
    messages = [{"role": "user", "content": "1+1:"}]
    assert encode_prompt(tokenizer, messages) == encode_prompt(tokenizer, "1+1:\n")
    template, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        with pytest.raises(IsentropeError, match="no chat template"):
            encode_prompt(tokenizer, messages)
    finally:
        tokenizer.chat_template = template


class Script:
    """Judges by a table, so that every figure of a report is known beforehand."""

    name = "script"

    def __init__(self, table):
        self.table = iter(table)

    def score(self, completion, example):
        outcome, answer = next(self.table)
        return Score(float(outcome == "right"), outcome, answer, "time-out" if outcome == "unscored" else "")


def test_every_figure_of_a_report_is_as_defined(embedded):
    right, wrong, none = ("right", "a"), ("wrong", "b"), ("wrong", "")
    table = [right, ("right", "c"), wrong, none, wrong, wrong, none, ("unscored", "d")]
    examples = [Example(prompt, None, "script") for prompt in PROMPTS[:2]]
    report = evaluate(*embedded, Script(table), examples, samples=4, max_new_tokens=24, seed=5)
    drawn = [one for row in sample(*embedded, PROMPTS[:2], 4, 24, seed=5) for one in row]
    lengths = [len(one.tokens) for one in drawn]
    assert report.right == (2, 0)
    assert report.pass_at == {1: 0.25, 2: pytest.approx(5 / 12), 4: 1.0}  # 1 - C(2,2)/C(4,2) = 5/6 for the first
    assert report.counted == {1: 2, 2: 2, 4: 1}  # the second has three samples that could be judged
    assert report.majority == pytest.approx(1 / 3)  # a tie of a, c and b for the first: 2/3; b for the second: 0
    assert (report.pass_at_1, report.reward) == (0.25, 0.25)
    assert (report.distinct_right, report.distinct_answers, report.distinct_of) == (1.0, 2.0, 4)
    assert (report.no_answer, report.unscored) == (2 / 8, 1 / 8)
    assert report.length == sum(lengths) / 8
    assert report.truncated == 0.0
    assert report.entropy == pytest.approx(sum(sum(one.entropies) for one in drawn) / sum(lengths))
    assert report.interval == (0.0, 0.5)
    assert (report.task, report.problems, report.samples, report.seed) == ("script", 2, 4, 5)


def test_distinct_answers_are_counted_among_eight_samples(embedded):
    table = [("right", str(i)) for i in range(11)]
    examples = [Example(PROMPTS[0], None, "script")]
    report = evaluate(*embedded, Script(table), examples, samples=11, max_new_tokens=2)
    assert (report.distinct_right, report.distinct_of) == (8.0, 8)
    assert list(report.pass_at) == [1, 2, 4, 8, 11]
    assert report.truncated == 1.0


def test_a_report_repeats_itself_and_survives_json(embedded):
    task = tasks.get("countdown")
    examples = task.examples("test", 8, 0)
    report = evaluate(*embedded, task, examples, samples=4, max_new_tokens=24)
    assert report == evaluate(*embedded, task, examples, samples=4, max_new_tokens=24)
    found = json.loads(json.dumps(report.to_dict()))
    assert found["pass_at"]["4"] == report.pass_at[4]
    assert found["right"] == list(report.right)
    assert set(found) == set(Report.__dataclass_fields__)


def test_no_examples_are_refused(embedded):
    with pytest.raises(IsentropeError, match="no examples of task countdown"):
        evaluate(*embedded, tasks.get("countdown"), [])


def _figures(**values):
    return {key: {"pass@1": (value, 1.0), "length": (2 * value, 2.0)} for key, value in values.items()}


def test_a_difference_is_over_the_problems_that_both_have():
    first = _figures(a=0.0, b=1.0, only_here=1.0)
    found = difference("t", first, _figures(b=1.0, a=1.0, only_there=0.0))
    assert (found.task, found.problems) == ("t", 2)
    assert found.differences == {"pass@1": 0.5, "length": 0.5}  # a: +1, b: 0
    assert found.intervals["pass@1"] == (0.0, 1.0)
    assert not found.is_clear("pass@1")  # 0 is in it
    both = difference("t", _figures(a=0.0, b=0.1), _figures(a=0.5, b=0.6))
    assert both.is_clear("pass@1")
    assert difference("t", _figures(a=0.5, b=0.6), _figures(a=0.0, b=0.1)).is_clear("pass@1")


def test_evaluations_without_a_common_problem_are_not_compared():
    with pytest.raises(IsentropeError, match=r"have no problem in common \(1 and 2 problems\)"):
        difference("t", _figures(a=0.0), _figures(b=0.0, c=0.0))


def test_only_figures_that_both_have_are_compared():
    first = {"a": {"pass@1": (1.0, 1.0), "pass@2": (1.0, 1.0)}}
    assert list(difference("t", first, _figures(a=0.0)).differences) == ["pass@1"]


def test_no_problems_are_not_summed_up():
    with pytest.raises(IsentropeError, match="no problems to sum up"):
        summarise([], 1.0, 24, 0)
