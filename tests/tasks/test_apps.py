"""The apps: commands do what their table says, goals are judged by the database, scenarios by all their variants."""

from copy import deepcopy
from string import printable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.tasks import apps_goals, apps_world
from isentrope.tasks.apps import MOST_TURNS, Apps, Session, make_goal
from isentrope.tasks.apps_world import Tables, World
from isentrope.tasks.base import generator
from isentrope.tasks.scenarios import completion_of, goal_completion
from isentrope.tasks.turns import actions, is_interactive, transcript

APPS = Apps()
START = Tables({1: 47, 2: 30}, balance=9, payments=[], notes={3: "18"}, events={5: 1})


def after(*commands):
    """Answers to commands, and the tables behind them."""
    world = World(START)
    return [world.run(command) for command in commands], world.tables()


@pytest.mark.parametrize(
    ("command", "answer", "changes"),
    [
        ("c?1", "47", {}),
        ("c?9", "-", {}),
        ("c=147", "+", {}),
        ("c=155", "+", {"contacts": {1: 55, 2: 30}}),
        ("c=990", "+", {"contacts": {1: 47, 2: 30, 9: 90}}),
        ("c-1", "+", {"contacts": {2: 30}}),
        ("c-9", "-", {}),
        ("w?", "9", {}),
        ("w>47,8", "+", {"balance": 1, "payments": [(47, 8)]}),
        ("w>47,9", "+", {"balance": 0, "payments": [(47, 9)]}),
        ("w>48,8", "-", {}),
        ("n?3", "18", {}),
        ("n?4", "-", {}),
        ("n=4123", "+", {"notes": {3: "18", 4: "123"}}),
        ("n=30", "+", {"notes": {3: "0"}}),
        ("n-3", "+", {"notes": {}}),
        ("n-4", "-", {}),
        ("d?5", "1", {}),
        ("d?6", "-", {}),
        ("d=62", "+", {"events": {5: 1, 6: 2}}),
        ("d=52", "-", {}),
        ("d-5", "+", {"events": {}}),
        ("d-6", "-", {}),
    ],
)
def test_every_command_answers_and_changes_what_its_table_says(command, answer, changes):
    answers, tables = after(command)
    expected = deepcopy(START)
    for name, value in changes.items():
        setattr(expected, name, value)
    assert answers == [answer]
    assert tables == expected
    form = command[:2].replace("\\", "")
    assert f"`{form}" in apps_world.__doc__


def test_a_payment_needs_the_balance_of_that_moment():
    answers, tables = after("w>47,5", "w>47,5", "w>30,4")
    assert answers == ["+", "-", "+"]
    assert (tables.balance, tables.payments) == (0, [(47, 5), (30, 4)])


@given(st.text(alphabet=printable + "٣９", max_size=20))
def test_no_text_raises_and_what_is_no_command_changes_nothing(text):
    answers, tables = after(text)
    assert "\n" not in answers[0]
    if answers[0] in "-?":
        assert tables == START


@pytest.mark.parametrize(
    "text", ["", " c?1", "c?1 ", "c?1\n", "c?１", "c?10", "C?1", "w>07,1", "w>47,0", "n=3", "n=31234", "."]
)
def test_near_commands_are_not_understood(text):
    assert after(text)[0] == ["?"]


def test_the_task_validates_and_is_built_in():
    task = tasks.get("apps")
    assert is_interactive(task)
    assert not is_interactive(tasks.get("countdown"))
    task.validate()


@pytest.mark.parametrize("kind", apps_goals.KINDS)
def test_the_solution_of_every_goal_reaches_its_database_by_changing_only_what_it_names(kind):
    for seed in range(60):
        goal = kind(generator("test", kind.__name__, seed))
        session = Session(World(goal.start))
        text = transcript(session, goal.solve())
        assert session.is_finished
        assert session.world.tables() == goal.expected != goal.start
        assert len(actions(text)) <= 5


