"""The apps by functions: the same worlds and goals as by commands."""

import inspect
import re

import pytest
from transformers.utils import get_json_schema

from isentrope.tasks.apps import Apps
from isentrope.tasks.apps_tools import AppsTools, rows
from isentrope.tasks.turns import actions

METHODS = {"c?": "contacts_find", "c=": "contacts_set", "c-": "contacts_delete", "w>": "wallet_pay"} | {
    "n?": "notes_read",
    "n-": "notes_delete",
    "n=": "notes_write",
    "d?": "calendar_find",
    "d=": "calendar_book",
    "d-": "calendar_cancel",
}
ARGUMENTS = {"c=": r"(.)(..)", "w>": r"(..),(.)", "n=": r"(.)(.+)", "d=": r"(.)(.)"}


def test_the_solution_of_a_goal_by_functions_is_rewarded_and_less_or_more_is_not():
    for row, example in zip(rows("train", 60, 0), Apps().examples("train", 60, 0), strict=True):
        environment = AppsTools()
        environment.reset(**row)
        assert environment.get_reward() == 0.0
        for command in list(actions(example.references[0]))[:-1]:
            found = re.fullmatch(ARGUMENTS.get(command[:2], "(.+)"), command[2:])
            answer = getattr(environment, METHODS[command[:2]])(*found.groups())
            assert answer != "?"
        assert environment.get_reward() == 1.0
        environment.notes_write(9, "111")
        assert environment.get_reward() == 0.0
        environment.reset(**row)
        assert environment.get_reward() == 0.0


def test_a_prompt_says_the_goal_in_words():
    made = rows("test", 30, 1)
    assert len({row["prompt"][0]["content"] for row in made}) > 20
    for row, example in zip(made, Apps().examples("test", 30, 1), strict=True):
        numbers = re.findall(r"\d+", example.prompt)
        sentence = row["prompt"][0]["content"].split("Task: ")[1]
        assert re.findall(r"\d+", sentence) == numbers


@pytest.mark.parametrize(
    "name", [n for n, _ in inspect.getmembers(AppsTools, inspect.isfunction) if "_" in n.strip("_")]
)
def test_every_function_is_documented_for_a_model(name):
    if name == "get_reward":
        return
    schema = get_json_schema(getattr(AppsTools, name))["function"]
    properties = {key for key in schema["parameters"]["properties"] if key != "self"}
    assert all(schema["parameters"]["properties"][key]["description"] for key in properties)


def test_what_makes_no_sense_is_said_and_changes_nothing():
    environment = AppsTools()
    environment.reset(**rows("train", 1, 0)[0])
    before = environment._world.tables()
    assert environment.contacts_find(12) == "?"
    assert environment.wallet_pay(47, 2.5) == "?"
    assert environment.calendar_book("x", None) == "?"
    assert environment.wallet_balance() == str(before.balance)
    assert environment._world.tables() == before
