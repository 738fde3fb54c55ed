"""A configuration of TRL's command line, `trl grpo --config FILE`, as a recipe.

Such a file is one flat table, YAML or TOML, of the fields of TRL's `GRPOScriptArguments`, `GRPOConfig`, `ModelConfig`
and `DatasetMixtureConfig`. What it does not say has TRL's default, not the recipe's, so that one file means one run.
Every key ends in one of four ways:

* it becomes a key of the recipe: model, data, loop, output;
* it is part of the objective: `loss_type`, `epsilon`, `beta` and their like are translated, unless the file (or the
  command line) names an `objective`, which then replaces them;
* it goes on to TRL under `[trl]`, by its own name;
* it is refused by its name, with what to do instead.

Departures: rewards and data are a task's, so `dataset_name` names one of our tasks, or with `accuracy_reward` a set of
problems for the task `math`; the last two checkpoints are kept where TRL keeps all; formats are those of the table
`[trl]`, so bf16 is off unless the file says otherwise. Read from trl.scripts.grpo and TrlParser of TRL 1.16.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from isentrope.assignments import parse_assignment
from isentrope.engines.trl_config_objective import KEYS as OBJECTIVE_KEYS
from isentrope.engines.trl_config_objective import objective_of
from isentrope.engines.trl_options import HONOURED, REFUSED
from isentrope.engines.trl_table import FIXED_BY_COMMAND, OWNED_BY_RECIPE
from isentrope.errors import IsentropeError
from isentrope.parsing import toml_table
from isentrope.recipe import Recipe, Trainer, suggestion

Table = dict[str, Any]

YAML = (".yaml", ".yml")
MAX_DEPTH = 5  # of any key of TRL's; chat templates and kernels take tables of tables
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")  # which YAML 1.1 takes for a text where it has no dot or no sign

# TRL's defaults of what a recipe sets, where the recipe's own differ.
DEFAULTS: Table = {
    "seed": 42,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "num_generations": 8,
    "num_iterations": 1,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 512,
    "save_strategy": "steps",
    "save_steps": 500,
}

# Keys that are taken as they are, under a name of the recipe.
RENAMED = {
    "seed": "seed",
    "model_name_or_path": "model.name",
    "learning_rate": "trainer.learning_rate",
    "max_grad_norm": "trainer.max_grad_norm",
    "max_steps": "trainer.steps",
    "num_generations": "trainer.group_size",
    "num_iterations": "trainer.passes",
    "max_completion_length": "trainer.max_completion_length",
    "temperature": "trainer.temperature",
    "output_dir": "output.dir",
    "save_total_limit": "output.keep_checkpoints",
}

# Keys that other functions of this module read.
_READ = (
    "dataset_name dataset_config dataset_train_split reward_funcs dtype lr_scheduler_type warmup_steps report_to"
    " save_strategy save_steps per_device_train_batch_size gradient_accumulation_steps steps_per_generation"
    " generation_batch_size model_init_kwargs use_peft lora_r lora_alpha lora_dropout lora_target_modules"
)

_WHOLE = (
    "max_steps num_generations per_device_train_batch_size gradient_accumulation_steps steps_per_generation"
    " generation_batch_size"
)
READ, WHOLE = _READ.split(), _WHOLE.split()

# Keys that nothing here can honour: the values that ask for nothing, and what to do about any other.
_LORA = "a recipe's adapters are plain ones, see [model.lora]; give ObjectiveTrainer a peft_config in Python"
_MIX = "name each set as a task: [[task]] in a recipe, with its weight"
_LAUNCH = "start the command with accelerate launch, and say it there"
_QUANTISED = "bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage"
_HUB_KEYS = "hub_model_id hub_token hub_strategy hub_private_repo hub_revision"
_HUB = "upload the folder checkpoints/ of the run afterwards"
_EVALUATE = "the run measures held-out problems before and after: --set evaluation.problems=N, or isentrope eval"
NOT_HONOURED: dict[str, tuple[tuple[Any, ...], str]] = {
    "env": ((), "export the variables in the shell that starts the command"),
    "datasets": ((None,), _MIX),
    "streaming": ((False,), "problems are drawn from whole sets; leave it out"),
    "test_split_size": ((None,), "one problem in five is held out; leave it out"),
    "dataset_streaming": ((False,), "problems are drawn from whole sets; leave it out"),
    "dataset_test_split": ((), "a set of one's own holds out one problem in five; leave it out"),
    "ignore_bias_buffers": ((False,), "TRL's own script for GRPO does not read it; leave it out"),
    "reward_model_name_or_path": ((None,), "write a task, file.py:name, whose score asks the reward model"),
    "model_revision": (("main", None), "give the folder of that revision as model_name_or_path"),
    "attn_implementation": (
        (None,),
        "models are loaded with the implementation that transformers prefers; leave it out",
    ),
    "load_in_8bit": ((False,), _LORA),
    "load_in_4bit": ((False,), _LORA),
    "lora_target_parameters": ((None,), _LORA),
    "lora_modules_to_save": ((None,), _LORA),
    "lora_task_type": (("CAUSAL_LM",), _LORA),
    "use_rslora": ((False,), _LORA),
    "use_dora": ((False,), _LORA),
    **dict.fromkeys(_QUANTISED.split(), ((), _LORA)),
    "num_train_epochs": ((), "a recipe counts updates: set max_steps"),
    "push_to_hub": ((False,), _HUB),
    **dict.fromkeys(_HUB_KEYS.split(), ((None,), _HUB)),
    "hub_always_push": ((False,), _HUB),
    "eval_strategy": (("no", False), _EVALUATE),
    "eval_steps": ((None,), _EVALUATE),
    "eval_on_start": ((False,), _EVALUATE),
    "do_eval": ((False,), _EVALUATE),
    "per_device_eval_batch_size": ((), _EVALUATE),
    "num_generations_eval": ((None,), _EVALUATE),
    "load_best_model_at_end": ((False,), _EVALUATE),
    "accelerate_config": ((), _LAUNCH),
    "num_processes": ((), _LAUNCH),
    "resume_from_checkpoint": ((None, False), "resume with isentrope train --resume --out FOLDER"),
    "run_name": ((None,), "the run folder names the run: --out runs/NAME"),
    "logging_steps": ((1,), "every update is recorded; leave it out"),
    "logging_strategy": (("steps",), "every update is recorded; leave it out"),
    "logging_first_step": ((), "every update is recorded; leave it out"),
    "disable_tqdm": ((True,), "the command has a display of its own; leave it out"),
}
assert set(FIXED_BY_COMMAND) <= set(NOT_HONOURED)
assert set(OWNED_BY_RECIPE) <= {*RENAMED, *READ, *NOT_HONOURED}

KNOWN = frozenset((*RENAMED, *READ, *NOT_HONOURED, *OBJECTIVE_KEYS, *HONOURED, *REFUSED, "objective"))


def is_trl(path: Path, table: Mapping[str, Any]) -> bool:
    """Whether a file is of TRL's kind: YAML, or TOML with a key that TRL knows and a recipe does not."""
    return path.suffix.lower() in YAML or bool((KNOWN - set(Recipe.model_fields)) & set(table))


