"""Calls and files that a process gives up for good, without any privilege: seccomp and Landlock. Linux alone."""

import ctypes
import os
import platform
from collections.abc import Sequence

from isentrope.tasks.sandbox.system import SET_NO_NEW_PRIVILEGES, SET_SECCOMP, call, control, libc

# Numbers of system calls on x86-64 and on arm64 (None: not there), from Linux' unistd headers.
FORBIDDEN = {
    # another process or thread
    **{"clone": (56, 220), "fork": (57, None), "vfork": (58, None), "clone3": (435, 435)},
    # influence on other processes
    **{"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "ptrace": (101, 117)},
    **{"rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)},
    **{"pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438)},
    **{"process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "prlimit64": (302, 261)},
    # the network, io_uring included, which has sockets of its own
    **{"socket": (41, 198), "socketpair": (53, 199), "io_uring_setup": (425, 425)},
    # memory that the limit of the address space does not count
    **{"shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180)},
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "userfaultfd": (323, 282)},
    # a world of its own, where the limits of this one would not hold
    **{"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41)},
    **{"open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "mount_setattr": (442, 442)},
    # the kernel's inside
    **{"bpf": (321, 280), "perf_event_open": (298, 241)},
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
}
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH_*, column above
LOAD, JUMP_EQUAL, JUMP_NOT_LESS, RETURN = 0x20, 0x15, 0x35, 0x06  # of BPF, words
NUMBER, ARCHITECTURE, SECOND_ARGUMENT = 0, 4, 24  # offsets in struct seccomp_data, little-endian
FCNTL = (72, 25)
SIGNALLING = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: let the kernel send another process any signal
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050001  # SECCOMP_RET_*; a refused call fails with EPERM
X32 = 0x40000000  # the second numbering of calls on x86-64
FILTER_MODE = 2

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on all architectures
VERSION_QUERY, PATH_BENEATH = 1, 1
LEAST_VERSION = 3  # of Landlock (Linux 6.2); before it, files could be cut off
ALL_FILE_ACCESS = (1 << 15) - 1
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1, 2, 4, 8


class Instruction(ctypes.Structure):
    """`struct sock_filter`."""

    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32)]


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(Instruction))]


class Beneath(ctypes.Structure):
    """`struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("access", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


def forbid_calls() -> None:
    """From now on every call in FORBIDDEN fails with EPERM, here and in what this process executes.

    So does fcntl(2) where it would have the kernel signal another process.
    Raises OSError on an architecture whose numbers are not in the table, and where the kernel has no seccomp.
    """
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(f"there is no list of system calls for {machine}, only for {', '.join(ARCHITECTURES)}")
    lines = _lines(*ARCHITECTURES[machine])
    program = Program(len(lines), (Instruction * len(lines))(*(Instruction(*line) for line in lines)))
    control(SET_NO_NEW_PRIVILEGES, 1)
    control(SET_SECCOMP, FILTER_MODE, ctypes.byref(program))


def _lines(architecture: int, column: int) -> list[tuple[int, int, int, int]]:
    """The filter: in each line operation, lines to skip if it holds and if not, value."""
    lines = [(LOAD, 0, 0, ARCHITECTURE), (JUMP_EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    lines += [(JUMP_NOT_LESS, 0, 1, X32), (RETURN, 0, 0, REFUSE)]
    for numbers in FORBIDDEN.values():
        number = numbers[column]
        if number is not None:
            lines += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    lines += [(JUMP_EQUAL, 0, 1 + 2 * len(SIGNALLING), FCNTL[column]), (LOAD, 0, 0, SECOND_ARGUMENT)]
    for operation in SIGNALLING:
        lines += [(JUMP_EQUAL, 0, 1, operation), (RETURN, 0, 0, REFUSE)]
    return [*lines, (RETURN, 0, 0, ALLOW)]


def forbid_files(readable: Sequence[str]) -> None:
    """From now on no file can be written, and none but those in or below `readable` read. Raises OSError.

    Names and sizes of other files can still be asked for, not the contents of folders. /dev/null takes what is written.
    """
    query = (None, ctypes.c_size_t(0), VERSION_QUERY)
    version = call("landlock_create_ruleset", libc().syscall, CREATE_RULESET, *query)
    if version < LEAST_VERSION:
        raise OSError(f"the kernel has version {version} of Landlock; version {LEAST_VERSION} is needed (Linux 6.2)")
    handled = ctypes.c_uint64(ALL_FILE_ACCESS)
    arguments = (ctypes.byref(handled), ctypes.c_size_t(ctypes.sizeof(handled)), 0)
    rules = call("landlock_create_ruleset", libc().syscall, CREATE_RULESET, *arguments)
    for path in readable:
        if os.path.exists(path):
            _allow(rules, path, EXECUTE | READ_FILE | (READ_FOLDER if os.path.isdir(path) else 0))
    for device in ("/dev/zero", "/dev/random", "/dev/urandom"):
        _allow(rules, device, READ_FILE)
    _allow(rules, "/dev/null", READ_FILE | WRITE_FILE)
    control(SET_NO_NEW_PRIVILEGES, 1)
    call("landlock_restrict_self", libc().syscall, RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = Beneath(access, descriptor)
    call("landlock_add_rule", libc().syscall, ADD_RULE, rules, PATH_BENEATH, ctypes.byref(rule), 0)
    os.close(descriptor)
