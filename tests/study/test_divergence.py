"""How far a run on a language model moved, against a second computation of the same."""

from pathlib import Path

import pytest
import torch

from isentrope import models, recipe, sampling
from isentrope.errors import IsentropeError
from isentrope.record import RunFolder
from isentrope.study import divergence

pytestmark = pytest.mark.engine
PROMPTS = ["5,6,9>75:", "1,2>3:"]


def test_the_divergence_is_the_token_mean_of_exact_kl_at_visited_positions() -> None:
    first, tokenizer = models.load("embedded")
    last, _ = models.load("embedded")
    assert divergence.divergence(last, first, tokenizer, PROMPTS, length=20, seed=0) == 0
    with torch.no_grad():
        last.get_output_embeddings().weight.mul_(0.6)
    found = divergence.divergence(last, first, tokenizer, PROMPTS, length=20, seed=0)
    expected = []
    drawn = sampling.sample(last, tokenizer, PROMPTS, num_samples=divergence.SAMPLES, max_new_tokens=20, seed=0)
    for prompt, completions in zip(PROMPTS, drawn, strict=True):
        ids = sampling.encode_prompt(tokenizer, prompt)
        for completion in completions:
            for i in range(len(completion.tokens)):
                prefix = torch.tensor([[*ids, *completion.tokens[:i]]])
                with torch.no_grad():
                    p, q = (model(prefix).logits[0, -1].double().softmax(-1) for model in (last, first))
                expected.append(float((p * (p / q).log()).sum()))
    assert any(len({len(completion.tokens) for completion in rows}) > 1 for rows in drawn)  # so padding was there
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-4)
    assert found > 0.001


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsentropeError, match="has no checkpoint"):
        divergence.to_start(RunFolder(tmp_path), recipe.load("default"))
