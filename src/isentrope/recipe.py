"""Recipes: what a training run does, as TOML that is checked word for word.

A recipe has the sections below; every key has a default, so the shortest recipe is an empty file. Keys that do not
exist are refused with the nearest one that does. `load` reads a file (or one of the recipes that come with the
package, by name), applies `--set` assignments, and returns a frozen `Recipe`; `Recipe.to_toml` writes it with every
default spelled out, and that text reads back as the same recipe.

    seed = 0
    engine = "trl"               # trl: one machine; verl: a Ray cluster, or with laptop = true a rehearsal of it on
                                 # CPU; tabular: softmax policies over small problems, all of it exact
    objective = "ce_gppo"        # a preset, file.py:name, or a table: [objective] preset = "ce_gppo", then what differs

    [model]
    name = "embedded"            # embedded, smollm2, a folder, or an id that is in the hub cache
    [model.lora]                 # rank = 16 trains adapters of that rank in place of the weights

    [[task]]
    name = "countdown"

    [curriculum]                 # by = "pass_rate" prefers problems that are solved now and then
    [warmup]                     # supervised updates on the tasks' references first
    [[stage]]                    # tasks one after another: which, and for how many steps; none trains the whole mix

    [trainer]
    steps = 100

    [evaluation]
    [output]
    [trl]                        # any other field of trl.GRPOConfig, by its own name
    [verl]                       # any other key of verl's configuration, by its own dotted name
    [tabular]                    # the shape of the tabular policy: see isentrope.engines.tabular_table

A recipe may hold all of the last three; only the table of the engine that runs is read, and checked.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from isentrope import stages
from isentrope.assignments import assign
from isentrope.assignments import parse_assignment as parse_assignment
from isentrope.complaints import sentence
from isentrope.complaints import suggestion as suggestion
from isentrope.errors import IsentropeError
from isentrope.parsing import toml_table

Positive = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
DEFAULT_TIME_LIMIT = 600.0  # seconds
Guard = Literal["float32_logp", "fsdp2_output", "sampler", "old_logp"]  # those of isentrope.engines.trl_guards
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# Modules that check the table of an engine's own options; imported when such a table is not empty.
ENGINE_TABLES = {
    "trl": "isentrope.engines.trl_table",
    "verl": "isentrope.engines.verl_table",
    "tabular": "isentrope.engines.tabular_table",
}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Lora(_Section):
    """Low-rank adapters that are trained in place of the weights; `rank` 0 trains the weights themselves.

    Each of the `targets` ("all-linear", or names of modules) gets two matrices of that rank, whose product is scaled by
    alpha / rank. Checkpoints hold the adapters alone. There is no dropout: it would move ratios by itself.
    """

    rank: Natural = 0
    alpha: Positive = 32
    targets: str | list[str] = "all-linear"


class Model(_Section):
    """The policy: embedded, smollm2, a folder of a saved transformers model, or a hub id; `dtype` of its weights."""

    name: str = "embedded"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    lora: Lora = Lora()


class Task(_Section):
    """One task of the mix: a built-in name or file.py:name.

    `weight` is its share of the training prompts, relative to the other tasks' weights; `options` are fields of the
    task.
    """

    name: str
    weight: PositiveFloat = 1.0
    options: dict[str, Any] = {}


class Trainer(_Section):
    """The loop.

    A rollout batch is `prompts` times `group_size` completions. It is cut into `minibatches` equal parts, each of which
    makes one optimizer step, and gone through `passes` times: `minibatches * passes` updates per rollout batch.
    `steps` counts optimizer steps. `problems` are drawn for training, once; a longer run goes through them again.
    `micro_batch` is how many completions one forward pass takes, over all processes; 0 takes a whole minibatch.
    `temperature` is that of the rollouts. `max_grad_norm` 0 does not clip. `threads` 0 leaves torch's own number.
    `sampler`: "shared_prefill" reads a prompt once for its group, "transformers" is TRL's way, "auto" the first where
    `[trl]` allows it. `order` "shuffled" goes through all problems in random order; "stratified" keeps the weights of
    the tasks in every rollout batch, as nearly as integers allow. `reward_time_limit`: seconds that the rewards of a
    rollout batch may take before the run stops with the name of what hangs; 0 is no limit. `without_guards` names
    checks of the engine TRL to switch off, see `isentrope.engines.trl_guards`.
    """

    steps: Positive = 100
    problems: Positive = 4096
    prompts: Positive = 16
    group_size: Annotated[int, Field(ge=2)] = 8
    minibatches: Positive = 4
    passes: Positive = 1
    micro_batch: Natural = 0
    learning_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    lr_schedule: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant"
    warmup_steps: Natural = 0
    max_grad_norm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    max_completion_length: Positive = 256
    temperature: PositiveFloat = 1.0
    threads: Natural = 0
    sampler: Literal["auto", "shared_prefill", "transformers"] = "auto"
    reward_time_limit: Annotated[float, Field(ge=0, allow_inf_nan=False)] = DEFAULT_TIME_LIMIT
    order: Literal["shuffled", "stratified"] = "shuffled"
    without_guards: list[Guard] = []

    @property
    def rows(self) -> int:
        """Completions in a rollout batch."""
        return self.prompts * self.group_size

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer steps on one rollout batch."""
        return self.minibatches * self.passes

    @property
    def micro_rows(self) -> int:
        """Completions in one micro-batch, over all processes."""
        return self.micro_batch or self.rows // self.minibatches

    @model_validator(mode="after")
    def _parts_are_whole(self) -> Trainer:
        if self.rows % self.minibatches:
            raise ValueError(
                f"prompts * group_size = {self.rows} completions do not divide into"
                f" minibatches = {self.minibatches} equal parts"
            )
        if self.problems < self.prompts:
            raise ValueError(f"problems = {self.problems} are too few for prompts = {self.prompts} of a rollout batch")
        if self.micro_batch and self.rows // self.minibatches % self.micro_batch:
            raise ValueError(
                f"micro_batch = {self.micro_batch} does not divide the {self.rows // self.minibatches} completions"
                " of a minibatch"
            )
        return self