def test_each_kind_of_goal_occurs_and_booking_meets_both_cases():
    examples = APPS.examples("train", 600, 0)
    kinds = {example.prompt.split()[0] for example in examples}
    assert kinds == {"pay", "move", "settle", "save", "book"}
    booked = [len(actions(e.references[0])) for e in examples if e.prompt.startswith("book")]
    assert set(booked) == {2, 3}


def test_right_is_the_expected_database_by_any_way():
    example = next(e for e in APPS.examples("train", 300, 0) if e.prompt.startswith("pay"))
    _, _, payment, plus, end = example.references[0].split("\n")
    assert APPS.score(example.references[0], example).answer == payment
    detour = "\n".join(["n?9", Session(World(APPS.goal(example).start)).world.run("n?9"), payment, "+", "."])
    assert APPS.score(detour, example).outcome == "right"
    assert APPS.score(f"{example.references[0]}\n", example).outcome == "right"  # the last turn ended with a line break
    undone = "\n".join([payment, plus, payment, plus, end])
    assert APPS.score(undone, example).outcome == "wrong"
    assert APPS.score(undone, example).answer == f"{payment};{payment}"
    assert APPS.score(".", example).answer == "nothing"


def test_an_invented_answer_or_an_open_end_is_no_answer():
    example = next(e for e in APPS.examples("train", 300, 0) if e.prompt.startswith("pay"))
    first, phone, payment, plus, end = example.references[0].split("\n")
    for lines in (
        [first, "99" if phone != "99" else "98", payment, plus, end],
        [first, phone, payment, plus],
        [first, phone, payment, plus, ""],
        [first, phone, payment, plus, end, "", ""],
        [first, phone, payment, plus, end, "x"],
        [payment],
    ):
        score = APPS.score("\n".join(lines), example)
        assert (score.outcome, score.reward, score.answer) == ("wrong", 0.0, "")


def test_an_episode_has_an_end_though_nobody_ends_it():
    example = APPS.examples("train", 1, 0)[0]
    session = APPS.begin(example)
    answers = [session.step("w?") for _ in range(MOST_TURNS + 1)]
    assert answers[-1] is None
    assert None not in answers[:-1]
    assert not session.is_finished
    endless = "\n".join(x for answer in answers[:-1] for x in ("w?", answer))
    assert APPS.score(f"{endless}\n.", example).answer == ""


def test_scenarios_are_whole_and_in_one_split():
    train, test = (APPS.examples(split, 300, 5) for split in ("train", "test"))
    assert not {e.answer["scenario"] for e in train} & {e.answer["scenario"] for e in test}
    assert [e.answer["variant"] for e in test] == [0, 1, 2] * 100
    assert len({e.answer["scenario"] for e in test}) == 100
    for first, second in zip(test[::3], test[1::3], strict=True):
        assert APPS.scenario(first) == APPS.scenario(second)
        assert first.prompt.split()[0] == second.prompt.split()[0]
        assert APPS.goal(first).start != APPS.goal(second).start
    assert make_goal("apps", 7, 1).start == make_goal("apps", 7, 1).start


def test_a_scenario_is_completed_by_completing_all_its_variants():
    # attempts 1: AppWorld's own figure
    found = goal_completion(["a", "a", "a", "b", "b", "b"], [1, 1, 1, 1, 0, 1], 1)
    assert (found.scenarios, found.task_goal_completion, found.scenario_goal_completion) == (2, 5 / 6, 0.5)
    # attempts 2: 1 * 1/2, and 1/2 * 1/2
    found = goal_completion(["a", "b", "a", "b"], [2, 1, 1, 1], 2)
    assert found.scenario_goal_completion == (0.5 + 0.25) / 2
    assert found.scenario_interval[0] == 0.25 < found.scenario_interval[1] == 0.5
    assert "scenario goal completion 0.375 (0.250 to 0.500) of 2" in str(found)
    assert completion_of(tasks.get("countdown"), [], [], 1) is None
    with pytest.raises(IsentropeError, match="counts from 0 to 3 of 2 attempts"):
        goal_completion(["a", "b"], [3, 0], 2)
    with pytest.raises(IsentropeError, match="0 problems with 0 counts"):
        goal_completion([], [], 2)
