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

**Metrics.** TRL's keys stay (`reward`, `completions/*`, `entropy`, `clip_ratio/*`, `kl`, ...). All that come from the
loss, TRL's and ours, are means over tokens (or rows) pooled over micro-batches and ranks since the last log line, over
the tokens that the policy wrote; log-probabilities and entropies are those at the sampling temperature. Ours:

| key | meaning |
| --- | --- |
| `entropy/current_exact` | exact softmax entropy of the policy at the update, nats; TRL's `entropy` is the same |
| `entropy/old_exact` | the same of the policy at the rollout; where the objective or TRL takes that pass |
| `entropy/current_exact/<task>`, `reward/<task>` | by the dataset's column `task`, with more than one task |
| `clip/low`, `clip/high` | share of counted tokens beyond the surrogate's lower and upper bound, where it acts |
| `ratio/mean`, `kl_old` | mean of the ratio, and k3 estimate of the KL divergence from the rollout's policy, nats |
| `kl_rollout` | the same between the sampler and the trainer's pass, where the sampler reports log-probabilities |
| `tokens/selected`, `tokens/excluded` | share of tokens with a gradient; share left out for a non-finite column |
| `controller/<slot>.<field>.<number>` | every number of the controllers' state, as it stands at the log line |
"""

import math
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig, GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import RepeatSampler

from isentrope import masked, spec
from isentrope.aggregate import Totals
from isentrope.engines import trl_batch, trl_metrics, trl_setup, trl_state
from isentrope.engines.trl_batch import CompletionError, RewardError
from isentrope.engines.trl_options import (
    InertObjectiveWarning,
    OptionError,
    SamplerMismatchWarning,
    check_options,
    sampler_mismatches,
)
from isentrope.engines.trl_state import CheckpointError
from isentrope.objective import Objective

__all__ = [
    "CheckpointError",
    "CompletionError",
    "InertObjectiveWarning",
    "ObjectiveTrainer",
    "OptionError",
    "RewardError",
    "SamplerMismatchWarning",
]

TokenSink = Callable[[int, dict[str, Tensor]], None]
_SINK_COLUMNS = ("task", "old_logp", "rollout_logp", "entropy", "logp", "mask")


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

    Raises OptionError for an option of `args` that the objective replaces or that cannot be honoured; RewardError and
    CompletionError for what reward and rollout functions return; CheckpointError on resume. Warns with
    InertObjectiveWarning where a rule cannot act, with SamplerMismatchWarning where sampling is truncated.
    """

    args: Any
    model: Any
    num_generations: int
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
    ) -> None:
        args = args if args is not None else trl_setup.default_config(model)
        self.objective = spec.load(objective)
        check_options(args)
        trl_setup.check_rollout(self.objective)
        trl_setup.check_sink(token_sink, token_interval)
        self._objective = trl_setup.with_sampler_correction(self.objective, args)
        self._needs = self._objective.columns()
        self._state: dict[str, float] = self._objective.init()
        self._token_sink, self._token_interval = token_sink, token_interval
        self._pools = {"train": trl_metrics.MetricPool(), "eval": trl_metrics.MetricPool()}
        self._tasks = trl_batch.TaskNames(trl_setup.task_names(train_dataset))
        self._num_rollouts = 0
        self._scored: tuple[Tensor, list[list[int]]] | None = None
        self._passes: list[tuple[Tensor, Tensor | None]] | None = None
        self._window: tuple[Tensor, int] | None = None  # loss since a log line, that line's step
        with trl_setup.reference_model(args, wanted="ref_logp" in self._needs.prepare | self._needs.loss):
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
                rollout_func=trl_setup.checked_rollouts(rollout_func),
                environment_factory=environment_factory,
            )
        self.add_callback(trl_state.ContinueWindow(self))
        self._warn()

    # -- before training

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer steps that use one rollout batch; 1 means that the ratio is always exactly 1."""
        reuse, accumulation = (
            self.args.steps_per_generation * self.num_iterations,
            self.args.gradient_accumulation_steps,
        )
        return 1 if self._on_policy else max(2, math.ceil(reuse / accumulation))

    @property
    def _on_policy(self) -> bool:
        """Whether no optimizer step falls between a rollout and the last use of it."""
        reuse = self.args.steps_per_generation * self.num_iterations
        return bool(self.args.gradient_accumulation_steps % reuse == 0)

    def _warn(self) -> None:
        for sentence in self._objective.inert(
            updates_per_rollout=self.updates_per_rollout, group_size=self.num_generations
        ):
            warnings.warn(sentence, InertObjectiveWarning, stacklevel=3)
        options = sampler_mismatches(self.args)
        if options and self._objective.correction is None:
            warnings.warn(
                f"{', '.join(options)}: completions are not drawn from softmax(logits / temperature), whose "
                "log-probabilities enter the loss; sample without these options, or use vLLM and a rule in the slot "
                "`correction`",
                SamplerMismatchWarning,
                stacklevel=3,
            )

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        sampler = super()._get_train_sampler(dataset)
        return trl_setup.EpochSampler(sampler, lambda: int(self.state.epoch or 0))

    # -- once per rollout batch

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        generated = super()._generate_single_turn(*args, **kwargs)
        trl_batch.refuse_empty(generated[0], "generation")
        return generated

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        trl_batch.check_rewards(rewards, self.reward_func_names)
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
        self._passes = []
        try:
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
            batch = self._build_batch(inputs, output)
        finally:
            self._passes = None
        prepared, totals = self._prepare(batch)
        mask = trl_batch.policy_mask(output)
        rank = self.accelerator.process_index
        own = trl_batch.own_rows(prepared | {"row": self._row_numbers(len(batch["mask"]))}, rank, mask)
        self._log_rollout(prepared, own)
        del output["advantages"]  # TRL's; ours are a column
        return output | trl_batch.pack(own, totals)

    def _build_batch(self, examples: list[dict[str, Any]], output: dict[str, Any]) -> dict[str, Tensor]:
        """The columns of the whole rollout batch, over all ranks."""
        per_function, _ = self._scored or (None, None)
        assert per_function is not None, "TRL scored no completions"
        batch = trl_batch.gather_rows(self._own_columns(output), self.accelerator)
        num_rows, device = len(batch["mask"]), batch["mask"].device
        num_generations = self.num_generations if self._mode == "train" else self.num_generations_eval
        batch["reward"] = trl_batch.weighted_reward(per_function, self.reward_weights)
        batch["group"] = (
            torch.arange(num_rows, device=device) // num_generations
        )  # the sampler keeps a prompt's rows together
        if self.max_completion_length is not None:
            batch["length_limit"] = torch.full((num_rows,), float(self.max_completion_length), device=device)
        tasks = trl_batch.tasks_of(examples)
        if tasks is not None:
            everyone = gather_object(tasks)
            self._tasks.add(everyone)
            batch["task"] = self._tasks.ids(everyone, device)
        return batch

    def _own_columns(self, output: dict[str, Any]) -> dict[str, Tensor]:
        """This rank's columns that must be gathered."""
        columns = {"mask": trl_batch.policy_mask(output), "length_limit_hit": self._length_limit_hit()}
        columns |= self._old_policy(output)
        for name, key in (("rollout_logp", "sampling_per_token_logps"), ("ref_logp", "ref_per_token_logps")):
            if key in output:
                columns[name] = output[key].float()
        if "importance_sampling_ratio" in output:
            ratio = output["importance_sampling_ratio"]
            columns["importance_sampling_ratio"] = ratio.expand(columns["mask"].shape).contiguous()
        return columns

    def _length_limit_hit(self) -> Tensor:
        """Whether each of this rank's completions was cut: its last token ends nothing (TRL's definition)."""
        assert self._scored is not None, "TRL scored no completions"
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        return torch.tensor([ids[-1] not in ends for ids in self._scored[1]], device=self.accelerator.device)

    def _old_policy(self, output: dict[str, Any]) -> dict[str, Tensor]:
        """`old_logp`, `old_entropy`: TRL's pass where it made one, ours where the objective reads them at rollout."""
        logp = output.get("old_per_token_logps")
        if logp is not None:
            entropy = next(h for scored, h in self._passes or [] if scored is logp)
        elif {"old_logp", "old_entropy"} & (self._needs.prepare | self._needs.optional):
            with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
                logp, entropy, _ = self._score(self.model, output, batch_size=self._micro_batch_size)
        else:
            # nothing reads it at rollout; the loss puts the current policy's, which is the same policy, in its place
            return {"old_logp": torch.zeros_like(output["completion_ids"], dtype=torch.float32)}
        assert entropy is not None, "the policy's pass gives entropies"
        return {"old_logp": logp.float(), "old_entropy": entropy.float()}

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

    def _log_rollout(self, prepared: dict[str, Tensor], own: dict[str, Tensor]) -> None:
        """Our metrics of a rollout batch, and our advantages in TRL's table of completions."""
        logged = self._logs["advantages"]
        mean = masked.row_mean(prepared["advantage"], prepared["mask"]).tolist()
        for _ in range(min(len(mean), len(logged))):
            logged.pop()
        logged.extend(mean)
        trl_metrics.log_rollout(self._pools[self._mode], own, self._tasks.names)

    # -- once per micro-batch

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        logp, entropy, aux_loss = self._score(model, inputs, aux_loss=self.aux_loss_enabled)
        rows, totals = self._rows(inputs, logp, entropy)
        now = self._objective.at(self._state)
        # gradients are averaged over ranks, while totals count the rows of all
        loss: Tensor = now.loss(rows, totals) * self.accelerator.num_processes
        with torch.no_grad():
            trl_metrics.log_update(self._pools[self._mode], now, rows, self._tasks.names)
            self._send_tokens(now, rows, totals, inputs)
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
        rows, totals = trl_batch.unpack(inputs)
        if self._mode == "train":
            totals = totals.scaled(self.current_gradient_accumulation_steps / self.args.steps_per_generation)
        logp, entropy = logp.float(), entropy.float()
        if "entropy" not in self._needs.gradient:
            entropy = entropy.detach()
        rows |= {"logp": logp, "entropy": entropy}
        if "old_per_token_logps" not in inputs:
            # no update since the rollout: the old policy is this one, and its ratio is exactly 1
            rows |= {"old_logp": logp.detach(), "old_entropy": entropy.detach()}
        return rows, totals

    def _send_tokens(self, now: Objective, rows: dict[str, Tensor], totals: Totals, inputs: dict[str, Any]) -> None:
        step = self.state.global_step + 1
        if self._token_sink is None or self._mode == "eval" or not self._token_interval or step % self._token_interval:
            return
        columns = {name: rows[name].detach() for name in _SINK_COLUMNS if name in rows}
        columns |= {
            "row": rows["row"],
            "group": rows["row"] // self.num_generations,
            "token_id": inputs["completion_ids"],
        }
        columns |= {"advantage": now.shaped(rows), "weight": now.weights(rows, totals).detach()}
        self._token_sink(step, columns)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        values = self._pools[self._mode].flush(self.accelerator)
        if values and self._mode == "train":
            values |= {f"controller/{name}": number for name, number in self._state.items()}
        for name, number in values.items():
            self._metrics[self._mode][name] = [number]
        super().log(logs, start_time)

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
