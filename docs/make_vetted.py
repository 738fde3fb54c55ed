"""Check every data set of reasoning-gym, each in a process of its own, and write down which ones tasks may use.

python docs/make_vetted.py [NAME ...]      # some minutes; with names, only these are checked again

Writes src/isentrope/tasks/reasoning_gym.json, which the task reads, and the tables of docs/reasoning-gym.md.
"""

import json
import multiprocessing
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

from isentrope.tasks.reasoning_gym import library
from isentrope.tasks.reasoning_gym_checks import draw, faults

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "src" / "isentrope" / "tasks" / "reasoning_gym.json"
PAGE = ROOT / "docs" / "reasoning-gym.md"
MARK = "<!-- written by docs/make_vetted.py from here on -->"
SECONDS = 120  # for all checks of one data set
MEMORY = 8 * 2**30  # bytes of address space
DRAWN = "--drawn"  # as a command line: print what each data set draws
# What a reader of the package finds and no check does.
KNOWN = {"composite": "it mixes other data sets, which a mix of tasks does here"}


def names() -> list[str]:
    """All data sets of the package."""
    library()
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - set(KNOWN))


def work(name: str, only_draw: bool, answers: Connection) -> None:
    """What the process of one data set does."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the process ends with it
    try:
        found = [] if only_draw else faults(name)
        answers.send((found, draw(name, 10) if not found else []))
    except MemoryError:
        answers.send(([f"the checks take more than {MEMORY >> 30} GiB"], []))


def run(name: str, only_draw: bool) -> tuple[list[str], list[list[str]]]:
    """Faults of a data set and what it draws, found in a fork of this process that may hang or die."""
    ours, theirs = multiprocessing.get_context("fork").Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=work, args=(name, only_draw, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(SECONDS):
            return [f"the checks take more than {SECONDS} s, or never end"], []
        result: tuple[list[str], list[list[str]]] = ours.recv()
        return result
    except EOFError:
        return ["its process dies in the checks"], []
    finally:
        process.kill()
        process.join()


def elsewhere(chosen: list[str]) -> dict[str, list[list[str]]]:
    """What the data sets draw in a process with another order of sets."""
    command = [sys.executable, __file__, DRAWN, *chosen]
    environment = os.environ | {"PYTHONHASHSEED": "2"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return found


def vet(chosen: list[str]) -> dict[str, list[str]]:
    """The faults of each data set."""
    found, drawn = {}, {}
    with ThreadPoolExecutor(2) as pool:
        for name, (wrong, problems) in zip(chosen, pool.map(partial(run, only_draw=False), chosen), strict=True):
            found[name], drawn[name] = wrong, problems
            print(f"{name}: {'; '.join(wrong) or 'passed'}", flush=True)
    again = elsewhere([name for name in chosen if not found[name]])
    for name in again:
        if again[name] != drawn[name]:
            found[name] = ["the same seed gives other problems in another process"]
            print(f"{name}: {found[name][0]}", flush=True)
    return found


def known() -> dict[str, list[str]]:
    """What was found before."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return {name: [] for name in data["vetted"]} | {name: [why] for name, why in data["excluded"].items()}


def write(found: dict[str, list[str]]) -> None:
    """The data of the task and the tables of the page."""
    vetted = sorted(name for name, wrong in found.items() if not wrong)
    excluded = {name: "; ".join(wrong) for name, wrong in sorted(found.items()) if wrong}
    data = {"version": version("reasoning-gym"), "vetted": vetted, "excluded": excluded}
    DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    table = "\n".join(f"| `{name}` | {reason} |" for name, reason in excluded.items())
    head = PAGE.read_text(encoding="utf-8").split(MARK)[0]
    text = f"""{head}{MARK}

## The list

reasoning-gym {data["version"]}: {len(vetted)} data sets passed, {len(excluded)} did not.

{", ".join(f"`{name}`" for name in vetted)}.

| left out | because |
| --- | --- |
{table}
"""
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    """Check the data sets that the command line names, or all and write the files."""
    if sys.argv[1:2] == [DRAWN]:
        print(json.dumps({name: run(name, only_draw=True)[1] for name in sys.argv[2:]}))
    elif os.environ.get("PYTHONHASHSEED") is None:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": "1"})
    else:
        chosen = sys.argv[1:] or names()
        kept = known() if sys.argv[1:] else {}
        write(kept | vet(chosen) | {name: [why] for name, why in KNOWN.items()})


if __name__ == "__main__":
    main()
