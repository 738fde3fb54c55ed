"""Four small apps over one embedded database, and the commands by which a policy uses them.

A command is a line. The first character names the app, the second what to do; arguments follow without spaces. People
are numbered 0 to 9, like notes and hours of the day; phone numbers are 10 to 99, amounts 1 to 9, and a note is one to
three digits. Digits alone, because these are what the embedded model can read and copy.

| command | what it does | answer |
| --- | --- | --- |
| `c?1` | contacts: look up the phone number of person 1 | `47`, or `-` if there is none |
| `c=147` | contacts: give person 1 the number 47, known before or not | `+` |
| `c-1` | contacts: forget person 1 | `+`, or `-` if there is none |
| `w?` | wallet: look up the balance | `35` |
| `w>47,8` | wallet: pay 8 to the number 47 | `+`, or `-` if the balance is too low or no contact has the number |
| `n?3` | notes: read note 3 | `18`, or `-` if there is none |
| `n=318` | notes: write 18 into note 3, over whatever stood there | `+` |
| `n-3` | notes: delete note 3 | `+`, or `-` if there is none |
| `d?5` | calendar: who is booked at hour 5 | `1`, or `-` if nobody is |
| `d=51` | calendar: book person 1 at hour 5 | `+`, or `-` if the hour is taken |
| `d-5` | calendar: cancel hour 5 | `+`, or `-` if nobody is booked |
| `.` | the goal is reached; the episode is over | none |

Anything else is answered with `?` and changes nothing.
"""

import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

FOUND_NOTHING, DONE, NOT_UNDERSTOOD, FINISH = "-", "+", "?", "."

_SCHEMA = """
create table contacts (person integer primary key, phone integer not null);
create table wallet (balance integer not null check (balance >= 0));
create table payments (id integer primary key, phone integer not null, amount integer not null);
create table notes (number integer primary key, content text not null);
create table events (hour integer primary key, person integer not null);
"""
_PHONE, _DIGIT, _AMOUNT, _NOTE = "([1-9][0-9])", "([0-9])", "([1-9])", "([0-9]{1,3})"
_FORMS = {
    rf"c\?{_DIGIT}": "find_contact",
    rf"c={_DIGIT}{_PHONE}": "set_contact",
    rf"c-{_DIGIT}": "delete_contact",
    r"w\?": "balance",
    rf"w>{_PHONE},{_AMOUNT}": "pay",
    rf"n\?{_DIGIT}": "read_note",
    rf"n={_DIGIT}{_NOTE}": "write_note",
    rf"n-{_DIGIT}": "delete_note",
    rf"d\?{_DIGIT}": "find_event",
    rf"d={_DIGIT}{_DIGIT}": "book",
    rf"d-{_DIGIT}": "cancel",
}
COMMANDS = [(re.compile(form), method) for form, method in _FORMS.items()]
LONGEST_COMMAND = 16  # characters; a longer line is not looked at


@dataclass
class Tables:
    """What the database holds, as plain values that can be compared. payments: (phone, amount), in their order."""

    contacts: dict[int, int] = field(default_factory=dict)
    balance: int = 0
    payments: list[tuple[int, int]] = field(default_factory=list)
    notes: dict[int, str] = field(default_factory=dict)
    events: dict[int, int] = field(default_factory=dict)


class World:
    """The apps over an SQLite database in memory. Methods answer as the table of commands says."""

    def __init__(self, tables: Tables) -> None:
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._database.executescript(_SCHEMA)
        self._insert("contacts", list(tables.contacts.items()))
        self._insert("wallet", [(tables.balance,)])
        self._insert("payments", [(None, *payment) for payment in tables.payments])
        self._insert("notes", list(tables.notes.items()))
        self._insert("events", list(tables.events.items()))

    def _insert(self, table: str, rows: list[tuple[object, ...]]) -> None:
        if rows:
            marks = ", ".join("?" for _ in rows[0])
            self._database.executemany(f"insert into {table} values ({marks})", rows)

    def tables(self) -> Tables:
        """All that the database holds."""
        ask = self._database.execute
        return Tables(
            contacts=dict(ask("select person, phone from contacts")),
            balance=ask("select balance from wallet").fetchone()[0],
            payments=list(ask("select phone, amount from payments order by id")),
            notes=dict(ask("select number, content from notes")),
            events=dict(ask("select hour, person from events")),
        )

    def run(self, command: str) -> str:
        """The answer to one command, `.` apart; NOT_UNDERSTOOD for what is none."""
        if len(command) <= LONGEST_COMMAND:
            for form, method in COMMANDS:
                if found := form.fullmatch(command):
                    act: Callable[..., str] = getattr(self, method)
                    return act(*found.groups())
        return NOT_UNDERSTOOD

    # -- contacts

    def find_contact(self, person: str) -> str:
        return self._find("select phone from contacts where person = ?", int(person))

    def set_contact(self, person: str, phone: str) -> str:
        return self._change("insert or replace into contacts values (?, ?)", int(person), int(phone))

    def delete_contact(self, person: str) -> str:
        return self._change("delete from contacts where person = ?", int(person))

    # -- wallet

    def balance(self) -> str:
        return self._find("select balance from wallet")

    def pay(self, phone: str, amount: str) -> str:
        known = self._find("select count(*) from contacts where phone = ?", int(phone)) != "0"
        if not known or int(self.balance()) < int(amount):
            return FOUND_NOTHING
        self._change("insert into payments (phone, amount) values (?, ?)", int(phone), int(amount))
        return self._change("update wallet set balance = balance - ?", int(amount))

    # -- notes

    def read_note(self, number: str) -> str:
        return self._find("select content from notes where number = ?", int(number))

    def write_note(self, number: str, content: str) -> str:
        return self._change("insert or replace into notes values (?, ?)", int(number), content)

    def delete_note(self, number: str) -> str:
        return self._change("delete from notes where number = ?", int(number))

    # -- calendar

    def find_event(self, hour: str) -> str:
        return self._find("select person from events where hour = ?", int(hour))

    def book(self, hour: str, person: str) -> str:
        return self._change("insert or ignore into events values (?, ?)", int(hour), int(person))

    def cancel(self, hour: str) -> str:
        return self._change("delete from events where hour = ?", int(hour))

    def _find(self, query: str, *arguments: object) -> str:
        row = self._database.execute(query, arguments).fetchone()
        return FOUND_NOTHING if row is None else str(row[0])

    def _change(self, statement: str, *arguments: object) -> str:
        return DONE if self._database.execute(statement, arguments).rowcount > 0 else FOUND_NOTHING
