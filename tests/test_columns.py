"""Columns: what a rule reads, and what is said of a batch that is not one."""

from dataclasses import dataclass

import pytest
import torch

from isentrope import ColumnError
from isentrope.columns import GLOSSARY, Reads, invoke, name_of, pick, reads, validate


def by_name(advantage, *, logp, task=None):
    return advantage * logp if task is None else advantage * logp + task


@dataclass(frozen=True)
class Wrapper:
    inner: object = by_name
    wraps = ("inner",)

    def __call__(self, advantage, *, mask, **columns):
        return invoke(self.inner, columns | {"mask": mask}, advantage)


class Greedy:
    def __call__(self, **columns):
        return columns


BATCH = {
    "mask": torch.ones(2, 3, dtype=torch.bool),
    "logp": torch.zeros(2, 3),
    "reward": torch.tensor([1.0, 0.0]),
    "group": torch.tensor([0, 0]),
}


def test_a_rule_reads_its_keyword_only_parameters():
    assert reads(by_name) == Reads(frozenset({"logp"}), frozenset({"task"}))
    assert reads(Wrapper()) == Reads(frozenset({"logp", "mask"}), frozenset({"task"}))
    assert reads(Wrapper(), "prepare") == Reads()
    assert "task" in reads(by_name)
    assert reads(by_name) & {"logp", "group"} == {"logp"}


def test_what_one_requires_the_other_may_have_as_optional():
    assert Reads(frozenset("a"), frozenset("b")) | Reads(frozenset("b")) == Reads(frozenset("ab"))


def test_all_columns_is_not_an_answer():
    with pytest.raises(ColumnError, match=r"Greedy takes \*\*columns; name each column"):
        reads(Greedy())


@pytest.mark.parametrize("thing", [3, "rule", None, Wrapper, object()])
def test_what_is_not_a_rule_is_refused(thing):
    with pytest.raises(ColumnError, match="is not a rule"):
        reads(thing)


def test_a_rule_gets_the_columns_it_asked_for_and_no_others():
    found = invoke(by_name, BATCH | {"logp": torch.ones(2, 3)}, torch.full((2, 3), 2.0))
    assert found.tolist() == [[2.0] * 3] * 2
    assert pick(BATCH, reads(by_name), "x", "y").keys() == {"logp"}


def test_a_missing_column_is_named_with_its_meaning_its_source_and_what_was_there():
    with pytest.raises(ColumnError) as error:
        pick(
            BATCH | {"select.0/own": BATCH["mask"]}, Reads(frozenset({"old_entropy", "mine"})), "select.0: X", "prepare"
        )
    text = str(error.value)
    assert text.startswith("select.0: X needs column `mine`, `old_entropy` (exact softmax entropy of the old policy")
    assert text.endswith("in prepare; the batch has group, logp, mask, reward")


def test_names_in_messages_are_those_of_the_class_or_the_function():
    assert name_of(Wrapper()) == "Wrapper"
    assert name_of(by_name) == "by_name"


def test_a_sound_batch_passes():
    validate(BATCH)
    validate(BATCH | {"mine": torch.zeros(2, 7, 9)})
    validate({name: x[:0] for name, x in BATCH.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.ones(2, 3)}, r"`mask` must be bool \[B,T\]; found torch.float32 \[2, 3\]: use mask.bool\(\)"),
        ({"mask": torch.ones(2, dtype=torch.bool)}, r"`mask` must be bool \[B,T\]; found torch.bool \[2\]"),
        ({"logp": torch.zeros(2, 4)}, r"`logp` must be \[2, 3\] like `mask`; found \[2, 4\]"),
        ({"logp": torch.zeros(2, 3, dtype=torch.int64)}, "`logp` must be float; found torch.int64"),
        ({"reward": torch.zeros(3)}, r"`reward` must be \[2\] like `mask`; found \[3\]"),
        ({"reward": torch.zeros(2, 1)}, r"`reward` must be \[2\] like `mask`; found \[2, 1\]"),
        ({"group": torch.zeros(2)}, "`group` must be int; found torch.float32"),
        ({"length_limit_hit": torch.zeros(2)}, "`length_limit_hit` must be bool; found torch.float32"),
        ({"mine": torch.zeros(5)}, r"`mine` must be \[2\] like `mask`; found \[5\]"),
        ({"reward": [1.0, 0.0]}, "`reward` must be a tensor; found list: use torch.as_tensor"),
        ({"reward": torch.tensor([0.0, torch.nan])}, r"`reward` must be finite; found row 1: nan \(1 of 2\)"),
        (
            {"reward": torch.tensor([torch.inf, torch.nan])},
            r"row 0: inf, row 1: nan \(2 of 2\): mend the reward function",
        ),
    ],
)
def test_a_malformed_batch_is_described(change, message):
    with pytest.raises(ColumnError, match=message):
        validate(BATCH | change)


def test_the_mask_is_always_required():
    with pytest.raises(ColumnError, match="the objective needs column `mask`"):
        validate({"logp": BATCH["logp"]})


def test_the_glossary_says_what_a_column_is_and_where_it_comes_from():
    assert {entry.shape for entry in GLOSSARY.values()} == {"B", "BT"}
    assert {entry.kind for entry in GLOSSARY.values()} == {"float", "int", "bool"}
    assert all(entry.meaning and entry.source for entry in GLOSSARY.values())
