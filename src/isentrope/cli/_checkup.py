"""What `isentrope doctor` looks at. Each check is a function that returns findings; none changes anything."""

import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from isentrope.cli._errors import EXTRA_OF
from isentrope.record import version_of

State = Literal["ok", "absent", "wrong"]

LEAST_DISK = 2.0  # GiB; a checkpoint of a model of some hundred million parameters
LEAST_MEMORY = 2.0  # GiB; the default run takes 1.2
HOSTS = ("trl", "verl", "transformers")  # named first
PROVIDES = {
    "cli": "the commands",
    "trl": "training on one machine: isentrope train",
    "verl": "training on a cluster: isentrope train --engine verl",
    "tasks": "verifiers of mathematics, instructions and generated puzzles",
    "report": "reports and pictures",
}


@dataclass(frozen=True)
class Finding:
    """part: what was looked at. state: "ok", "absent" (an optional part that is not here) or "wrong". what: what was
    found. do: what to do about it, "" for nothing.
    """

    part: str
    state: State
    what: str
    do: str = ""


def examine() -> list[Finding]:
    """All findings, in the order in which a run would meet them."""
    return [finding for check in CHECKS for finding in check()]


def python() -> Iterator[Finding]:
    """The interpreter; one that is too old does not get here."""
    yield Finding("python", "ok", f"{platform.python_version()}, {platform.platform(terse=True)}")


def torch() -> Iterator[Finding]:
    """torch and the devices it sees, each with the number formats that it computes in."""
    import torch

    yield Finding("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads on {os.cpu_count()} CPUs")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(number)
            formats = "bfloat16 and float16" if torch.cuda.is_bf16_supported() else "float16, no bfloat16"
            yield Finding("accelerator", "ok", f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {formats}")
    elif torch.backends.mps.is_available():
        yield Finding("accelerator", "ok", "Apple GPU (mps); nothing of ours was tested on one")
    elif shutil.which("nvidia-smi"):
        yield Finding("accelerator", "wrong", "the driver of a GPU is here, and torch does not see it", _CUDA)
    else:
        yield Finding("accelerator", "absent", "none: models of some million parameters train on a CPU")


_CUDA = "install a build of torch for this driver's CUDA: python -m torch.utils.collect_env says which is here"


def extras() -> Iterator[Finding]:
    """The packages of every extra, against the versions that this one was declared with."""
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:
        yield Finding("packages", "wrong", "versions cannot be compared without packaging", "pip install packaging")
        return
    wanted = [Requirement(text) for text in metadata.requires("isentrope") or []]
    for extra, what in PROVIDES.items():
        needs = [r for r in wanted if r.name != "isentrope" and r.marker and r.marker.evaluate({"extra": extra})]
        missing = [r.name for r in needs if not version_of(r.name)]
        other = [
            f"{r.name} {found} (needs {r.specifier})"
            for r in needs
            if (found := version_of(r.name)) and not r.specifier.contains(found, prereleases=True)
        ]
        yield _extra(extra, what, [r.name for r in needs], missing, other)


def _extra(extra: str, what: str, needs: list[str], missing: list[str], other: list[str]) -> Finding:
    install = f"pip install 'isentrope[{extra}]'"
    if extra == "verl":
        install += " in an environment of its own: its transformers are not TRL's"
    if extra == "verl" and "verl" in missing:  # what it needs is here in part, for other reasons
        return Finding(extra, "absent", f"{what}: no verl", install)
    if other:
        return Finding(extra, "wrong", f"{what}: {', '.join(other)}", install)
    if missing:
        return Finding(extra, "absent", f"{what}: no {', '.join(missing)}", install)
    shown = sorted(needs, key=lambda name: name not in HOSTS)[:4]
    return Finding(extra, "ok", f"{what}: {', '.join(f'{name} {version_of(name)}' for name in shown)}")


def plugin() -> Iterator[Finding]:
    """Whether verl will find us: it loads plug-ins by their entry points and is silent about one that fails."""
    if not importlib.util.find_spec("verl"):
        return
    if not [entry for entry in metadata.entry_points(group="verl.plugins") if entry.name == "isentrope"]:
        yield Finding("verl plug-in", "wrong", "verl will not find isentrope", "install isentrope again with pip")
        return
    try:
        importlib.import_module("isentrope.engines.verl")
    except Exception as error:
        yield Finding("verl plug-in", "wrong", f"{type(error).__name__}: {error}", "mend this: verl would not say it")
    else:
        yield Finding("verl plug-in", "ok", "verl loads it in every process")


def head() -> Iterator[Finding]:
    """The compiled head, which a CPU run uses."""
    import torch

    from isentrope._kernels.choose import native_fault

    fault = native_fault(torch.float32)
    if fault:
        yield Finding("compiled head", "absent", f"{fault}", "nothing must be done: PyTorch computes it, slower")
    else:
        yield Finding("compiled head", "ok", "log-probabilities without the token-by-vocabulary matrix, on the CPU")


def machine() -> Iterator[Finding]:
    """Disk, memory and what the environment says."""
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    state: State = "ok" if free >= LEAST_DISK else "wrong"
    advice = "" if state == "ok" else f"runs are written here; make room, {LEAST_DISK:g} GiB are little already"
    yield Finding("disk", state, f"{free:.1f} GiB free in {Path.cwd()}", advice)
    memory = _memory()
    if memory is not None:
        state = "ok" if memory >= LEAST_MEMORY else "wrong"
        yield Finding("memory", state, f"{memory:.1f} GiB available", "" if state == "ok" else "close other programs")
    offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
    yield Finding("model hub", "ok", "never asked: HF_HUB_OFFLINE is set" if offline else "asked for ids not cached")


def _memory() -> float | None:
    """GiB that a new process can have; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"MemAvailable: +(\d+) kB", text)
    return int(found[1]) / 2**20 if found else None


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (python, torch, extras, plugin, head, machine)

assert set(EXTRA_OF.values()) <= set(PROVIDES)