class Curriculum(_Section):
    """Which problems are preferred: `by` "pass_rate" switches it on, and stratifies; see tasks.curriculum."""

    by: Literal["", "pass_rate"] = ""
    low: float = 0.25
    high: float = 0.75
    width: float = 0.25
    floor: float = 0.1
    keep: float = 0.5
    passed: float = 1.0


class Warmup(_Section):
    """Supervised updates on the tasks' references before the run: `steps` of `batch` rows each; 0 leaves it out.

    `problems` are drawn apart from the run's. `learning_rate` is the peak, reached after a tenth of the steps and
    lowered to 0 along a cosine.
    """

    steps: Natural = 0
    batch: Positive = 128
    problems: Positive = 4096
    learning_rate: PositiveFloat = 1e-3


class Stage(_Section):
    """A part of a run that trains on some of the recipe's tasks alone, `tasks` by name, for `steps` optimizer steps.

    Stages follow each other on one policy with one optimizer and one state of the controllers. In a stage every rollout
    batch keeps the weights of its tasks. All tasks are evaluated where one stage ends and the next begins.
    """

    tasks: Annotated[list[str], Field(min_length=1)]
    steps: Positive


class Evaluation(_Section):
    """Held-out problems before and after, of every task: `samples` completions each. `problems` 0 leaves it out.

    `temperature` is that of these samples, not of the rollouts. `batch` is how many completions are sampled at a time.
    """

    problems: Natural = 100
    samples: Positive = 8
    temperature: PositiveFloat = 1.0
    batch: Positive = 256


class Output(_Section):
    """The run folder. `dir` "" means runs/TIME-TASK-OBJECTIVE.

    `checkpoint_every` steps a checkpoint is saved (0: at the end only, and on Ctrl-C), of which `keep_checkpoints`
    stay. `tokens_every` steps the tokens are dumped, `diagnostics_every` steps it is measured who moves the entropy (0:
    never). `report_to` names TRL's metric services: tensorboard, trackio, wandb, ...
    """

    dir: str = ""
    checkpoint_every: Natural = 0
    keep_checkpoints: Positive = 2
    tokens_every: Natural = 0
    diagnostics_every: Natural = 0
    report_to: list[str] = []


