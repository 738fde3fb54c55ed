"""The small apps as TRL's `environment_factory`, for models whose chat template has tools.

    data = Dataset.from_list(rows("train", 1000, seed=0))
    trainer = ObjectiveTrainer("Qwen/Qwen3-0.6B", train_dataset=data, environment_factory=AppsTools, ...)

The same worlds, goals and verdict as the task `apps`, with a function for each command. Needs no server: a rehearsal
for `isentrope.tasks.appworld`.
"""

import json
from typing import Any

from isentrope.tasks.apps import Apps
from isentrope.tasks.apps_goals import Goal
from isentrope.tasks.apps_world import World
from isentrope.tasks.base import Example, Split

INSTRUCTION = (
    "You use the apps of a phone by its functions. People, notes and hours have numbers from 0 to 9. Do what the task "
    "asks for and nothing else, then say that you are done."
)


def rows(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    """Rows for `datasets.Dataset.from_list`, scenario after scenario: a chat prompt, the task's name, the answer."""
    task = Apps()
    return [
        {
            "prompt": [{"role": "user", "content": f"{INSTRUCTION} Task: {task.goal(example).sentence}"}],
            "task": task.name,
            "answer": json.dumps(example.answer),
        }
        for example in task.examples(split, count, seed)
    ]


class AppsTools:
    """One world. Functions answer "+" for done, "-" for nothing found or not possible, "?" for what makes no sense."""

    _goal: Goal
    _world: World

    def reset(self, answer: str, **_: Any) -> None:
        """Open the world of a row; other columns are not its concern."""
        self._goal = Apps().goal(Example("", json.loads(answer), Apps().name))
        self._world = World(self._goal.start)

    def get_reward(self) -> float:
        """1 if the database holds what the goal asks for and nothing else changed, else 0."""
        return float(self._world.tables() == self._goal.expected)

    def contacts_find(self, person: int) -> str:
        """Look up the phone number of a person.

        Args:
            person: Number of the person, 0 to 9.
        """
        return self._world.run(f"c?{person}")

    def contacts_set(self, person: int, phone: int) -> str:
        """Give a person a phone number, whether the person is known or not.

        Args:
            person: Number of the person, 0 to 9.
            phone: The phone number, 10 to 99.
        """
        return self._world.run(f"c={person}{phone}")

    def contacts_delete(self, person: int) -> str:
        """Delete a person from the contacts.

        Args:
            person: Number of the person, 0 to 9.
        """
        return self._world.run(f"c-{person}")

    def wallet_balance(self) -> str:
        """Look up how much there is to spend."""
        return self._world.run("w?")

    def wallet_pay(self, phone: int, amount: int) -> str:
        """Pay the owner of a phone number.

        Args:
            phone: The phone number, of somebody in the contacts.
            amount: The amount, 1 to 9.
        """
        return self._world.run(f"w>{phone},{amount}")

    def notes_read(self, number: int) -> str:
        """Read a note.

        Args:
            number: Number of the note, 0 to 9.
        """
        return self._world.run(f"n?{number}")

    def notes_write(self, number: int, content: str) -> str:
        """Write a note over what stands there.

        Args:
            number: Number of the note, 0 to 9.
            content: One to three digits.
        """
        return self._world.run(f"n={number}{content}")

    def notes_delete(self, number: int) -> str:
        """Delete a note.

        Args:
            number: Number of the note, 0 to 9.
        """
        return self._world.run(f"n-{number}")

    def calendar_find(self, hour: int) -> str:
        """Look up the number of the person who is booked at an hour.

        Args:
            hour: The hour, 0 to 9.
        """
        return self._world.run(f"d?{hour}")

    def calendar_book(self, hour: int, person: int) -> str:
        """Book a person at an hour that is free.

        Args:
            hour: The hour, 0 to 9.
            person: Number of the person, 0 to 9.
        """
        return self._world.run(f"d={hour}{person}")

    def calendar_cancel(self, hour: int) -> str:
        """Cancel what is booked at an hour.

        Args:
            hour: The hour, 0 to 9.
        """
        return self._world.run(f"d-{hour}")
