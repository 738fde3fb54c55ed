"""`isentrope train` with adapters in place of the weights: what is trained, saved, resumed and read again."""

import importlib.util
import json
import subprocess
from typing import get_args

import pytest
import torch
from typer.testing import CliRunner

from isentrope import IsentropeError, models, recipe, record
from isentrope.cli import _adapters, app
from isentrope.record import RunFolder

SHORT = """
[model.lora]
rank = 4
alpha = 8
[[task]]
name = "countdown"
[trainer]
steps = 4
prompts = 3
group_size = 4
minibatches = 2
problems = 24
learning_rate = 3e-3
max_completion_length = 16
threads = 1
without_guards = ["sampler"]
[evaluation]
problems = 3
samples = 2
[output]
checkpoint_every = 2
keep_checkpoints = 9
[trl]
top_p = 0.95
"""


def _run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_recipe_without_adapters_asks_for_none():
    assert _adapters.config(recipe.load("default")) is None
    assert _adapters.lines(recipe.load("default")) == []


def test_a_run_with_adapters_that_goes_on_loads_what_lies_below_them(tmp_path):
    made = recipe.parse(SHORT)
    assert _adapters.source(made, None) == "embedded"
    assert _adapters.source(made, tmp_path / "checkpoint-2") == "embedded"
    assert _adapters.source(made, tmp_path / "checkpoint-4") == str(tmp_path / "checkpoint-4")
    plain = recipe.load("default")
    assert _adapters.source(plain, tmp_path / "checkpoint-2") == str(tmp_path / "checkpoint-2")


def test_the_guards_that_a_recipe_may_switch_off_are_those_of_the_trainer():
    trl_guards = pytest.importorskip("isentrope.engines.trl_guards", exc_type=ImportError)
    assert get_args(recipe.Guard) == trl_guards.GUARDS


def test_without_peft_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_adapters, "find_spec", lambda name: None)
    with pytest.raises(IsentropeError, match=r"\[model\.lora\] rank = 4 needs the package peft: pip install peft"):
        _adapters.config(recipe.parse(SHORT))


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_adapters_are_trained_saved_resumed_bit_for_bit_and_evaluated(tmp_path):
    (tmp_path / "lora.toml").write_text(SHORT)
    folder, copy = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "copy")
    output = _run("train", tmp_path / "lora.toml", "--out", folder.path)
    assert "adapters   rank 4, alpha 8, on all-linear" in output
    last = folder.last_checkpoint()
    assert models.is_adapters(last)
    subprocess.run(["cp", "-r", folder.path, copy.path], check=True)
    (copy.checkpoints / "checkpoint-4" / record.COMPLETE).unlink()
    for when in ("summary.json", "evaluation-after.json"):
        (copy.path / when).unlink()
    assert "after step 2" in _run("train", "--resume", "--out", copy.path)
    weights = "adapter_model.safetensors"
    assert (copy.last_checkpoint() / weights).read_bytes() == (last / weights).read_bytes()
    after = record.read_json(folder.evaluation("after"))
    assert record.read_json(copy.evaluation("after")) == after
    # a run that has made its steps is evaluated with its adapters
    copy.evaluation("after").unlink()
    _run("train", "--resume", "--out", copy.path)
    assert record.read_json(copy.evaluation("after")) == after

    base, _ = models.load("embedded")
    model, tokenizer = models.load(str(last))
    ids = torch.tensor([tokenizer("1,2,3=6:")["input_ids"]])
    with torch.no_grad():
        assert not torch.allclose(model(ids).logits, base(ids).logits)
        with model.disable_adapter():
            assert torch.equal(model(ids).logits, base(ids).logits)
    evaluated = _run("eval", folder.path, "--limit", 3, "--k", 2, "--out", tmp_path / "eval", "--json")
    assert '"model"' in evaluated


def _adapters_in(folder, **changes):
    folder.mkdir()
    settings = {"peft_type": "LORA", "base_model_name_or_path": "embedded"} | changes
    (folder / models.ADAPTERS).write_text(json.dumps(settings))
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


@pytest.mark.engine
@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("/elsewhere/site-packages/isentrope/embedded", "embedded"),
        ("/home/me/.cache/isentrope/smollm2-0.1.2", "smollm2"),
        ("embedded", "embedded"),
        ("/models/qwen", "/models/qwen"),
        ("owner/embedded-2", "owner/embedded-2"),
    ],
)
def test_our_own_models_are_found_by_name_wherever_they_lay(place, found, tmp_path, monkeypatch):
    asked = []

    def load(name, dtype):
        asked.append(name)
        raise IsentropeError("stop")

    folder = _adapters_in(tmp_path / "adapters", base_model_name_or_path=place)
    whole = models.load
    monkeypatch.setattr(models, "load", load)
    with pytest.raises(IsentropeError, match="stop"):
        whole(str(folder))
    assert asked == [found]


@pytest.mark.engine
def test_adapters_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(IsentropeError, match=r"names no base_model_name_or_path"):
        models.load(str(_adapters_in(tmp_path / "nameless", base_model_name_or_path=None)))
    pickled = _adapters_in(tmp_path / "pickled")
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    with pytest.raises(IsentropeError, match=r"no adapter_model.safetensors; a pickle is not read"):
        models.load(str(pickled))
    with pytest.raises(IsentropeError, match=r"cannot load model '.*broken'"):
        models.load(str(_adapters_in(tmp_path / "broken")))


def test_a_folder_with_a_whole_model_is_no_folder_of_adapters(tmp_path):
    folder = _adapters_in(tmp_path / "both")
    assert models.is_adapters(folder)
    (folder / "config.json").write_text("{}")
    assert not models.is_adapters(folder)
