"""Our own run folder (`isentrope.record`): metrics, recipe, token dumps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isentrope import presets, record, spec
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.parsing import toml_table
from isentrope.readers import _keys, _text
from isentrope.readers._parquet import ParquetTokens
from isentrope.record import RunFolder
from isentrope.run import Facts, Run, curves
from isentrope.token_dump import TOKEN_COLUMNS

MAX_RECIPE_BYTES = 2**20


def is_run_folder(path: Path) -> bool:
    """Whether `path` is a folder that `isentrope train` wrote to."""
    folder = RunFolder(path)
    return folder.metrics.is_file() and folder.recipe.is_file()


def read(path: Path, given: Mapping[str, str]) -> Run:
    """The run of a folder. Its objective is taken as data: no code that a recipe names is run."""
    folder = RunFolder(path)
    rows = ((line["step"], _text.numbers(line)) for line in record.iter_metrics(folder.metrics))
    logged = curves(rows, str(folder.metrics))
    chosen = _keys.plan(logged, "isentrope", given)
    tokens = tuple(sorted(folder.tokens.glob("step-*.parquet")))
    return Run(
        name=path.name or str(path),
        engine="isentrope",
        series={ours: logged[name] for name, ours in chosen.items() if name in logged},
        facts=_facts(folder) | Facts(entropy_kind="exact"),
        tokens=ParquetTokens(tokens, {name: name for name in TOKEN_COLUMNS}) if tokens else None,
        sources=("metrics.jsonl", "recipe.toml", *([f"tokens/ ({len(tokens)} files)"] if tokens else [])),
    )


def _facts(folder: RunFolder) -> Facts:
    table = _recipe(folder.recipe)
    found = table.get("trainer")
    trainer = found if isinstance(found, dict) else {}
    parts = [_whole(trainer.get(name, 1)) for name in ("minibatches", "passes")]
    updates = parts[0] * parts[1] if parts[0] and parts[1] else None
    group_size, temperature = _whole(trainer.get("group_size")), trainer.get("temperature")
    objective = _objective(table.get("objective"))
    known = Facts(
        vocabulary=_vocabulary(folder),
        updates_per_rollout=updates,
        temperature=temperature if isinstance(temperature, int | float) else None,
        max_length=_whole(trainer.get("max_completion_length")),
        group_size=group_size,
        objective=_words(table.get("objective")),
        entropy_coef=_entropy_coef(table.get("objective")),
    )
    if objective is None:
        return known
    inert = objective.inert(updates or 1, group_size or 2)
    return known | Facts(inert=tuple(sentence for sentence in inert if not _is_plain_clip(objective, sentence)))


def _whole(value: Any) -> int | None:
    """A number of something, of a recipe that anybody may have written; None for anything else."""
    return value if type(value) is int and value > 0 else None


def _is_plain_clip(objective: Objective, sentence: str) -> bool:
    """Whether a sentence is on PPO's clip with plain numbers: on policy it is there for nothing, and does no harm."""
    clip = objective.surrogate
    return sentence.startswith("surrogate: PPOClip") and all(isinstance(x, float | int) for x in (clip.low, clip.high))


def _recipe(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_RECIPE_BYTES:
            raise IsentropeError(f"{path} has more than {MAX_RECIPE_BYTES} bytes; this is no recipe")
        table = toml_table(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise IsentropeError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise IsentropeError(f"{path} is not TOML: {error}") from error
    if not isinstance(table.get("trainer", {}), dict):
        raise IsentropeError(f"{path}: [trainer] is no table")
    return table


def _objective(table: Any) -> Objective | None:
    """The objective where every rule of it is one of ours; None where it names code or does not load."""
    if isinstance(table, str):
        return getattr(presets, table) if table in presets.names() else None
    known = spec.rule_names()
    if not isinstance(table, dict) or any(name not in known for name in _rules(table)):
        return None
    try:
        return spec.load(table)
    except (IsentropeError, ValueError, TypeError):
        return None  # a recipe of another version; its curves can be read all the same


def _rules(value: Any) -> Iterator[str]:
    """Every rule that a specification names; whatever else could name code counts as an unknown rule."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ([str(inner)] if key in ("rule", "preset") else _rules(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from _rules(inner)
    elif isinstance(value, str) and ":" in value:
        yield value


def _words(table: Any) -> str | None:
    """The rules of an objective in words."""
    return ", ".join(_rules(table)) or None if isinstance(table, dict) else table


def _entropy_coef(table: Any) -> float | None:
    """The coefficient of an entropy bonus: its own, or the start of its controller; 0.0 without a bonus."""
    if not isinstance(table, dict):
        return None
    penalties = table.get("penalties", [])
    bonuses = [p for p in penalties if isinstance(p, dict) and p.get("rule") == "EntropyBonus"]
    coefs = [b.get("coef", 0.0) for b in bonuses]
    found = [c.get("high", 0.0) if isinstance(c, dict) else c for c in coefs]
    return max((float(c) for c in found if isinstance(c, int | float)), default=0.0)


def _vocabulary(folder: RunFolder) -> int | None:
    """The vocabulary of the last checkpoint's model."""
    last = folder.last_checkpoint()
    path = last / "config.json" if last else None
    if path is None or not path.is_file():
        return None
    config = record.read_json(path)
    size = config.get("vocab_size") if isinstance(config, dict) else None
    return size if isinstance(size, int) and size > 0 else None
