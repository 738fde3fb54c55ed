"""Published problem sets: where they lie, in a folder or on the hub of the `datasets` library."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks.files import records, resolve


@dataclass(frozen=True)
class Source:
    """One split of a published set.

    files: names under which a folder may hold it, JSON lines. hub, config, split: the arguments of
    `datasets.load_dataset`.
    """

    files: tuple[str, ...]
    hub: str
    split: str
    config: str | None = None


def published(task: str, data_dir: str | Path | None, source: Source) -> tuple[dict[str, Any], ...]:
    """The records of a set: from `data_dir`, from the folder that ISENTROPE_DATA names, else from the hub.

    Raises IsentropeError where the folder holds none of the files, and where the hub cannot be reached.
    """
    folder = resolve(data_dir)
    if folder is None:
        return _from_hub(task, source)
    name = next((name for name in source.files if (folder / name).is_file()), None)
    if name is None:
        raise IsentropeError(
            f"task {task}: {folder} holds neither {' nor '.join(source.files)}; put it there, or unset data_dir and "
            f"ISENTROPE_DATA to load {source.hub} from the hub"
        )
    return records(task, folder, name, ())


@cache
def _from_hub(task: str, source: Source) -> tuple[dict[str, Any], ...]:
    advice = "set ISENTROPE_DATA or data_dir to a folder that holds " + " or ".join(source.files)
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise IsentropeError(
            f"task {task} loads {source.hub} with the package datasets; install it, or {advice}"
        ) from error
    try:
        return tuple(map(dict, load_dataset(source.hub, source.config, split=source.split)))
    except (OSError, ValueError, RuntimeError) as error:  # no connection, offline mode, no such set
        raise IsentropeError(f"task {task} cannot load {source.hub} from the hub ({error}); {advice}") from error
