"""What is printed of a docstring: everything but its examples, and nothing that dataclass made up."""

from dataclasses import dataclass

import pytest

from isentrope import presets, spec
from isentrope.cli import _docstrings
from isentrope.objective import Objective


def test_documentation_leaves_examples_out_and_joins_lines():
    class Rule:
        """J = r A,
        of two lines.

        low: a number.  Source: nobody.

        >>> 1 + 1
        2
        """

        def __call__(self, log_ratio, advantage):
            return advantage

    assert _docstrings.documentation(Rule()) == "J = r A, of two lines.\nlow: a number. Source: nobody."
    assert _docstrings.summary(Rule()) == "J = r A, of two lines"


def test_the_signature_that_dataclass_writes_is_no_documentation():
    @dataclass(frozen=True)
    class Bare:
        low: float = 0.2

    assert Bare.__doc__ == "Bare(low: float = 0.2)"
    assert _docstrings.documentation(Bare()) == ""


def test_a_function_documents_itself():
    def rule(log_ratio, advantage):
        """J = A."""

    assert _docstrings.documentation(rule) == "J = A."


@pytest.mark.parametrize("name", list(spec.rule_names()))
def test_every_rule_and_controller_has_a_summary(name):
    summary = _docstrings.summary(spec.rule_names()[name])
    assert len(summary) > 5
    assert "Source:" not in summary


def test_the_overall_formula_is_a_sentence_of_the_docstring_of_objective():
    formula = _docstrings.overall_formula()
    assert formula.startswith("J = sum over selected tokens")
    assert formula in " ".join(Objective.__doc__.split())


def test_wrapped_rules_are_parts():
    assert [path for path, _ in _docstrings.parts(presets.erc)][2:4] == ["surrogate", "surrogate.surrogate"]
