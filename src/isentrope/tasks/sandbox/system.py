"""System calls that Python has no name for, with their errors. Linux; standard library alone."""

import ctypes
import os
from collections.abc import Callable
from functools import cache

SET_DEATH_SIGNAL, SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVILEGES = 1, 4, 22, 38  # of prctl(2)


@cache
def libc() -> ctypes.CDLL:
    """The C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def call(what: str, function: Callable[..., int], *arguments: object) -> int:
    """The result of a C function. Raises OSError, naming `what`, where it is negative."""
    result = function(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def control(option: int, value: int, pointer: object = 0) -> None:
    """prctl(option, value, pointer). Raises OSError."""
    call(f"prctl {option}", libc().prctl, option, ctypes.c_ulong(value), pointer, 0, 0)
