"""Episodes: turns end at line breaks, the environment's tokens are marked, and seeds fix what is sampled."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from isentrope import episodes, models
from isentrope.episodes import line_break, play, sample_task
from isentrope.errors import IsentropeError
from isentrope.evaluate import evaluate
from isentrope.sampling import Completion, sample
from isentrope.tasks.base import NO_ANSWER, Example, judge


@dataclass
class Echo:
    """Answers with the length of what was said; ends at "." and after `turns` turns."""

    turns: int
    said: list[str] = field(default_factory=list)

    def step(self, action: str) -> str | None:
        self.said.append(action)
        return None if action == "." or len(self.said) > self.turns else str(len(action))


@dataclass(frozen=True)
class Echoing:
    """A task of an `Echo`; right with an even number of characters."""

    turns: int = 2
    name: str = "echoing"
    began: list[Echo] = field(default_factory=list)

    def examples(self, split, count, seed):
        return [Example(f"{i}+{i}:", i, self.name) for i in range(count)]

    def begin(self, example):
        self.began.append(Echo(self.turns))
        return self.began[-1]

    def score(self, completion, example):
        return judge(len(completion) % 2 == 0, completion) if completion else NO_ANSWER

    def validate(self):
        """Nothing to validate."""


@pytest.fixture(scope="module")
def embedded():
    return models.load("embedded", torch.float32)


def scripted(model, tokenizer, monkeypatch, *turns: str) -> None:
    """Let the model write these turns, one after the other, in every row; the last one ends with <end>."""
    texts = [tokenizer.encode(turn + "\n") for turn in turns[:-1]] + [[*tokenizer.encode(turns[-1]), 1]]
    plan: Callable[..., object] = iter([token for ids in texts for token in ids]).__next__
    original = type(model).forward

    @functools.wraps(original)  # the decoder looks at the signature
    def forward(self, *args, **kwargs):
        output = original(self, *args, **kwargs)
        output.logits = torch.zeros_like(output.logits)
        output.logits[..., plan()] = 50.0
        return output

    monkeypatch.setattr(type(model), "forward", forward)


def test_policy_and_environment_write_in_turn_and_the_mask_tells_them_apart(embedded, monkeypatch):
    model, tokenizer = embedded
    scripted(model, tokenizer, monkeypatch, "12", "345", ".")
    task = Echoing(turns=5)
    (episode,) = play(model, tokenizer, task, task.examples("train", 1, 0), max_new_tokens=40)
    assert task.began[0].said == ["12", "345", "."]
    assert episode.text == "12\n2\n345\n3\n."
    own = "".join("x" if is_own else "-" for is_own in episode.mask)
    assert own == "xxx--xxxx--xx"  # the line breaks that end the policy's turns are its own; ".<end>" is the last
    assert tokenizer.decode(episode.tokens) == "12\n2\n345\n3\n.<end>"
    assert len(episode.entropies) == sum(episode.mask)
    assert not episode.is_truncated
    completion = episode.completion()
    assert tokenizer.decode(completion.tokens) == "12\n345\n.<end>"
    assert completion.text == episode.text


def test_a_turn_that_ends_the_sequence_early_is_answered_on_a_new_line(embedded, monkeypatch):
    model, tokenizer = embedded
    scripted(model, tokenizer, monkeypatch, "7")  # ended by <end>, though the episode goes on
    task = Echoing(turns=1)
    with pytest.raises(StopIteration):  # the script is over when the policy is asked again
        play(model, tokenizer, task, task.examples("train", 1, 0), max_new_tokens=40)
    assert task.began[0].said == ["7"]


@pytest.mark.parametrize(
    ("limit", "text", "truncated"), [(3, "12\n", True), (5, "12\n", True), (2, "12", True), (9, "12\n2\n345\n", True)]
)
def test_the_limit_counts_all_tokens_and_the_last_one_is_the_policys(limit, text, truncated, embedded, monkeypatch):
    model, tokenizer = embedded
    scripted(model, tokenizer, monkeypatch, "12", "345", ".")
    task = Echoing(turns=5)
    (episode,) = play(model, tokenizer, task, task.examples("train", 1, 0), max_new_tokens=limit)
    assert (episode.text, episode.is_truncated) == (text, truncated)
    assert episode.mask[-1]
    assert len(episode.tokens) <= limit


def test_an_episode_depends_on_its_seed_alone(embedded):
    model, tokenizer = embedded
    task = Echoing(turns=3)
    examples = task.examples("train", 6, 0)
    together = play(model, tokenizer, task, examples, 30, seeds=[11, 12, 13, 14, 15, 16])
    alone = play(model, tokenizer, task, examples[3:4], 30, seeds=[14])
    apart = play(model, tokenizer, task, examples, 30, seeds=[11, 12, 13, 14, 15, 16], batch_size=2)
    assert alone[0].tokens == together[3].tokens
    assert [one.tokens for one in apart] == [one.tokens for one in together]
    assert [one.tokens for one in play(model, tokenizer, task, examples, 30)] != [one.tokens for one in together]


def test_a_turn_cut_at_the_rows_own_limit_never_reaches_the_environment(embedded):
    _, tokenizer = embedded
    row = episodes._Row(episodes.Episode([5]), Echo(turns=0), seed=0)
    ids = (*tokenizer.encode("123\n"),)  # ended by itself, but only two tokens fit into this row
    row.take(Completion("123\n", ids, (0.1,) * 4, False), tokenizer, limit=2)
    assert row.is_over
    assert row.episode.is_truncated
    assert row.environment.said == []
    assert (row.episode.text, row.episode.entropies, row.episode.mask) == ("12", [0.1, 0.1], [True, True])


def test_every_turn_of_every_row_has_random_numbers_of_its_own(embedded, monkeypatch):
    model, tokenizer = embedded
    seeds = []
    original = episodes.continue_ids

    def watched(*args, seed, **kwargs):
        seeds.extend(seed)
        return original(*args, seed=seed, **kwargs)

    monkeypatch.setattr(episodes, "continue_ids", watched)
    task = Echoing(turns=3)
    found = play(model, tokenizer, task, task.examples("train", 4, 0), 40, temperature=3.0)
    assert len(seeds) > 4, "no episode has a second turn"
    assert len(set(seeds)) == len(seeds)
    assert len({tuple(one.tokens) for one in found}) == 4


def test_an_evaluation_plays_episodes_and_counts_the_policys_tokens(embedded):
    model, tokenizer = embedded
    task = Echoing(turns=2)
    examples = task.examples("test", 3, 0)
    drawn = sample_task(model, tokenizer, task, examples, 4, 30, seed=5, batch_size=5)
    again = sample_task(model, tokenizer, task, examples, 4, 30, seed=5, batch_size=12)
    assert [[one.tokens for one in row] for row in drawn] == [[one.tokens for one in row] for row in again]
    assert len({one.tokens for one in drawn[0]}) > 1
    report = evaluate(model, tokenizer, task, examples, 4, 30, seed=5, batch_size=5)
    lengths = [len(one.tokens) for row in drawn for one in row]
    assert report.length == pytest.approx(sum(lengths) / 12)
    assert any(len(one.text) > len(one.tokens) for row in drawn for one in row), "no environment has written anything"
    plain = [example.prompt for example in examples]
    one = sample_task(model, tokenizer, _Plain(), examples, 2, 8, seed=3)
    assert one == sample(model, tokenizer, plain, 2, 8, seed=3)


class _Plain:
    name = "plain"
    examples = score = validate = None


def test_a_tokenizer_without_a_line_break_of_its_own_is_refused():
    class Merging:
        vocabulary = ("a", "\n", ".\n")

        def __len__(self):
            return 3

        def decode(self, ids):
            return "".join(self.vocabulary[i] for i in ids)

    with pytest.raises(IsentropeError, match="2 tokens of this tokenizer hold one"):
        line_break(Merging())
    Merging.vocabulary = ("a", "\n", "b")
    assert line_break(Merging()) == 1
