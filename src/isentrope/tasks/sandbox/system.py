"""How an interpreter of the sandbox starts, and system calls that Python has no name for."""

import ctypes
import os
from collections.abc import Callable
from functools import cache

FLAGS = ("-P", "-s", "-S", "-B", "-X", "utf8")  # no packages, no user folder, nothing written beside modules
# The judge's modules without the packages around them, whose imports take seconds and may not exist in a jail.
BOOT = """\
import importlib, sys, types
for name in ("isentrope", "isentrope.tasks", "isentrope.tasks.sandbox"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[1]]
importlib.import_module("isentrope.tasks.sandbox." + sys.argv[2]).main()
"""

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
