"""Run folders with everything that a report can show, written by the writers of `isentrope.record` in no time."""

import math

import torch

from isentrope import presets, record, spec
from isentrope.diagnostics import QUADRANTS
from isentrope.recipe import Recipe, Task, Trainer
from isentrope.record import RunFolder
from isentrope.token_dump import TokenWriter

TASKS = ("countdown", "addition")
LETTERS = [*"0123456789+-*/=() ", "<end>", "\n", "answer", "<b>"]


def write_run(path, *, steps=40, seed=0, tasks=TASKS, objective="adapo", live=True, dumped=(20, 40), collapse=False):
    """A run of `steps` steps whose entropy falls; `live` adds diagnostics, `dumped` are the steps of token dumps.

    collapse: the entropy falls to nothing.
    """
    folder = RunFolder.create(path)
    recipe = Recipe(
        seed=seed,
        objective=spec.to_dict(getattr(presets, objective)),
        task=[Task(name=name) for name in tasks],
        trainer=Trainer(steps=steps),
    )
    record.write_text(folder.recipe, recipe.to_toml())
    record.write_json(folder.versions, record.versions(seed))
    generator = torch.Generator().manual_seed(seed)
    for step in range(1, steps + 1):
        record.append_metrics(folder.metrics, step, metrics(step, steps, tasks, generator, live, collapse))
    for when, gain in (("before", 0.0), ("after", 0.3)):
        record.write_json(folder.evaluation(when), [evaluation(task, gain) for task in sorted(tasks)])
    write_tokens(folder, dumped, tasks, generator)
    return path


def metrics(step, steps, tasks, generator, live, collapse):
    """One line: what the engine logs."""
    noise = torch.randn(8, generator=generator).tolist()
    part = step / steps
    entropy = 0.9 * math.exp(-6 * part) if collapse else 0.9 - 0.5 * part + 0.01 * noise[0]
    line = {
        "reward": 0.2 + 0.5 * part + 0.03 * noise[1],
        "reward_std": 0.3,
        "frac_reward_zero_std": 0.2,
        "entropy": entropy,
        "entropy/current_exact": entropy,
        "clip/low": 0.01 * part,
        "clip/high": 0.002,
        "ratio/mean": 1 + 1e-3 * noise[2],
        "kl_old": 1e-3 * abs(noise[3]),
        "grad_norm": 0.8,
        "completions/mean_length": 30 - 5 * part,
        "completions/clipped_ratio": 0.0,
        "controller/surrogate.high.value": 0.28 * 1.1 ** (step // 10),
        "controller/surrogate.high.target": 0.9,
    }
    for i, task in enumerate(tasks if len(tasks) > 1 else ()):
        line |= {f"entropy/current_exact/{task}": entropy + 0.1 * i, f"reward/{task}": line["reward"] - 0.1 * i}
    return line | (diagnostics(step, noise) if live else {})


def diagnostics(step, noise):
    predicted = -1e-3 * (1 + noise[4]) if step % 2 == 0 else 0.0
    shares = dict(zip(QUADRANTS, (-0.4, 0.15, 0.3, -0.15), strict=True))
    return {
        "diagnostics/predicted_change": predicted,
        "diagnostics/measured_change": 3 * predicted + (1e-3 * noise[5] if predicted else 0.0),
        "diagnostics/changed": 0.05,
        "diagnostics/effective_sample_size": 0.99,
        "diagnostics/covariance": 0.02 * noise[6],
        **{f"diagnostics/change_share/{name}": share for name, share in shares.items()},
    }


def evaluation(task, gain):
    pass_at = {str(k): 1 - (0.8 - gain) ** k for k in (1, 2, 4, 8)}
    return {
        "task": task,
        "problems": 100,
        "samples": 8,
        "pass_at": pass_at,
        "interval": [pass_at["1"] - 0.1, pass_at["1"] + 0.1],
    }


def write_tokens(folder, dumped, tasks, generator, rows=32, length=24):
    """Token dumps of completions of different length, with a weight of the advantage's sign."""
    writer = TokenWriter(folder.tokens)
    for step in dumped:
        shape = (rows, length)
        logp = -torch.rand(shape, generator=generator).square() * 3
        advantage = torch.randn(rows, generator=generator)[:, None].expand(shape)
        ids = torch.randint(len(LETTERS), shape, generator=generator)
        stop = torch.randint(4, length + 1, (rows, 1), generator=generator)
        columns = {
            "row": torch.arange(rows) + 100 * step,
            "group": torch.arange(rows) // 8 + 10 * step,
            "token_id": ids,
            "mask": torch.arange(length) < stop,
            "logp": logp,
            "old_logp": logp - 0.05 * torch.randn(shape, generator=generator),
            "entropy": torch.rand(shape, generator=generator) * math.log(len(LETTERS)) / 2,
            "advantage": advantage,
            "weight": advantage * 1e-3,
        }
        if len(tasks) > 1:
            columns["task"] = torch.arange(rows) // 8 % len(tasks)
        writer(step, columns)
    writer.close()


def no_model(folder):
    """Let the recipe name a model that is nowhere, so that no tokenizer is found."""
    text = folder.recipe.read_text()
    record.write_text(folder.recipe, text.replace('name = "embedded"', 'name = "nowhere/at-all"'))


def save_tokenizer(folder, pieces):
    """A checkpoint of `folder` that holds a tokenizer whose token i reads `pieces[i]`, and nothing else."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token=pieces[0]))
    words.decoder = decoders.Fuse()
    checkpoint = folder.checkpoints / "checkpoint-40"
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(checkpoint)
    record.finish_checkpoint(checkpoint)
