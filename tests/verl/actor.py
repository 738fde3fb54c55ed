"""verl's actor path without Ray: the real trainer and the real training workers, the TransferQueue a dictionary.

    torchrun --nproc-per-node 2 actor.py OUT CASE [CASE ...]

Every rank holds the whole batch and does the driver's work; its worker gets the rows that verl's dispatch would give.
The cases are in `CASES`; rank 0 saves what happened in each as OUT/<case>.pt.
"""

import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

if "verl" not in sys.modules:  # which reads them when it is imported; workers need them, the trainer alone does not
    os.environ |= {"VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "HF_HUB_OFFLINE": "1"}

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # verl warns of every engine that is not installed
    import cloudpickle
    import torch
    import verl
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf, open_dict
    from tensordict import NonTensorData, NonTensorStack, TensorDict
    from torch.distributed.tensor import DTensor
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine_workers import ActorRolloutRefWorker

from isentrope.engines import verl_laptop, verl_trainer

MODEL = str(files("isentrope") / "embedded")
PROMPTS, SAMPLES, LIMIT = 4, 4, 12
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571"}


@cache
def _composed() -> Any:
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        return compose("ppo_trainer")


def configuration(objective: str, /, **overrides: Any) -> Any:
    """verl's own configuration of a small job on a CPU, with dotted keys (`__` for the dots) on top."""
    config = deepcopy(_composed())
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    settings = verl_laptop.settings(int(os.environ.get("WORLD_SIZE", "1"))) | {
        "trainer.v1.trainer_mode": "isentrope",
        "trainer.v1.isentrope": {"objective": objective},
        "trainer.v1.sampler.custom_sampler": {"path": None, "name": None},
        "algorithm.adv_estimator": "isentrope",
        "actor_rollout_ref.model.path": MODEL,
        "data.train_batch_size": PROMPTS,
        "data.max_response_length": LIMIT,
        f"{actor}.ppo_mini_batch_size": PROMPTS,
        f"{actor}.ppo_micro_batch_size_per_gpu": 4,
        f"{actor}.optim.lr": 1e-3,
        f"{actor}.optim.optimizer": "SGD",
        f"{actor}.optim.clip_grad": 1e9,
        f"{actor}.optim.override_optimizer_config": {"foreach": False},
        f"{rollout}.n": SAMPLES,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": 4,
        f"{rollout}.calculate_log_probs": True,
    }
    settings |= {key.replace("__", "."): value for key, value in overrides.items()}
    with open_dict(config):
        for key, value in settings.items():
            OmegaConf.update(config, key, value, force_add=True, merge=False)
    return config


# -- what a rollout leaves in the TransferQueue


@dataclass
class Store:
    """The TransferQueue's interface over a dictionary of rows."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    tags: dict[str, dict[str, Any]] = field(default_factory=dict)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str] | None = None) -> TensorDict:
        names = [n for n in self.rows[keys[0]] if select_fields is None or n in select_fields]
        return TensorDict({n: _stacked([self.rows[key][n] for key in keys]) for n in names}, batch_size=len(keys))

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: TensorDict) -> KVBatchMeta:
        for name in fields.keys():  # noqa: SIM118
            column = fields[name]
            for key, x in zip(keys, column.unbind() if isinstance(column, torch.Tensor) else column, strict=True):
                self.rows[key][name] = x
        return KVBatchMeta(keys=keys, tags=[self.tags[key] for key in keys], partition_id=partition_id)


def _stacked(values: list[Any]) -> Any:
    if not isinstance(values[0], torch.Tensor):
        return NonTensorStack.from_list([NonTensorData(x) for x in values])
    if values[0].ndim == 0:
        return torch.stack(values)
    return torch.nested.as_nested_tensor(values, layout=torch.jagged)


def rollout_rows(seed: int = 0, pads: int = 0, turns: int = 1, holes: bool = True) -> dict[str, dict[str, Any]]:
    """Rows as agent loops leave them, by key: `PROMPTS` x `SAMPLES` sessions of so many rows, and verl's pad rows.

    holes: some responses hold a tool's tokens, at which the mask is 0 and the sampler's log-probabilities NaN.
    """
    g = torch.Generator().manual_seed(seed)
    rows = {}
    for prompt in range(PROMPTS):
        prompt_ids = torch.randint(3, 99, (3 + prompt,), generator=g)
        for sample in range(SAMPLES):
            score = float(torch.rand((), generator=g) < 0.5) + 0.25 * (sample == 0)
            for turn in range(turns):
                length = 2 + int(torch.randint(0, LIMIT - 1, (), generator=g))
                mask = torch.ones(length, dtype=torch.long)
                if holes and length > 4 and sample % 2:
                    mask[1:3] = 0
                row = _row(prompt_ids, torch.randint(3, 99, (length,), generator=g), mask, score)
                rows[f"u{prompt}_{sample}_{turn}"] = row | {"uid": f"u{prompt}", "data_source": f"task{prompt % 2}"}
    for i in range(pads):
        row = _row(torch.full((9,), 1), torch.tensor([1]), torch.zeros(1, dtype=torch.long), 0.0)
        rows[f"pad{i}f_0_0"] = row | {"uid": f"pad{i}f", "data_source": "task0"}
    return rows


def _row(prompt: torch.Tensor, response: torch.Tensor, mask: torch.Tensor, score: float) -> dict[str, Any]:
    ids = torch.cat([prompt, response])
    scores = torch.zeros(len(response))
    scores[-1] = score
    sampler = -1.0 - 0.1 * torch.arange(len(response)).float()
    sampler[mask == 0] = torch.nan
    return {
        "prompts": prompt,
        "responses": response,
        "input_ids": ids,
        "position_ids": torch.arange(len(ids)),
        "response_mask": mask,
        "loss_mask": mask,
        "rm_scores": scores,
        "rollout_log_probs": sampler,
    }


# -- workers


class Workers:
    """A worker group of this process's worker: verl's dispatch and collection without Ray."""

    def __init__(self, config: Any, store: Store) -> None:
        self.store, self.rank, self.size = store, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
        self.gradients: list[dict[str, torch.Tensor]] = []

    def init_model(self) -> None:
        self.worker.init_model()
        engine = self.worker.actor.engine
        step = engine.optimizer_step

        def recorded() -> Any:
            self.gradients.append({n: _full(p.grad) for n, p in engine.module.named_parameters()})
            return step()

        engine.optimizer_step = recorded

    def set_loss_fn(self, loss: Any) -> None:
        self.worker.set_loss_fn(cloudpickle.loads(cloudpickle.dumps(loss)))  # as it travels to a worker

    def _own(self, batch: KVBatchMeta) -> TensorDict:
        share = len(batch.keys) // self.size
        keys = batch.keys[self.rank * share : (self.rank + 1) * share]
        data = self.store.kv_batch_get(keys, batch.partition_id)
        for key, value in batch.extra_info.items():
            tu.assign_non_tensor(data, **{key: value})
        return data

    def compute_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        output = self.worker.compute_log_prob(self._own(batch))
        own = {name: list(output[name].unbind()) for name in ("log_probs", "entropy") if name in output.keys()}  # noqa: SIM118
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, own)
        whole = {name: _stacked([x for part in found for x in part[name]]) for name in own}
        return self.store.kv_batch_put(batch.keys, batch.partition_id, TensorDict(whole, batch_size=len(batch.keys)))

    def update_actor(self, batch: KVBatchMeta) -> TensorDict:
        return self.worker.update_actor(self._own(batch))


def _full(x: torch.Tensor) -> torch.Tensor:
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()


@contextmanager
def transfer_queue(store: Store) -> Any:
    """verl's trainer and ours with the dictionary in place of the TransferQueue."""
    modules = (trainer_base, verl_trainer)
    before = [module.tq for module in modules]
    for module in modules:
        module.tq = store
    try:
        yield
    finally:
        for module, tq in zip(modules, before, strict=True):
            module.tq = tq


def trainer(config: Any, workers: Workers | None = None) -> Any:
    """The trainer that a configuration names, with workers that stand ready, or none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Disabled critic")  # verl's, for every estimator but GAE
        made = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    made.global_steps, made.distillation_config = 1, None
    if workers is not None:
        made.actor_rollout_wg = workers
        workers.init_model()
        if isinstance(made, verl_trainer.ObjectiveSteps):
            workers.set_loss_fn(verl_trainer.ObjectiveLoss.of(made._objective))
    return made


def step(made: Any, rows: Mapping[str, Mapping[str, Any]], order: list[str] | None = None) -> dict[str, Any]:
    """One step of the trainer on these rows: old log-probabilities, advantages, updates. Returns what it logs."""
    store = made.actor_rollout_wg.store
    store.rows = {key: dict(row) for key, row in rows.items()}
    store.tags = {key: {"is_padding": key.startswith("pad")} for key in rows}
    keys = order or list(rows)
    batch = KVBatchMeta(keys=keys, tags=[store.tags[key] for key in keys], partition_id="train")
    metrics: dict[str, Any] = {}
    with transfer_queue(store):
        for stage in (made._compute_old_log_prob, made._compute_advantage, made._update_actor):
            batch = stage(batch, metrics=metrics)
            batch.extra_info.setdefault("temperature", 1.0)
    return metrics


@dataclass(frozen=True)
class Case:
    """One step: an objective, keys of verl's on top, the rollout, and the order of its rows."""

    objective: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Any] = field(default_factory=dict)
    by_length: bool = False
    steps: int = 1