def read(path: Path) -> Table:
    """The table that a YAML or TOML file holds. IsentropeError where it cannot be read or is no table."""
    try:
        text = path.read_text(encoding="utf-8")
        table = _numbers(_yaml(text) if path.suffix.lower() in YAML else toml_table(text))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise IsentropeError(f"--config {path}: {reason}; give a recipe (TOML) or a configuration of TRL") from error
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise IsentropeError(f"--config {path} holds no table of keys and values; give KEY: VALUE on each line")
    return table


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        place = f" in line {where.line + 1}" if where else ""
        raise ValueError(f"it is not YAML{place}: {getattr(error, 'problem', None) or 'nested too deeply'}") from error


def _numbers(value: Any, depth: int = 0) -> Any:
    """A text such as 1e-6 as the number that its author meant. ValueError where lists hold lists, and so on, too deep.

    >>> _numbers({"adam_epsilon": "1e-8", "name": "1e"})
    {'adam_epsilon': 1e-08, 'name': '1e'}
    """
    if depth > MAX_DEPTH:  # references of YAML can make a small file an endless table
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict):
        return {key: _numbers(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_numbers(inner, depth + 1) for inner in value]
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def to_table(
    config: Mapping[str, Any], label: str, folder: Path = Path(), processes: int = 1, objective: str | None = None
) -> Table:
    """The table of a recipe that does what a configuration of TRL says.

    config: as `read` gives it. label: of the file, for errors. folder: of the file, to which an `objective` given as
    file.py:name is relative. processes: how many the run will have; TRL counts batches for each of them. objective:
    takes the place of all that the file says of one.
    Raises IsentropeError with the first key that is unknown or cannot be honoured, and what to do instead.
    """
    for key, value in config.items():
        _check(key, value, label)
    given = DEFAULTS | dict(config)
    _check_needed(given, label)
    table: Table = {}
    for key, place in RENAMED.items():
        if given.get(key) is not None:
            _put(table, place, given[key])
    parts = [part(given, label) for part in (_task, _dtype, _adapters, _schedule, _reports, _checkpoints)]
    for part in (*parts, _batches(given, label, processes)):
        for place, value in part.items():
            _put(table, place, value)
    table["objective"] = objective or _objective(config, label, folder)
    taken = {*RENAMED, *READ, *NOT_HONOURED, *OBJECTIVE_KEYS, *REFUSED, "objective"}
    if passed := {key: value for key, value in config.items() if key not in taken and value is not None}:
        table["trl"] = passed
    return table


def _put(table: Table, place: str, value: Any) -> None:
    section, _, key = place.rpartition(".")
    (table.setdefault(section, {}) if section else table)[key] = value


def _check(key: str, value: Any, label: str) -> None:
    if key not in KNOWN:
        near = suggestion(key, sorted(KNOWN)) or "; a key of a recipe goes on the command line, as --set KEY=VALUE"
        raise IsentropeError(f"{label}: TRL 1.16 has no key {key!r}{near}")
    if key in NOT_HONOURED:
        neutral, advice = NOT_HONOURED[key]
        if not any(value is one or (value == one and type(value) is type(one)) for one in neutral):
            raise IsentropeError(f"{label}: {key} = {value!r} is not honoured here: {advice}")
    if key in REFUSED and value not in (None, False, [], 0, 0.0):
        raise IsentropeError(f"{label}: {key} = {value!r} cannot be honoured: {REFUSED[key]}")


def _check_needed(given: Table, label: str) -> None:
    """What a recipe needs and TRL's defaults do not give, and numbers that are counted with below."""
    if "max_steps" not in given or given["max_steps"] == -1:
        raise IsentropeError(
            f"{label}: max_steps is missing; a recipe counts updates, not epochs of a data set: set it above 0"
        )
    if not given.get("model_name_or_path"):
        raise IsentropeError(f"{label}: model_name_or_path is missing; name a folder, a hub id, embedded or smollm2")
    for key in WHOLE:
        if given.get(key) is not None and (type(given[key]) is not int or given[key] < 1):
            raise IsentropeError(f"{label}: {key} = {given[key]!r}; give a whole number above 0")
    for key in ("save_steps", "warmup_steps"):
        if not isinstance(given.get(key, 0), int | float) or given.get(key, 0) < 0:
            raise IsentropeError(
                f"{label}: {key} = {given[key]!r}; give a number of updates, or a share below 1 of them"
            )


def _task(given: Table, label: str) -> Table:
    """[[task]] for dataset_name and reward_funcs: one of our tasks, which rewards by itself, or a set for `math`."""
    from isentrope import tasks

    name, rewards = given.get("dataset_name"), given.get("reward_funcs") or []
    rewards = [rewards] if isinstance(rewards, str) else rewards
    if not isinstance(name, str) or not name:
        raise IsentropeError(
            f"{label}: dataset_name is missing; name a task (isentrope train --task) or a set of problems"
        )
    is_ours = ".py:" in name or name.partition(":")[0] in tasks.names()
    if is_ours and (rewards or given.get("dataset_config") or "dataset_train_split" in given):
        found = (
            "reward_funcs" if rewards else "dataset_config" if given.get("dataset_config") else "dataset_train_split"
        )
        raise IsentropeError(f"{label}: {found} does not go with the task {name}, which has its own; leave it out")
    if is_ours:
        return {"task": [{"name": name}]}
    if rewards != ["accuracy_reward"]:
        raise IsentropeError(
            f"{label}: reward_funcs = {rewards} on {name} is not honoured here; accuracy_reward alone is, by the task"
            " math. Write a task, file.py:name, with these problems and this score, and give it as dataset_name"
        )
    options = {"hub": name, "problem": "prompt", "answer": "solution"}  # the columns that accuracy_reward reads
    if given.get("dataset_config"):
        options["hub_config"] = given["dataset_config"]
    if given.get("dataset_train_split"):
        options["hub_split"] = given["dataset_train_split"]
    return {"task": [{"name": "math", "options": options}]}


def _dtype(given: Table, label: str) -> Table:
    """[model] dtype, from `dtype` or `model_init_kwargs`, which TRL lets win."""
    inner = given.get("model_init_kwargs") or {}
    if other := sorted(set(inner) - {"dtype"}):
        raise IsentropeError(f"{label}: model_init_kwargs has {other[0]!r}, which is not honoured here; only dtype is")
    found = inner.get("dtype", given.get("dtype") or "float32")
    if found not in ("float32", "bfloat16", "float16"):
        raise IsentropeError(f"{label}: dtype = {found!r}; name float32, bfloat16 or float16")
    return {"model.dtype": found}


def _adapters(given: Table, label: str) -> Table:
    """[model.lora], from use_peft and the keys that act with it."""
    keys = [key for key in ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules") if key in given]
    if not given.get("use_peft"):
        if keys:
            raise IsentropeError(f"{label}: {keys[0]} acts only with use_peft = true; leave it out")
        return {}
    if given.get("lora_dropout") != 0:
        raise IsentropeError(
            f"{label}: use_peft has TRL's dropout of 0.05 unless lora_dropout says otherwise, and it moves ratios:"
            " set lora_dropout to 0"
        )
    targets = given.get("lora_target_modules")
    if not targets:
        raise IsentropeError(f"{label}: lora_target_modules is missing; set it to all-linear, or to a list of modules")
    lora = {"rank": given.get("lora_r", 16), "alpha": given.get("lora_alpha", 32)}
    return {"model.lora": lora | {"targets": targets[0] if targets == ["all-linear"] else targets}}


def _schedule(given: Table, label: str) -> Table:
    known = get_args(Trainer.model_fields["lr_schedule"].annotation)
    name = given["lr_scheduler_type"]
    if name not in known:
        raise IsentropeError(
            f"{label}: lr_scheduler_type = {name!r} is not honoured here; there are {', '.join(known)}"
        )
    return {"trainer.lr_schedule": name, "trainer.warmup_steps": _updates(given.get("warmup_steps", 0), given)}


def _updates(number: float, given: Table) -> int:
    """A number of updates, or a share below 1 of all of them, rounded up as transformers does."""
    return math.ceil(number * given["max_steps"]) if 0 < number < 1 else int(number)


def _reports(given: Table, label: str) -> Table:
    found = given.get("report_to") or []
    names = [found] if isinstance(found, str) else list(found)
    if "all" in names:
        raise IsentropeError(f"{label}: report_to = 'all' is not honoured here; name the services, such as tensorboard")
    return {"output.report_to": [name for name in names if name != "none"]}


def _checkpoints(given: Table, label: str) -> Table:
    strategy = given["save_strategy"]
    if strategy not in ("steps", "no", False):
        raise IsentropeError(f"{label}: save_strategy = {strategy!r} is not honoured here; give steps or no")
    return {"output.checkpoint_every": _updates(given["save_steps"], given) if strategy == "steps" else 0}


def _batches(given: Table, label: str, processes: int) -> Table:
    """Prompts, mini-batches and micro-batches, from TRL's numbers for each process."""
    rows, accumulated = given["per_device_train_batch_size"] * processes, given["gradient_accumulation_steps"]
    whole, parts, size = given.get("generation_batch_size"), given.get("steps_per_generation"), given["num_generations"]
    if whole and parts:
        raise IsentropeError(
            f"{label}: generation_batch_size and steps_per_generation say the same; TRL takes one of them"
        )
    rollout = whole or rows * (parts or accumulated)
    if rollout % size or rollout % (rows * accumulated):
        raise IsentropeError(
            f"{label}: a rollout batch of {rollout} completions (over {processes} processes) must be a multiple of"
            f" num_generations = {size} and of the {rows * accumulated} completions of an update"
            " (per_device_train_batch_size x processes x gradient_accumulation_steps); change one of them"
        )
    return {
        "trainer.prompts": rollout // size,
        "trainer.minibatches": rollout // (rows * accumulated),
        "trainer.micro_batch": rows,
    }


def _objective(config: Mapping[str, Any], label: str, folder: Path) -> Any:
    """The named objective, next to which no key may ask for another; else the one that TRL's keys describe."""
    named = config.get("objective")
    if named is None:
        return objective_of(config, label)
    for key in OBJECTIVE_KEYS:
        if key in config:
            raise IsentropeError(f"{label}: {key} is a part of the objective, and {named!r} is one; leave {key} out")
    if isinstance(named, str) and ".py:" in named and not Path(named).is_absolute():
        return str(folder / named)
    return named


def replaced(config: Table, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Put what the command line chooses by a recipe's keys in the place of TRL's keys; the rest is returned.

    A task replaces data and rewards. Without this, a file that leaves a choice to the command line would be refused.
    """
    left = dict(choices)
    for place, key in (("trainer.steps", "max_steps"), ("model.name", "model_name_or_path")):
        if place in left:
            config[key] = left.pop(place)
    if "task" in left:
        for key in ("reward_funcs", "dataset_config", "dataset_train_split"):
            config.pop(key, None)
        config["dataset_name"] = left.pop("task")[0]["name"]
    return left


def assigned(config: Table, assignments: Sequence[str]) -> list[str]:
    """Apply those assignments that name a key of TRL's to the configuration; the others, a recipe's, are returned.

    `seed` and `objective` are keys of both; the recipe takes them.
    """
    left = []
    for assignment in assignments:
        key, value = parse_assignment(assignment)
        if key in KNOWN and key not in Recipe.model_fields:
            config[key] = value
        else:
            left.append(assignment)
    return left
