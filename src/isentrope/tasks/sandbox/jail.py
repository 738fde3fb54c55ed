"""Namespaces of one's own: no network, no other process, no file but Python's, read-only. Linux alone.

Needs either root with CAP_SYS_ADMIN, or a kernel that lets users make user namespaces; `mount_setattr` (Linux 5.12).
"""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from isentrope.tasks.sandbox.system import SET_DEATH_SIGNAL, SET_NO_NEW_PRIVILEGES, call, control, libc

NEW_MOUNTS, NEW_UTS, NEW_IPC = 0x00020000, 0x04000000, 0x08000000  # of unshare(2)
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
BIND, RECURSIVE, PRIVATE, NO_SETUID, NO_DEVICES = 4096, 16384, 1 << 18, 2, 4  # of mount(2)
DETACH = 2  # of umount2(2)
MOUNT_SETATTR = 442  # system call; the same number on all architectures
AT_CURRENT_FOLDER, AT_RECURSIVE = -100, 0x8000
ATTRIBUTE_READ_ONLY, ATTRIBUTE_NO_SETUID, ATTRIBUTE_NO_DEVICES = 1, 2, 4
CAPABILITY_VERSION = 0x20080522
KILL = 9
DEVICES = ("null", "zero", "random", "urandom")
INSIDE_ID = 1000  # the user inside; not 0, so that its programs have no capabilities
FIRST_OUTSIDE_ID, OUTSIDE_IDS = 20_000, 40_000  # root takes one of these, so that limits of processes are not shared
SANDBOX = "/sandbox"  # where the package's own files stand inside
WORK = "/tmp"  # the only folder that can be written


class Attributes(ctypes.Structure):
    """`struct mount_attr` of mount_setattr(2)."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace")]


def enter(folder: str, package: str, sources: Sequence[str], size: int) -> None:
    """Go on in a new world as its process 1, without privileges; the calling process stays outside and waits.

    folder: an empty one, to build the new root on. package: folder of this module, seen as /sandbox inside.
    sources: files and folders that exist inside under the same name, read-only; symbolic links are copied as such.
    size: bytes that may be written to /tmp, the current folder inside.
    When this returns, there is no network, no other process, no other file, and no capability. The process outside
    ends with the status of the one inside, which dies with it. Raises OSError naming the call that was refused.
    """
    is_root = os.geteuid() == 0
    outside = os.getpid()
    user, group = os.geteuid(), os.getegid()
    kinds = NEW_MOUNTS | NEW_UTS | NEW_IPC | NEW_PIDS | NEW_NETWORK
    call("unshare", libc().unshare, kinds if is_root else kinds | NEW_USER)
    if not is_root:
        _map_ids(user, group)
    child = os.fork()
    if child:
        _wait(child)
    _build_root(folder, package, sources, size)
    if is_root:
        _become(FIRST_OUTSIDE_ID + outside % OUTSIDE_IDS)
    drop_capabilities()
    control(SET_DEATH_SIGNAL, KILL)  # after the change of user, which clears it


def _map_ids(user: int, group: int) -> None:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{INSIDE_ID} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{INSIDE_ID} {group} 1")


def _wait(child: int) -> None:
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _become(identity: int) -> None:
    os.setgroups([])
    os.setresgid(identity, identity, identity)
    os.setresuid(identity, identity, identity)


def drop_capabilities() -> None:
    """Give up all capabilities, for good: a program executed by root gets none back either. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    call("capset", libc().capset, header, (ctypes.c_uint32 * 6)())
    control(SET_NO_NEW_PRIVILEGES, 1)


def _build_root(folder: str, package: str, sources: Sequence[str], size: int) -> None:
    _mount(None, "/", RECURSIVE | PRIVATE)
    _mount("tmpfs", folder, NO_SETUID, "size=1m,mode=755")
    for source in sources:
        _show(source, folder + source)
    _show(package, folder + SANDBOX)
    for device in DEVICES:
        _bind(f"/dev/{device}", f"{folder}/dev/{device}")
    os.makedirs(folder + WORK)
    _mount("tmpfs", folder + WORK, NO_SETUID | NO_DEVICES, f"size={size},nr_inodes=1000,mode=1777")
    os.chdir(folder)
    call("pivot_root", libc().pivot_root, b".", b".")
    call("umount2", libc().umount2, b".", DETACH)
    _set_attributes("/", ATTRIBUTE_READ_ONLY, 0)
    os.chdir(WORK)


def _show(source: str, place: str) -> None:
    """Make a file or folder visible, read-only; nothing where there is none."""
    if os.path.islink(source):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(os.readlink(source), place)
    elif os.path.exists(source):
        _bind(source, place)
        _set_attributes(place, ATTRIBUTE_READ_ONLY | ATTRIBUTE_NO_SETUID | ATTRIBUTE_NO_DEVICES, AT_RECURSIVE)


def _bind(source: str, place: str) -> None:
    os.makedirs(place if os.path.isdir(source) else os.path.dirname(place), exist_ok=True)
    if not os.path.isdir(source):
        Path(place).touch()
    _mount(source, place, BIND | RECURSIVE)


def _mount(source: str | None, place: str, flags: int, options: str = "") -> None:
    kind = b"tmpfs" if source == "tmpfs" else None
    name = None if source is None else os.fsencode(source)
    data = options.encode() or None
    call(f"mount {place}", libc().mount, name, os.fsencode(place), kind, ctypes.c_ulong(flags), data)


def _set_attributes(place: str, attributes: int, flags: int) -> None:
    wanted = Attributes(set=attributes)
    arguments = (os.fsencode(place), flags, ctypes.byref(wanted), ctypes.c_size_t(ctypes.sizeof(wanted)))
    call(f"mount_setattr {place}", libc().syscall, MOUNT_SETATTR, AT_CURRENT_FOLDER, *arguments)