_MINI = {"actor_rollout_ref__actor__ppo_mini_batch_size": 2}
_MICRO = {"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 1}
_ONE = {"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 8}
_PADDED = {
    "actor_rollout_ref__actor__ppo_mini_batch_size": 5,
    "actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref__rollout__log_prob_micro_batch_size_per_gpu": 2,
    "data__train_batch_size": 5,
}
_PACKED = {"actor_rollout_ref__model__use_remove_padding": True}
_DYNAMIC = {
    "actor_rollout_ref__actor__use_dynamic_bsz": True,
    "actor_rollout_ref__rollout__log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref__actor__ppo_max_token_len_per_gpu": 64,
    "actor_rollout_ref__rollout__log_prob_max_token_len_per_gpu": 64,
}
_SAME = """
preset = "ce_gppo"
[surrogate]
rule = "PPOClip"
dual = 3.0
"""
_VERLS = {"trainer__v1__trainer_mode": "sync", "algorithm__adv_estimator": "grpo"}
_LOSS = "actor_rollout_ref__actor__policy_loss__loss_mode"
_HOOKS = {
    "trainer__v1__trainer_mode": "sync",
    "algorithm__adv_estimator": "isentrope/ce_gppo",
    _LOSS: "isentrope/ce_gppo",
}
CASES = {
    "verl": Case("", _VERLS | _MICRO),
    "same_as_verl": Case(_SAME, _MICRO),
    "hooks": Case("", _HOOKS),
    "hooks_micro_1": Case("", _HOOKS | _MICRO),
    "same_as_hooks": Case("ce_gppo"),
    "plain": Case("gepo"),
    "micro_1": Case("gepo", _MICRO),
    "micro_8": Case("gepo", _ONE),
    "dynamic": Case("gepo", _DYNAMIC),
    "reordered": Case("gepo", by_length=True),
    "padded": Case("gepo", _PADDED, {"pads": 4}),
    "packed": Case("gepo", _PACKED),
    "dapo": Case("dapo"),
    "dapo_micro_1": Case("dapo", _MICRO),
    "kl_cov": Case("kl_cov"),
    "kl_cov_micro_1": Case("kl_cov", _MICRO),
    "entropy_bonus": Case("entropy_bonus"),
    "entropy_bonus_micro_1": Case("entropy_bonus", _MICRO),
    "mini": Case("adapo", _MINI),
    "mini_micro_1": Case("adapo", _MINI | _MICRO),
    "turns": Case("ce_gppo", rows={"turns": 2}),
    "steps": Case("repo_d", _MINI, steps=3),
}


def dealt(keys: list[str], updates: int, ranks: int) -> list[str]:
    """The order in which every update has the rows of one slice of `keys`, whatever the number of ranks."""
    parts = [keys[i::updates] for i in range(updates)]
    return [key for rank in range(ranks) for part in parts for key in part[rank::ranks]]


def run(case: Case) -> dict[str, Any]:
    """What a case does to gradients, weights, metrics and state."""
    config, store = configuration(case.objective, **case.keys), Store()
    torch.manual_seed(0)
    workers = Workers(config, store)
    made = trainer(config, workers)
    logged = []
    for i in range(case.steps):
        rows = rollout_rows(seed=i, **case.rows)
        order = sorted(rows, key=lambda key: len(rows[key]["input_ids"])) if case.by_length else list(rows)
        actor = config.actor_rollout_ref
        updates = len(order) // (actor.actor.ppo_mini_batch_size * actor.rollout.n)
        logged.append(step(made, rows, dealt(order, updates, workers.size)))
    weights = {n: _full(p) for n, p in workers.worker.actor.engine.module.named_parameters()}
    return {
        "gradients": workers.gradients,
        "weights": weights,
        "metrics": logged,
        "state": made._progress.state if isinstance(made, verl_trainer.ObjectiveSteps) else {},
        "advantages": {key: row["advantages"] for key, row in store.rows.items()},
    }


if __name__ == "__main__":
    out, *names = sys.argv[1:]
    torch.set_num_threads(1)
    for key, value in ALONE.items():
        os.environ.setdefault(key, value)
    for name in names:
        found = run(CASES[name])
        if os.environ["RANK"] == "0":
            torch.save(found, Path(out) / f"{name}.pt")
