"""What a recipe would run with engine verl: verl's whole configuration, the arithmetic, and what cannot be honoured."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from isentrope import models
from isentrope.cli._output import console, print_json
from isentrope.cli._plan import offline
from isentrope.cli._session import brief, load_objective
from isentrope.engines import verl_config
from isentrope.engines.verl_config import Batches, Layout
from isentrope.engines.verl_data import held_out_rows, is_plain, longest_prompt, mix_of, task_options, training_rows
from isentrope.engines.verl_run import command
from isentrope.engines.verl_table import check_version, flatten
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.recipe import Recipe
from isentrope.record import RunFolder, write_text
from isentrope.tasks import Task

LONGEST = "data.max_prompt_length"
UNMEASURED = "note       the tokenizer of {model} is not on this machine: data.max_prompt_length stays verl's 512"
PLACEHOLDER = "RUN"  # the folder's name in a plan that names none


@dataclass(frozen=True)
class Plan:
    """A recipe, understood. `config` is verl's whole configuration (OmegaConf); rows as in `verl_data`."""

    recipe: Recipe
    objective: Objective
    layout: Layout
    batches: Batches
    mix: list[tuple[Task, float]]
    training: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    settings: dict[str, Any]
    config: Any

    @cached_property
    def refusals(self) -> list[str]:
        """A sentence for everything that cannot be honoured."""
        from isentrope.engines.verl_options import refusals

        return refusals(self.config, self.objective)

    def refuse(self) -> None:
        """IsentropeError with all refusals, if there are any."""
        if self.refusals:
            raise IsentropeError("; ".join(self.refusals))

    def yaml(self) -> str:
        """verl's configuration as the job reads it."""
        from omegaconf import OmegaConf

        return str(OmegaConf.to_yaml(self.config))

    def introduction(self) -> list[str]:
        """What is about to happen, and what of it cannot have an effect, a line each."""
        recipe, loop = self.recipe, self.recipe.trainer
        where = "CPU rehearsal of verl" if recipe.laptop else "verl"
        named = f"{recipe.objective}: " if isinstance(recipe.objective, str) else ""
        unread = [f"note       [trl] is for engine trl and not read: {', '.join(recipe.trl)}"] if recipe.trl else []
        unmeasured = [] if LONGEST in self.settings else [UNMEASURED.format(model=recipe.model.name)]
        inert = self.objective.inert(loop.updates_per_rollout, loop.group_size)
        return [
            f"engine     {where} {check_version()}",
            f"model      {recipe.model.name}, {recipe.model.dtype}",
            f"tasks      {', '.join(f'{task.name} ({weight:g})' for task, weight in self.mix)}",
            f"objective  {named}{brief(self.objective)}",
            f"loop       {self.batches.describe()}; learning rate {loop.learning_rate:g}; seed {recipe.seed}",
            *unread,
            *unmeasured,
            *(f"warning    {sentence}" for sentence in inert),
        ]


def resolve(recipe: Recipe, path: Path | None, is_dry: bool = False) -> Plan:
    """Everything that follows from a recipe and the folder of its run. IsentropeError for what is wrong in it.

    is_dry: a model whose tokenizer is not on this machine is planned for all the same, its prompts unmeasured.
    """
    check_version()
    objective, mix, layout = load_objective(recipe.objective), mix_of(recipe), Layout(path or Path(PLACEHOLDER))
    sizes = verl_config.batches(recipe, flatten(recipe.verl))
    training, held_out, plain = training_rows(recipe, mix), held_out_rows(recipe, mix), is_plain(mix)
    model = _absolute(models.location(recipe.model.name))
    longest = _longest(model, [*training, *held_out], plain, is_dry)
    found = verl_config.settings(recipe, objective, layout, model=model, longest_prompt=longest, plain=plain)
    if options := task_options(recipe, mix):
        found["reward.custom_reward_function.reward_kwargs"] = {"task_options": options}
    return Plan(recipe, objective, layout, sizes, mix, training, held_out, found, verl_config.configuration(found))


def _absolute(model: str) -> str:
    """A folder by its whole path, since the job's processes work elsewhere; a hub id as it is."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def _longest(model: str, rows: Sequence[dict[str, Any]], plain: bool, is_dry: bool) -> int:
    """Tokens of the longest prompt, 0 if not known; IsentropeError where the model's tokenizer cannot be read."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        if is_dry:
            return 0
        raise IsentropeError(f"cannot read the tokenizer of model {model!r}: {str(error).splitlines()[0]}") from error
    return longest_prompt(tokenizer, rows, plain)


def plan(recipe: Recipe, out: Path | None, as_json: bool) -> None:
    """Print what would run. With `out` the configuration is written there as verl.yaml; nothing else is written.

    Raises IsentropeError for a recipe that cannot be honoured, after printing.
    """
    with offline():
        found = resolve(recipe, out, is_dry=True)
    if out is not None:
        RunFolder.create(out)
        write_text(found.layout.config, found.yaml())
    if as_json:
        print_json(_as_json(found))
    else:
        _print(found)
    found.refuse()


def _as_json(found: Plan) -> dict[str, Any]:
    from omegaconf import OmegaConf

    return {
        "engine": "verl",
        "command": command(found.layout),
        "batches": {name: getattr(found.batches, name) for name in found.batches.__dataclass_fields__},
        "settings": found.settings,
        "config": OmegaConf.to_container(found.config),
        "refusals": found.refusals,
    }


def _print(found: Plan) -> None:
    """The introduction, what departs from verl's defaults, the command, and the refusals."""
    screen = console()

    def say(text: str) -> None:
        screen.print(text, markup=False, highlight=False, soft_wrap=True)

    for line in found.introduction():
        say(line)
    say("\nverl's configuration, where it departs from verl's own defaults:")
    for key, value in sorted(found.settings.items()):
        text = "TOML text of the objective, see `isentrope show`" if key.endswith("policy_loss.objective") else value
        say(f"  {key} = {text}")
    where = found.layout.config if found.layout.config.is_file() else "not written; --out FOLDER writes it"
    say(f"\nthe whole of it: {where}")
    say(f"command: {' '.join(command(found.layout))}")
    for sentence in found.refusals:
        say(f"refused    {sentence}")
