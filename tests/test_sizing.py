"""Sizes against the models themselves: built on the meta device from the same numbers, or small and run."""

import json
from dataclasses import asdict, replace
from importlib import resources

import pytest
import torch

from isentrope import sizing
from isentrope.errors import IsentropeError
from isentrope.sizing import KNOWN, Architecture, Step, find, of_config, rollout_memory

SMALL = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def _config(kind, numbers):
    transformers = pytest.importorskip("transformers")
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind]
    return getattr(transformers, f"{name}Config")(**numbers, attn_implementation="sdpa")


def _model(config, dtype=torch.float32, device="cpu"):
    from transformers import AutoModelForCausalLM

    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _numbers(shape):
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": shape.context,
    }


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_the_table_counts_the_parameters_of_the_models(name):
    shape = KNOWN[name].architecture
    kind = "qwen3" if shape.qk_norm else "qwen2" if shape.attention_bias else "llama"
    model = _model(_config(kind, _numbers(shape)), device="meta")
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    layer = model.model.layers[0]
    assert shape.layer_parameters == sum(parameter.numel() for parameter in layer.parameters())


def test_the_table_has_the_sizes_that_the_models_are_named_after():
    billions = {name: KNOWN[name].architecture.parameters / 1e9 for name in KNOWN}
    assert billions["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"] == pytest.approx(1.777, abs=1e-3)
    assert billions["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"] == pytest.approx(7.616, abs=1e-3)
    assert billions["Qwen/Qwen3-8B"] == pytest.approx(8.191, abs=1e-3)
    assert billions["Qwen/Qwen3-14B"] == pytest.approx(14.768, abs=1e-3)
    assert billions["Qwen/Qwen3-32B"] == pytest.approx(32.762, abs=1e-3)
    assert billions["Qwen/Qwen2.5-32B"] == pytest.approx(32.764, abs=1e-3)
    assert billions["smollm2"] == pytest.approx(0.1345, abs=1e-4)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_configuration_gives_the_parameters_of_its_model(kind, tied, bias):
    numbers = SMALL | {"tie_word_embeddings": tied}
    if kind in ("llama", "qwen3"):
        numbers |= {"attention_bias": bias, "head_dim": 32}
    config = _config(kind, numbers)
    shape = of_config(config.to_dict())
    assert shape.parameters == sum(parameter.numel() for parameter in _model(config, device="meta").parameters())


