"""TRL's `GRPOTrainer` with an objective in place of its loss.

```python
from isentrope import presets
from isentrope.engines.trl import ObjectiveTrainer

trainer = ObjectiveTrainer(model, reward_funcs=reward, args=config, train_dataset=data, objective=presets.ce_gppo)
trainer.train()
```

Rollouts, rewards, generation backends, PEFT, accumulation, reuse of rollouts, evaluation and checkpoints are TRL's. The
objective's `prepare` sees each rollout batch whole, over all ranks, before TRL shuffles and splits it. The gradient is
the same for any split into micro-batches, accumulation steps or ranks.

**Options.** `trl_options` says of every field of `GRPOConfig` whether it is honoured, replaced by a slot, or refused.
The reference model of a KL penalty is TRL's: it is loaded when the objective reads `ref_logp`.

**Rollouts.** The objective's slot `rollout` sets the temperature of the next rollout batch or of a share of it
(`trl_sampling`), and has groups without reward variance replaced (`trl_resampling`). `order` keeps a mix's weights in
every rollout batch, goes through stages, and prefers problems by pass rate (`trl_mix`).

**Metrics.** `trl_metrics` lists the keys. `diagnostics_interval` adds measurements of who moves the entropy
(`trl_diagnostics`).

**Precision.** `trl_guards` names what is set and checked so that number formats do not bend the ratio. `trl_fp16` says
what fp16=True does.

**Checkpoints.** A resumed run continues bit for bit, also from the middle of a rollout batch (`trl_state`).
"""

import math
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler

from isentrope import spec
from isentrope.aggregate import Totals
from isentrope.engines import (
    trl_batch,
    trl_fp16,
    trl_head,
    trl_limits,
    trl_metrics,
    trl_mix,
    trl_resampling,
    trl_rollout,
    trl_setup,
    trl_state,
)
from isentrope.engines.trl_batch import CompletionError, RewardError
from isentrope.engines.trl_diagnostics import LiveDiagnostics, Place
from isentrope.engines.trl_guards import GuardError, Guards, NumericalClippingWarning
from isentrope.engines.trl_options import InertObjectiveWarning, OptionError, SamplerMismatchWarning
from isentrope.engines.trl_rollout import Sampled
from isentrope.engines.trl_sampling import Sampling
from isentrope.engines.trl_state import CheckpointError
from isentrope.objective import Objective
from isentrope.rollout import Rollout
from isentrope.tasks.mix import Order

__all__ = [
    "CheckpointError",
    "CompletionError",
    "GuardError",
    "InertObjectiveWarning",
    "NumericalClippingWarning",
    "ObjectiveTrainer",
    "OptionError",
    "RewardError",
    "SamplerMismatchWarning",
]

TokenSink = Callable[[int, dict[str, Tensor]], None]


class ObjectiveTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` that maximises `objective`.

    All arguments of GRPOTrainer, and:
    objective: an Objective, a preset's name, a TOML path or text, or "file.py:name".
    token_sink: called as token_sink(step, columns) for each micro-batch of the optimizer steps (1 = the first) that are
        multiples of token_interval, with this rank's row, group, task [B] and token_id, logp, old_logp, rollout_logp,
        entropy, advantage (after all shaping), weight (dJ/dlogp, J of the whole optimizer step), mask [B,T], all
        without gradient. `row` counts completions from the start of the run and stays with a completion through all
        updates on it; `group` counts prompts likewise. Columns that the run does not have are left out.
    token_interval: in optimizer steps; 0 never calls it.
    diagnostics_interval: in optimizer steps; 0 measures nothing.
    without_guards: names of guards (`trl_guards`) to switch off.
    order: how prompts are chosen (`isentrope.tasks.mix.Order`); None is TRL's shuffled epochs.
    head: what makes log-probabilities of hidden states: "auto" is ours on a CPU, TRL's elsewhere; "isentrope"; "trl".
    reward_time_limit: seconds that the rewards of a rollout batch may take before RewardError; None is no limit.

    Raises OptionError for an option of `args` that the objective replaces or that cannot be honoured; RewardError and
    CompletionError for what reward and rollout functions return; CheckpointError on resume; GuardError while it
    trains. Warns with InertObjectiveWarning where a rule cannot act, and as the guards say.
    """

    args: Any
    model: Any
    num_generations: int
    rollout_examples: list[dict[str, Any]]  # this rank's rows of the data set that are being sampled
    _logs: dict[str, Any]
    _tag_names = ["trl", "isentrope"]  # noqa: RUF012  (TRL's own attribute)

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: list[Callable[..., Any]] | None = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
        *,
        objective: Objective | str | Path | Mapping[str, Any],
        token_sink: TokenSink | None = None,
        token_interval: int = 0,
        diagnostics_interval: int = 0,
        without_guards: Collection[str] = (),
        order: Order | None = None,
        head: str = "auto",
        reward_time_limit: float | None = None,
    ) -> None:
        args = args if args is not None else trl_setup.default_config(model)
        self.objective = spec.load(objective)
        trl_setup.check(args, train_dataset, order, head, reward_time_limit)
        trl_setup.check_measuring(token_sink, token_interval, diagnostics_interval)
        has_tools = bool(tools) or environment_factory is not None
        self._objective = trl_setup.settled(self.objective, args, train_dataset, has_tools)
        self._begin(args, train_dataset)
        self._token_sink, self._token_interval = token_sink, token_interval
        self._diagnostics, self._guards = LiveDiagnostics(diagnostics_interval), Guards(without_guards)
        self._reward_time_limit = reward_time_limit
        reference = trl_setup.reference_model(args, "ref_logp" in self._needs.prepare | self._needs.loss)
        ours = trl_head.taking_head(head, entropy_gradient="entropy" in self._needs.gradient)
        with reference, ours, self._sampling.taking_heads():
            super().__init__(
                model=model,
                reward_funcs=reward_funcs,
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                reward_processing_classes=reward_processing_classes,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
                tools=tools,
                rollout_func=trl_setup.checked_rollouts(rollout_func, self._sampling),
                environment_factory=environment_factory,
            )
        num_prompts = self.args.generation_batch_size // self.num_generations
        self._prompts = trl_mix.Prompts(order, self.train_dataset, num_prompts, self.args.seed)
        self.add_callback(trl_state.ContinueWindow(self))
        self._skipped_steps = trl_fp16.begin(self)
        self._warn()

    # -- before training

    def _begin(self, args: GRPOConfig, dataset: Any) -> None:
        """What a run starts with; TRL's constructor uses some of it already."""
        self._needs = self._objective.columns()
        self._state: dict[str, float] = self._objective.init()
        self._pools = {"train": trl_metrics.MetricPool(), "eval": trl_metrics.MetricPool()}
        self._tasks = trl_batch.TaskNames(trl_setup.task_names(dataset))
        self._sampling = Sampling(self._objective.rollout, args.temperature)
        self._num_rollouts = 0
        self._scored: tuple[Tensor, list[list[int]]] | None = None
        self._passes: list[tuple[Tensor, Tensor | None]] | None = None
        self._window: tuple[Tensor, int] | None = None  # loss since a log line, that line's step

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        trl_fp16.set_up(self.accelerator)

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer steps that use one rollout batch; 1 means that the ratio is always exactly 1."""
        reuse = self.args.steps_per_generation * self.num_iterations
        accumulation = self.args.gradient_accumulation_steps
        return 1 if accumulation % reuse == 0 else max(2, math.ceil(reuse / accumulation))

    def _warn(self) -> None:
        for sentence in self._objective.inert(
            updates_per_rollout=self.updates_per_rollout, group_size=self.num_generations
        ):
            warnings.warn(sentence, InertObjectiveWarning, stacklevel=3)
        self._guards.at_construction(self.args, self._objective)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        sampler = super()._get_train_sampler(dataset)
        return trl_setup.EpochSampler(sampler, lambda: int(self.state.epoch or 0))

    # -- once per rollout batch

    def _generate_single_turn(self, prompt_ids: Any, images: Any, multimodal_fields: Any, *args: Any, **kw: Any) -> Any:
        def generate(prompts: Any, images: Any, fields: Any) -> Any:
            return super(ObjectiveTrainer, self)._generate_single_turn(prompts, images, fields, *args, **kw)

        if self._sampling.partial or self._objective.rollout.rounds:
            trl_setup.refuse_images(images)
        if not (self.tools or self.environments):  # else the prompt holds what was written so far
            trl_limits.refuse_long(self.model, prompt_ids, self.max_completion_length)
        with trl_limits.naming_bad_logits():
            generated = self._sampling.generate(self, generate, prompt_ids, images, multimodal_fields)
        trl_batch.refuse_empty(generated[0], "generation")
        return generated

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        with trl_limits.time_limit(self._reward_time_limit, self.reward_func_names):
            rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        trl_batch.check_rewards(rewards, self.reward_func_names, self.reward_funcs)
        self._scored = rewards, completion_ids_list
        return rewards

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        if self._passes is None or model is not self.model:
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        # TRL's pass over a rollout computes the entropies anyway; keep them
        scored = super()._get_per_token_logps_and_entropies(model, *args, **kwargs | {"compute_entropy": True})
        self._passes.append(scored[:2])
        return scored

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._guards.before_rollout(self)
        batch = self._roll_out(self._prompts.choose(self, inputs))
        output = batch.output
        columns = trl_rollout.columns(self, batch)
        prepared, totals = self._prepare(columns)
        rows = prepared | {"row": self._row_numbers(len(columns["mask"]))}
        own = trl_batch.own_rows(rows, self.accelerator.process_index, trl_batch.policy_mask(output))
        trl_rollout.log(self, prepared, own)
        if self._mode == "train":
            self._diagnostics.rollout(Place.of(self), prepared)
        kept = {key: x for key, x in output.items() if key not in trl_rollout.OURS}
        del kept["advantages"]  # TRL's; ours are a column
        return kept | trl_batch.pack(own, totals)

    def _roll_out(self, examples: list[dict[str, Any]]) -> Sampled:
        """Sample and score a rollout batch as the slot `rollout` says; in evaluation as the options say."""
        knobs = self._objective.at(self._state).rollout if self._mode == "train" else Rollout()
        self._sampling.begin(self, knobs.temperature)
        num_groups = len(examples) * self.accelerator.num_processes // self._group_size
        tempered = self._sampling.num_tempered_groups(num_groups) if self._mode == "train" else 0
        batch = self._sample(examples, tempered * self._group_size)
        if knobs.rounds:
            batch, outcome = trl_resampling.fill(self, examples, batch, knobs.rounds)
            trl_resampling.log(self._pools["train"], outcome, self.accelerator.device)
        return batch

    def _sample(self, examples: list[dict[str, Any]], num_tempered: int) -> Sampled:
        """Let TRL sample and score; the first num_tempered rows of all ranks are sampled at another temperature."""
        passes: list[tuple[Tensor, Tensor | None]] = []
        self._passes, self.rollout_examples = passes, examples
        try:
            with self._sampling.tempering(num_tempered):
                output: dict[str, Any] = super()._generate_and_score_completions(examples)
        finally:
            self._passes = None
        found = trl_rollout.sampled(self, examples, output, num_tempered, passes)
        self._prompts.observe(self, examples, found.reward)
        return found

    def _prepare(self, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], Totals]:
        """Run `prepare` on the whole batch. Controllers observe it in training; in evaluation they stand still."""
        with torch.no_grad():
            if self._mode == "train":
                prepared, self._state = self._objective.prepare(batch, self._state)
                self._num_rollouts += 1
            else:
                still = self._objective.at(self._state)
                prepared, _ = still.prepare(batch, still.init())
            return prepared, self._objective.at(self._state).count(prepared)

    def _row_numbers(self, num_rows: int) -> Tensor:
        first = (self._num_rollouts - 1) * num_rows if self._mode == "train" else 0
        return torch.arange(first, first + num_rows, device=self.accelerator.device)

    # -- once per micro-batch

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        self._diagnostics.after_backward(self)
        self._guards.after_backward(self)
        return loss

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._sampling.score(self._mode == "train")
        logp, entropy, aux_loss = self._score(model, inputs, aux_loss=self.aux_loss_enabled)
        rows, totals = self._rows(inputs, logp, entropy)
        now = self._objective.at(self._state)
        if self._mode == "train":
            self._guards.micro_batch(self, now, rows, logp, "old_per_token_logps" in inputs)
        # gradients are averaged over ranks, while totals count the rows of all
        loss: Tensor = now.loss(rows, totals) * self.accelerator.num_processes
        with torch.no_grad():
            trl_metrics.log_update(self._pools[self._mode], now, rows, self._tasks.names)
            self._send_tokens(now, rows, totals, inputs)
            self._diagnose(now, rows, totals, "old_per_token_logps" in inputs)
        if aux_loss is None:
            return loss
        self._pools[self._mode].mean("aux_loss", aux_loss, 1.0)
        accumulation = self.current_gradient_accumulation_steps if self._mode == "train" else 1.0
        return loss + self.router_aux_loss_coef * aux_loss / accumulation

    def _score(
        self, model: Any, inputs: dict[str, Any], batch_size: int | None = None, aux_loss: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """log pi and exact entropy [B,T] of the completions at the sampling temperature, and the router's loss."""
        logp, entropy, aux = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].size(1),
            batch_size=batch_size,
            compute_entropy=True,
            compute_aux_loss=aux_loss,
            **{key: inputs.get(key) for key in trl_batch.FORWARD_KEYS},
        )
        return logp, entropy, aux

    def _rows(self, inputs: dict[str, Any], logp: Tensor, entropy: Tensor) -> tuple[dict[str, Tensor], Totals]:
        """The prepared rows with the current policy's columns, and the totals of this optimizer step's share."""
        rows, totals = trl_batch.current(inputs, logp, entropy, "entropy" in self._needs.gradient)
        if self._mode == "train":
            totals = totals.scaled(self.current_gradient_accumulation_steps / self.args.steps_per_generation)
        return rows, totals

    def _send_tokens(self, now: Objective, rows: dict[str, Tensor], totals: Totals, inputs: dict[str, Any]) -> None:
        step = self.state.global_step + 1
        if self._token_sink is None or self._mode == "eval" or not self._token_interval or step % self._token_interval:
            return
        columns = trl_rollout.token_columns(now, rows, totals, inputs["completion_ids"], self.num_generations)
        self._token_sink(step, columns)

    def _diagnose(self, now: Objective, rows: dict[str, Tensor], totals: Totals, has_own_pass: bool) -> None:
        """Live diagnostics. has_own_pass: old_logp is not the very logp of this update."""
        if self._mode == "eval" or not self._diagnostics.interval:
            return
        place, detached = Place.of(self), {name: x.detach() for name, x in rows.items()}
        self._diagnostics.micro_batch(place, now, detached, totals, self._get_learning_rate())
        if has_own_pass:
            self._diagnostics.first_update(self._pools["train"], place, now, detached)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        values = self._pools[self._mode].flush(self.accelerator)
        if values and self._mode == "train":
            values |= {f"controller/{name}": number for name, number in self._state.items()}
            values |= self._sampling.logged() | self._diagnostics.pop() | self._skipped_steps.logged()
            values |= self._prompts.logged(self._num_rollouts - 1)
        for name, number in values.items():
            self._metrics[self._mode][name] = [number]
        super().log(logs, start_time)

    @property
    def _group_size(self) -> int:
        return int(self.num_generations if self._mode == "train" else self.num_generations_eval)

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    @property
    def _micro_batch_size(self) -> int:
        args = self.args
        return int(args.per_device_train_batch_size if self._mode == "train" else args.per_device_eval_batch_size)

    # -- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = os.path.join(self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        if not self.args.save_only_model:  # such a checkpoint cannot be resumed from anyway
            trl_state.save(self, folder)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            trl_state.load(self, checkpoint)
