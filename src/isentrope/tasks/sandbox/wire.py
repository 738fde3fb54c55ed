"""What judge and guest say to each other: plain data as lines of JSON. Needs the standard library alone."""

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any

MAX_MESSAGE = 8_000_000  # bytes; a longer answer is no answer to a test
SAFE_INTEGER = 10**15  # larger ones travel as hexadecimal: decimal conversion of long integers is slow, and limited
CHUNK = 65_536

Handle = Callable[[Any], Any]


class WireError(Exception):
    """A message that cannot be sent, or that did not arrive whole."""


def encode(value: Any, handle: Handle) -> Any:
    """A value as JSON can hold it, told apart by exact type; whatever is no plain data goes through `handle`.

    None, bool, str and float stand for themselves, as do integers below 1e15; other values become [tag, content]. Of
    the subclasses, those of dict that compare as a dict does (Counter, defaultdict, OrderedDict) count as dict: any
    other subclass may compare as it likes, and a test must not be asked to trust it.
    handle: returns what stands for an object that is no plain data, or raises.

    >>> encode((1, {"a": [2.5, None]}), repr)
    ['tuple', [1, ['dict', [['a', ['list', [2.5, None]]]]]]]
    """
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if abs(value) < SAFE_INTEGER else ["int", hex(value)]
    if kind is complex:
        return ["complex", [value.real, value.imag]]
    if kind in (bytes, bytearray):
        return ["bytes", value.hex()]
    if kind in (list, tuple, set, frozenset):
        return [kind.__name__, [encode(member, handle) for member in value]]
    if kind is dict or (isinstance(value, dict) and kind.__module__ == "collections"):
        return ["dict", [[encode(key, handle), encode(member, handle)] for key, member in dict.items(value)]]
    return ["handle", handle(value)]


def decode(message: Any, handle: Handle) -> Any:
    """The inverse of `encode`; `handle` gets what the other side's `handle` returned.

    >>> decode(encode({(1, 2): {3}, "n": 10**20}, repr), repr)
    {(1, 2): {3}, 'n': 100000000000000000000}
    """
    if not isinstance(message, list):
        return message
    tag, content = message
    if tag == "int":
        return int(content, 16)
    if tag == "complex":
        return complex(*content)
    if tag == "bytes":
        return bytes.fromhex(content)
    if tag == "dict":
        return {decode(key, handle): decode(member, handle) for key, member in content}
    if tag == "handle":
        return handle(content)
    makers: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    return makers[tag](decode(member, handle) for member in content)


def send(descriptor: int, message: Any) -> None:
    """Write one message. Raises WireError if the other side is gone or the message is too long."""
    data = json.dumps(message).encode() + b"\n"
    if len(data) > MAX_MESSAGE:
        raise WireError(f"a message of {len(data):,} bytes is longer than {MAX_MESSAGE:,}")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        raise WireError("the other side is gone") from error


class Receiver:
    """Reads messages from a descriptor, at most until a moment of the monotonic clock."""

    def __init__(self, descriptor: int, deadline: float | None = None) -> None:
        self.descriptor = descriptor
        self.deadline = deadline
        self.rest = b""

    def receive(self) -> Any:
        """The next message. Raises WireError at the end of the stream, TimeoutError at the deadline."""
        parts, length = [self.rest], len(self.rest)
        while b"\n" not in parts[-1]:
            parts.append(self._more())
            length += len(parts[-1])
            if length > MAX_MESSAGE:
                raise WireError(f"an answer is longer than {MAX_MESSAGE:,} bytes")
        line, _, self.rest = b"".join(parts).partition(b"\n")
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise WireError("a message is no JSON") from error

    def _more(self) -> bytes:
        left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        if not select.select([self.descriptor], [], [], left)[0]:
            raise TimeoutError
        data = os.read(self.descriptor, CHUNK)
        if not data:
            raise WireError("the other side is gone")
        return data
