"""The process that runs a program nobody trusts. It knows neither the tests nor what they expect."""

import os
import sys
from collections.abc import Callable
from typing import Any

from isentrope.tasks.sandbox.wire import Receiver, WireError, decode, encode, send

MAX_REASON = 300  # characters of an error that reach the judge
MEASURES: dict[str, Callable[[Any], Any]] = {"list": list, "length": len, "truth": bool}


def serve(requests: int, replies: int) -> None:
    """Run the program of the first message, then evaluate what the judge asks for, until it hangs up.

    A request is [operation, target, content], see `World.answer`. The reply is ["value", encoded] or ["error", text].
    Whatever the program does to this process, it can change nothing but the values that are sent from here.
    """
    receiver, world = Receiver(requests), World()
    send(replies, "ready")
    while True:
        try:
            message = receiver.receive()
        except WireError:
            os._exit(0)
        try:
            reply = ["value", encode(world.answer(*message), world.keep)]
        except BaseException as error:  # a program's SystemExit is its failure, not the end of this loop
            reply = ["error", _text(error)]
        send(replies, reply)


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:MAX_REASON].removesuffix(": ")
    except BaseException:
        return type(error).__name__  # its text is the program's code, and that failed too


class World:
    """The names of the program, and the objects that the judge knows by number only."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "program", "__builtins__": __builtins__}
        self.kept: list[Any] = []

    def keep(self, value: Any) -> int:
        """The number under which an object stays here."""
        self.kept.append(value)
        return len(self.kept) - 1

    def answer(self, operation: str, target: Any, content: Any) -> Any:
        """The value of one request.

        operation: "program" runs the text `target`; the others ask about `target`, a name of the program or the number
        of a kept object: "call" with the arguments `content`, "list" of its members, "length", "truth", or
        "attribute" named `content`.
        """
        if operation == "program":
            exec(compile(target, "program.py", "exec", dont_inherit=True), self.names)
            return None
        subject = self._subject(target)
        if operation == "call":
            positional, named = decode(content, lambda number: self.kept[number])
            return subject(*positional, **named)
        if operation == "attribute":
            return getattr(subject, content)
        return MEASURES[operation](subject)

    def _subject(self, target: Any) -> Any:
        if isinstance(target, str):
            if target not in self.names:
                raise NameError(f"the program defines no {target}")
            return self.names[target]
        return self.kept[target]


def main() -> None:
    """Serve on the two descriptors that the command line names last."""
    serve(int(sys.argv[-2]), int(sys.argv[-1]))
