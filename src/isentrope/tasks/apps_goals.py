"""Goals for the small apps: an instruction, what the database must hold at the end, and one way to get there.

A *scenario* is a kind of goal; its variants ask for the same thing of other people, numbers and databases. The expected
database is made from the first one directly, not by running commands.
"""

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

from isentrope.tasks.apps_world import FINISH, FOUND_NOTHING, Tables
from isentrope.tasks.turns import Solution

VARIANTS = 3  # of a scenario


@dataclass(frozen=True)
class Goal:
    """One problem. instruction: what the prompt says; sentence: the same in words. start, expected: the database before
    and after. solve(): a generator of commands that is sent their answers.
    """

    instruction: str
    sentence: str
    start: Tables
    expected: Tables
    solve: Callable[[], Solution]


def database(rng: random.Random) -> Tables:
    """Six contacts with different numbers, four events, some notes, and a balance that allows for any payment."""
    people = rng.sample(range(10), 6)
    phones = rng.sample(range(10, 100), 6)
    hours = rng.sample(range(10), 4)
    notes = {number: str(rng.randrange(10, 1000)) for number in rng.sample(range(10), 3)}
    events = {hour: rng.choice(people) for hour in hours}
    return Tables(dict(zip(people, phones, strict=True)), rng.randrange(20, 100), [], notes, events)


def pay(rng: random.Random) -> Goal:
    """Pay somebody whose number must be looked up: "pay 1 8"."""
    start = database(rng)
    person, amount = rng.choice(sorted(start.contacts)), rng.randrange(1, 10)
    expected = _paid(start, start.contacts[person], amount)

    def solve() -> Solution:
        phone = yield f"c?{person}"
        yield f"w>{phone},{amount}"
        yield FINISH

    return Goal(f"pay {person} {amount}", f"Pay person {person} the amount {amount}.", start, expected, solve)


def move(rng: random.Random) -> Goal:
    """Move an appointment to a free hour: "move 5 to 7"."""
    start = database(rng)
    hour = rng.choice(sorted(start.events))
    free = rng.choice([h for h in range(10) if h not in start.events])
    expected = deepcopy(start)
    expected.events[free] = expected.events.pop(hour)

    def solve() -> Solution:
        person = yield f"d?{hour}"
        yield f"d={free}{person}"
        yield f"d-{hour}"
        yield FINISH

    sentence = f"Move the appointment of hour {hour} to hour {free}."
    return Goal(f"move {hour} to {free}", sentence, start, expected, solve)


def settle(rng: random.Random) -> Goal:
    """Pay what a note says, and delete the note: "settle 3" with note 3 "18"."""
    start = database(rng)
    number, person, amount = rng.randrange(10), rng.choice(sorted(start.contacts)), rng.randrange(1, 10)
    start.notes[number] = f"{person}{amount}"
    expected = _paid(start, start.contacts[person], amount)
    del expected.notes[number]

    def solve() -> Solution:
        note = yield f"n?{number}"
        phone = yield f"c?{note[0]}"
        yield f"w>{phone},{note[1:]}"
        yield f"n-{number}"
        yield FINISH

    sentence = f"Note {number} names a person (first digit) and an amount (second digit). Pay it and delete the note."
    return Goal(f"settle {number}", sentence, start, expected, solve)


def save(rng: random.Random) -> Goal:
    """Put the number that a note holds into the contacts, and delete the note: "save 3" with note 3 "147"."""
    start = database(rng)
    number, person = rng.randrange(10), rng.randrange(10)
    phone = rng.choice([p for p in range(10, 100) if p not in start.contacts.values()])
    start.notes[number] = f"{person}{phone}"
    expected = deepcopy(start)
    expected.contacts[person] = phone
    del expected.notes[number]

    def solve() -> Solution:
        note = yield f"n?{number}"
        yield f"c={note}"
        yield f"n-{number}"
        yield FINISH

    sentence = f"Note {number} is a person (first digit) and their phone number. Save it and delete the note."
    return Goal(f"save {number}", sentence, start, expected, solve)


def book(rng: random.Random) -> Goal:
    """Book the first hour if it is free, else the second: "book 1 at 5 or 6". The first is taken half of the time."""
    start = database(rng)
    person, is_taken = rng.choice(sorted(start.contacts)), rng.random() < 0.5
    free = [h for h in range(10) if h not in start.events]
    first = rng.choice(sorted(start.events) if is_taken else free)
    second = rng.choice([h for h in free if h != first])
    expected = deepcopy(start)
    expected.events[second if is_taken else first] = person

    def solve() -> Solution:
        answer = yield f"d={first}{person}"
        if answer == FOUND_NOTHING:
            yield f"d={second}{person}"
        yield FINISH

    sentence = f"Book person {person} at hour {first} if it is free, else at hour {second}."
    return Goal(f"book {person} at {first} or {second}", sentence, start, expected, solve)


KINDS: tuple[Callable[[random.Random], Goal], ...] = (pay, move, settle, save, book)


def _paid(start: Tables, phone: int, amount: int) -> Tables:
    expected = deepcopy(start)
    expected.balance -= amount
    expected.payments.append((phone, amount))
    return expected