def _kept(model, ids):
    """Bytes that the forward pass of the layers keeps for the backward pass, parameters aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model.model(input_ids=ids, use_cache=False).last_hidden_state
    del out
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_further_layer_keeps_as_many_bytes_as_counted(kind, dtype, recompute):
    found = {}
    for layers in (1, 2):
        extra = {"head_dim": 32} if kind != "qwen2" else {}
        config = _config(kind, SMALL | extra | {"num_hidden_layers": layers})
        model = _model(config, dtype).train()
        if recompute:
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        found[layers] = _kept(model, torch.arange(150).reshape(3, 50) % 100)
        shape = of_config(config.to_dict())
    expected = [replace(shape, layers=n).activation_bytes(dtype.itemsize, recompute) for n in (1, 2)]
    assert found[2] - found[1] == 150 * (expected[1] - expected[0])
    if not recompute:  # one norm's input, its scale and the positions come on top of the layers
        assert 0 < found[2] - 150 * expected[1] < 150 * 16 * shape.hidden


def test_a_token_of_the_cache_takes_the_bytes_counted():
    config = _config("qwen3", SMALL | {"head_dim": 32})
    model = _model(config, torch.bfloat16).eval()
    with torch.no_grad():
        cache = model(torch.zeros(3, 20, dtype=torch.long), use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    shape = of_config(config.to_dict())
    assert held == 60 * shape.cache_bytes(2) == rollout_memory(shape, 3, 20)["cache"]


def test_a_step_of_the_embedded_model_holds_what_its_tensors_hold():
    pytest.importorskip("transformers")
    from isentrope import models

    model, _ = models.load("embedded")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    memory = Step(find("embedded").architecture, rows=2, tokens=24, compute_bytes=4).memory()
    assert memory["weights"] == sum(p.nbytes for p in model.parameters()) == 4 * 341_952
    assert memory["gradients"] == sum(p.grad.nbytes for p in model.parameters())
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert memory["optimizer"] == sum(moment.nbytes for moment in moments)
    assert (memory["gathered"], memory["logits"]) == (0, 0)


def test_sharding_divides_the_state_and_gathers_a_layer():
    shape = KNOWN["Qwen/Qwen3-8B"].architecture
    whole = Step(shape, rows=1, tokens=1000, gpus=8, sharded=False).memory()
    shared = Step(shape, rows=1, tokens=1000, gpus=8).memory()
    assert whole["weights"] == 4 * shape.parameters
    for part in ("weights", "gradients", "optimizer"):
        assert shared[part] * 8 == pytest.approx(whole[part], rel=1e-8)
    assert shared["gathered"] == 2 * (shape.embedding_parameters + shape.layer_parameters)
    assert whole["gathered"] == 2 * shape.layer_parameters  # the copy that autocast makes
    assert shared["activations"] == whole["activations"] == 1000 * shape.activation_bytes(2, recompute=True)


def test_kept_logits_are_ten_bytes_a_token_and_vocabulary_entry():
    shape = KNOWN["Qwen/Qwen3-8B"].architecture
    step = Step(shape, rows=2, tokens=1024, full_logits=True)
    assert step.memory()["logits"] == 2048 * 151_936 * 10
    assert replace(step, full_logits=False).memory()["logits"] == 0


def test_tensor_parallelism_shares_out_weights_and_cache():
    shape = KNOWN["Qwen/Qwen3-8B"].architecture
    assert rollout_memory(shape, 4, 1000) == {"weights": 2 * shape.parameters, "cache": 4000 * 147_456}
    assert rollout_memory(shape, 4, 1000, weights_over=2)["cache"] == 2000 * 147_456


def test_a_model_is_found_by_its_name_or_its_folder(tmp_path):
    assert find("embedded").architecture.parameters == 341_952
    text = resources.files("isentrope").joinpath("embedded", "config.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert find(str(tmp_path)).architecture == find("embedded").architecture
    assert find(str(tmp_path)).source == str(tmp_path / "config.json")
    assert find("Qwen/Qwen3-8B").architecture.parameters == 8_190_735_360
    assert find("nobody/knows-this") is None
    assert find("a name, no id") is None


def test_a_configuration_in_the_hub_cache_is_found(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL | {"model_type": "qwen2"}), encoding="utf-8")
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: str(path) if name == "some/model" else None)
    assert find("some/model").architecture.vocabulary == 100
    assert find("some/model").architecture.attention_bias


def test_what_cannot_be_sized_says_why(tmp_path):
    with pytest.raises(IsentropeError, match="model_type 'mamba' is none of llama"):
        of_config({"model_type": "mamba"})
    with pytest.raises(IsentropeError, match="has no 'num_hidden_layers'"):
        of_config({key: value for key, value in SMALL.items() if key != "num_hidden_layers"} | {"model_type": "llama"})
    with pytest.raises(IsentropeError, match="cannot read"):
        find(str(tmp_path))
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(IsentropeError, match="cannot read"):
        find(str(tmp_path))


@pytest.mark.parametrize(("field", "value"), [("hidden", 0), ("layers", -1), ("kv_heads", 3)])
def test_impossible_numbers_are_refused(field, value):
    numbers = asdict(KNOWN["Qwen/Qwen3-8B"].architecture) | {field: value}
    with pytest.raises(ValueError, match=f"Architecture.{field} is {value}"):
        Architecture(**numbers)


def test_the_units_are_what_they_say():
    assert sizing.GIB == 1024**3
    assert sizing.BYTES == {"float32": 4, "bfloat16": 2, "float16": 2}
