"""Apps: reach a goal in four small apps by commands, over several turns. In the spirit of AppWorld, in one process.

AppWorld (Trivedi et al., arXiv:2407.18901) judges an agent by the state of the apps' databases: the goal's changes are
there, and nothing else changed. So it is here, with commands short enough for a model of single characters.
`isentrope.tasks.appworld` speaks to AppWorld itself.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from isentrope.tasks.apps_goals import KINDS, VARIANTS, Goal
from isentrope.tasks.apps_world import DONE, FINISH, World
from isentrope.tasks.base import (
    MAX_COMPLETION,
    NO_ANSWER,
    Example,
    Score,
    Split,
    check,
    check_request,
    draw,
    generator,
    is_held_out,
    judge,
)
from isentrope.tasks.turns import TURN, transcript

SCENARIOS = 20_000
MOST_TURNS = 12  # of an episode; no goal needs more than five


@dataclass
class Session:
    """One episode on one world. changes: the commands that changed it, in their order."""

    world: World
    changes: list[str] = field(default_factory=list)
    is_finished: bool = False
    turns: int = 0

    def step(self, action: str) -> str | None:
        """The apps' answer; None after `.`, and after the last turn that an episode may have."""
        self.turns += 1
        self.is_finished = self.is_finished or action == FINISH
        if self.is_finished or self.turns > MOST_TURNS:
            return None
        answer = self.world.run(action)
        if answer == DONE:
            self.changes.append(action)
        return answer


@dataclass(frozen=True)
class Apps:
    """Reach a goal by commands to contacts, wallet, notes and calendar; `apps_world` documents them.

    Prompt "pay 1 8:", transcript "c?1", "47", "w>47,8", "+", "." (a line each; the policy's and the apps' in turn).
    Right if the episode was ended with "." and the database then is the expected one: the goal's changes, and no other.
    "no answer" if it was not ended, or if the transcript is not what the apps say. The canonical answer is the commands
    that changed something, in their order.
    Problems come in scenarios of three variants; a scenario is in one split, its variants follow each other.
    answer of an example: {"scenario": 1203, "variant": 2}, from which the world is made again.
    """

    name: str = "apps"

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems of the split, scenario after scenario; equal for equal arguments."""
        check_request(self.name, split, count)
        rng = generator(self.name, split, seed)
        scenarios = draw(self.name, _pool(self.name, split == "test"), split, math.ceil(count / VARIANTS), rng)
        problems = [(scenario, variant) for scenario in scenarios for variant in range(VARIANTS)]
        return [self._example(*problem) for problem in problems[:count]]

    def _example(self, scenario: int, variant: int) -> Example:
        goal = make_goal(self.name, scenario, variant)
        reference = transcript(Session(World(goal.start)), goal.solve())
        return Example(f"{goal.instruction}:", {"scenario": scenario, "variant": variant}, self.name, (reference,))

    def begin(self, example: Example) -> Session:
        """A fresh episode of a problem."""
        return Session(World(self.goal(example).start))

    def goal(self, example: Example) -> Goal:
        """The problem's goal, made again from its answer."""
        return make_goal(self.name, example.answer["scenario"], example.answer["variant"])

    def score(self, completion: str, example: Example) -> Score:
        """Right if the transcript's commands, run in a fresh world, lead to the expected database."""
        if len(completion) > MAX_COMPLETION:
            return NO_ANSWER
        session = self.begin(example)
        if not _replays(session, completion.split(TURN)):
            return NO_ANSWER
        is_right = session.world.tables() == self.goal(example).expected
        return judge(is_right, ";".join(session.changes) or "nothing")

    def scenario(self, example: Example) -> str:
        """What the variants of a problem have in common, for the scenario goal completion."""
        return str(example.answer["scenario"])

    def validate(self) -> None:
        """Raise IsentropeError if a reference fails, a near-miss is rewarded, or the splits overlap."""
        check(self, _near_misses)


def make_goal(task: str, scenario: int, variant: int) -> Goal:
    """The goal of a variant; equal for equal arguments."""
    kind = KINDS[generator(task, "kind", scenario).randrange(len(KINDS))]
    return kind(generator(task, "goal", scenario, variant))


def _replays(session: Session, lines: Sequence[str]) -> bool:
    """Run a transcript's commands; whether it is finished and the other lines are what the apps answered."""
    for place in range(0, min(len(lines), 2 * MOST_TURNS), 2):
        answer = session.step(lines[place])
        if answer is None:
            break
        if place + 1 >= len(lines) or lines[place + 1] != answer:
            return False
    return session.is_finished and list(lines[2 * session.turns - 1 :]) in ([], [""])


def _near_misses(example: Example) -> Iterator[str]:
    text = example.references[0]
    lines = text.split(TURN)
    yield from (text + TURN + FINISH, text + "x", text[:-1], TURN.join(lines[:-1]), text.replace(TURN, " "))
    yield TURN.join(lines[-1:])  # nothing done
    yield TURN.join([*lines[:-3], FINISH])  # the last change is missing
    known = make_goal(example.task, **example.answer).expected.contacts
    stranger = next(person for person in range(10) if person not in known)
    yield TURN.join([f"c={stranger}10", "+", *lines])  # another change, too
    yield TURN.join([*lines[:-1], "w>10,1", "+", FINISH])  # an answer that the apps did not give
    yield TURN.join([lines[0], "Z9", *lines[2:]])


@cache
def _pool(name: str, held_out: bool) -> tuple[int, ...]:
    """All scenarios of one split."""
    return tuple(scenario for scenario in range(SCENARIOS) if is_held_out(name, str(scenario)) == held_out)