class Recipe(_Section):
    """A whole run. `objective` is what `isentrope.spec.load` takes: a name, file.py:name, or a table.

    `engine` names who trains; `laptop` runs the cluster's job on the CPUs of this machine (verl alone).
    """

    seed: Natural = 0
    engine: Literal["trl", "verl", "tabular"] = "trl"
    laptop: bool = False
    objective: str | dict[str, Any] = "ce_gppo"
    model: Model = Model()
    task: Annotated[list[Task], Field(min_length=1)] = [Task(name="countdown")]
    curriculum: Curriculum = Curriculum()
    warmup: Warmup = Warmup()
    trainer: Trainer = Trainer()
    stage: list[Stage] = []
    evaluation: Evaluation = Evaluation()
    output: Output = Output()
    trl: dict[str, Any] = {}
    verl: dict[str, Any] = {}
    tabular: dict[str, Any] = {}

    @model_validator(mode="after")
    def _tasks_differ(self) -> Recipe:
        names = [task.name for task in self.task]
        if len(set(names)) < len(names):
            raise ValueError(f"each task may stand once in the mix, got {names}")
        return self

    @model_validator(mode="after")
    def _only_verl_rehearses(self) -> Recipe:
        if self.laptop and self.engine != "verl":
            raise ValueError(f"laptop = true rehearses a job of engine verl; the engine here is {self.engine}")
        return self

    @model_validator(mode="after")
    def _only_trl_chooses(self) -> Recipe:
        order = self.trainer.order != "shuffled"
        asked = {
            "[curriculum] by": self.curriculum.by,
            "[warmup] steps": self.warmup.steps,
            "[trainer] order": order,
            "[trainer] without_guards": self.trainer.without_guards,
            "[model.lora] rank": self.model.lora.rank,
        }
        found = next((name for name, value in asked.items() if value), None)
        if found and self.engine != "trl":
            raise ValueError(f"{found} needs engine trl; the engine here is {self.engine}")
        if self.warmup.steps and self.model.lora.rank:
            raise ValueError(
                "[warmup] changes the weights below the adapters of [model.lora], and no checkpoint would hold them;"
                " leave one of the two out, or save a model that was warmed up and name its folder"
            )
        return self

    @model_validator(mode="after")
    def _stages_fit(self) -> Recipe:
        if not self.stage:
            return self
        if self.engine == "verl":
            raise ValueError("[[stage]] needs engine trl or tabular; the engine here is verl")
        stages.check(
            [(stage.tasks, stage.steps) for stage in self.stage],
            [task.name for task in self.task],
            self.trainer.updates_per_rollout,
            self.trainer.steps,
        )
        return self

    def to_toml(self) -> str:
        """TOML with every default written out; `parse` reads it back as an equal recipe."""
        return tomli_w.dumps(self.model_dump())


def load(
    source: str = "default", assignments: Sequence[str] = (), overrides: Mapping[str, Any] | None = None
) -> Recipe:
    """The recipe in file `source` (or of that name in the package), changed by assignments, then by overrides.

    Overriding the objective comes first: it names a whole one, which assignments then refine.

    `assignments` are dotted TOML keys with TOML values ("trainer.steps=5", 'model.name="embedded"'; a bare word is a
    string); `overrides` are dotted keys with Python values; both are checked like the file. A path `file.py:name`
    under `objective` is relative to the recipe's folder. IsentropeError names the recipe, the key and what to do.
    """
    label, text, folder = _read(source)
    table = _parse_toml(text, f"recipe {label}")
    _anchor_objective(table, folder)
    return resolve(table, f"recipe {label}", assignments, overrides)


def resolve(
    table: dict[str, Any], label: str, assignments: Sequence[str] = (), overrides: Mapping[str, Any] | None = None
) -> Recipe:
    """The recipe that a table holds, changed as `load` says."""
    options = dict(overrides or {})
    if "objective" in options:
        table["objective"] = options.pop("objective")
    for assignment in assignments:
        key, value = parse_assignment(assignment)
        assign(table, key, value, f"--set {assignment}")
    for key, value in options.items():
        assign(table, key, value, key)
    return from_table(table, label)


def parse(text: str, label: str = "recipe") -> Recipe:
    """The recipe that a TOML text holds."""
    return from_table(_parse_toml(text, label), label)


def from_table(table: dict[str, Any], label: str) -> Recipe:
    """The recipe that a table holds, the table of its engine checked against that engine's options."""
    try:
        recipe = Recipe.model_validate(table)
    except ValidationError as error:
        raise IsentropeError(f"{label}: {sentence(error, Recipe, SECTIONS)}") from error
    if own := getattr(recipe, recipe.engine):
        importlib.import_module(ENGINE_TABLES[recipe.engine]).check_table(own, label)
    return recipe


def names() -> list[str]:
    """The recipes that come with the package."""
    files = resources.files("isentrope").joinpath("recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def _read(source: str) -> tuple[str, str, Path]:
    """Label, text and folder of a recipe; a name without a folder or suffix is one of the package's."""
    if source in names():
        return source, resources.files("isentrope").joinpath("recipes", f"{source}.toml").read_text("utf-8"), Path()
    try:
        return source, Path(source).read_text(encoding="utf-8"), Path(source).parent
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise IsentropeError(f"recipe {source}: {reason}; give a TOML file or one of {', '.join(names())}") from error


def _parse_toml(text: str, label: str) -> dict[str, Any]:
    try:
        return toml_table(text)
    except ValueError as error:
        raise IsentropeError(f"{label} is not TOML: {error}") from error


def _anchor_objective(table: dict[str, Any], folder: Path) -> None:
    """Make a `file.py:name` in a recipe relative to the recipe, wherever the command runs."""
    objective = table.get("objective")
    if isinstance(objective, str) and ".py:" in objective and not Path(objective).is_absolute():
        table["objective"] = str(folder / objective)


SECTIONS: dict[str, type[_Section]] = {
    "model": Model,
    "model.lora": Lora,
    "task": Task,
    "curriculum": Curriculum,
    "warmup": Warmup,
    "trainer": Trainer,
    "stage": Stage,
    "evaluation": Evaluation,
    "output": Output,
}
