"""`isentrope train --dry-run` with TRL: the arithmetic by hand, what is refused, what is missing, nothing touched."""

import importlib.util
import json

import pytest
from typer.testing import CliRunner

from isentrope import presets, recipe, sizing, spec
from isentrope.cli import app
from isentrope.sizing import GIB, KNOWN

pytestmark = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs trl")
TEXT = """
objective = "ce_gppo"
[model]
name = "Qwen/Qwen3-8B"
[[task]]
name = "countdown"
weight = 3.0
[[task]]
name = "digitsum"
[trainer]
steps = 40
problems = 100
prompts = 12
group_size = 8
minibatches = 4
passes = 2
micro_batch = 8
max_completion_length = 1000
[trl]
bf16 = true
activation_checkpointing = true
"""


def _plan(path, *arguments):
    return CliRunner().invoke(app, ["train", str(path), "--dry-run", *map(str, arguments)])


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a recipe and plans it; the plan as JSON, and the exit status."""
    monkeypatch.chdir(tmp_path)

    def planned(text, *arguments):
        (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
        found = _plan(tmp_path / "mine.toml", "--json", *arguments)
        assert found.exit_code in (0, 1), found.output
        assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]  # nothing was written
        return json.loads(found.stdout), found.exit_code

    return planned


def test_batches_are_those_of_the_recipe(write):
    plan, status = write(TEXT, "--gpus", 4)
    assert (status, plan["refusals"]) == (0, [])
    counts = plan["batches"]
    assert counts["rows"] == 96  # 12 * 8
    assert counts["update_rows"] == 24  # a fourth
    assert counts["updates_per_rollout"] == 8  # 4 * 2
    assert counts["micro_rows"] == 2  # 8 over 4 GPUs
    assert counts["accumulation"] == 3  # 24 / 8
    assert counts["rollouts"] == 5  # 40 / 8
    assert counts["epochs"] == 0.6  # 5 * 12 / 100
    assert counts["steps_per_epoch"] == pytest.approx(100 / 12 * 8)
    assert counts["tokens_per_rollout"] == 96_000
    assert counts["tokens_per_update"] == 24_000
    assert counts["tokens"] == 480_000


def test_data_are_looked_for_and_shared_out_by_weight(write):
    plan, _ = write(TEXT)
    assert [(task["task"], task["share"], task["present"]) for task in plan["data"]] == [
        ("countdown", 0.75, True),
        ("digitsum", 0.25, True),
    ]
    assert plan["prompt_tokens"] == max(task["prompt"] for task in plan["data"]) < 20


def test_memory_is_that_of_one_of_the_gpus(write):
    shape = KNOWN["Qwen/Qwen3-8B"].architecture
    plan, _ = write(TEXT, "--gpus", 4)
    memory, prompt = plan["memory"], plan["prompt_tokens"]
    train = memory["train"]
    assert train["weights"] == train["gradients"] == -(-shape.parameters // 4) * 4  # a fourth, float32
    assert train["optimizer"] == 2 * train["weights"]
    assert train["gathered"] == 2 * (shape.embedding_parameters + shape.layer_parameters)
    assert train["activations"] == 2 * (1000 + prompt) * shape.activation_bytes(2, recompute=True)
    assert (train["logits"], memory["kept_logits"]) == (0, 2 * (1000 + prompt) * 151_936 * 10)
    rollout = memory["rollout"]
    assert rollout["copy of the weights"] == 2 * shape.parameters
    assert rollout["cache"] == 24 * (1000 + prompt) * shape.cache_bytes(2)
    assert (memory["rows"], memory["room"]) == (24, None)
    assert memory["peak"] == max(sum(train.values()), sum(rollout.values()))


def test_one_gpu_holds_all_of_it_and_full_precision_is_wider(write):
    shape = KNOWN["Qwen/Qwen3-8B"].architecture
    plan, status = write(TEXT.replace("bf16 = true", "bf16 = false"))
    assert plan["memory"]["train"]["weights"] == 4 * shape.parameters
    assert plan["memory"]["train"]["activations"] == 8 * plan["memory"]["tokens"] * shape.activation_bytes(4, True)
    assert plan["memory"]["rollout"]["copy of the weights"] == 0
    assert status == 1
    assert "are more than the 80 GiB of a GPU; more --gpus" in plan["refusals"][0]
    assert write(TEXT, "--gpus", 1, "--gpu-memory", 200)[1] == 0


def test_a_vllm_beside_the_trainer_takes_its_share(write):
    shape = KNOWN["Qwen/Qwen3-8B"].architecture
    text = TEXT + "use_vllm = true\nvllm_gpu_memory_utilization = 0.5\n"
    plan, status = write(text, "--gpus", 4)
    memory = plan["memory"]
    assert memory["rollout"]["vLLM"] == memory["train"]["vLLM"] == 40 * GIB
    assert memory["room"] == (40 * GIB - 2 * shape.parameters) // (memory["tokens"] * shape.cache_bytes(2))
    assert status == 0
    asleep, _ = write(text + "vllm_enable_sleep_mode = true\n", "--gpus", 4)
    assert "vLLM" not in asleep["memory"]["train"]
    served, _ = write(text.replace("use_vllm = true", 'use_vllm = true\nvllm_mode = "server"'), "--gpus", 4)
    assert set(served["memory"]["rollout"]) == {"weights", "optimizer"}
    small, status = write(text.replace("= 0.5", "= 0.1"), "--gpus", 4)
    assert status == 1
    assert "does not hold the weights and one completion at full length" in small["refusals"][0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("micro_batch = 8", "micro_batch = 6", "4 GPUs cannot share the 6 completions of a micro-batch evenly"),
        ("= 1000", "= 50000", "of completion exceed the model's context of 40960"),
        ("bf16 = true", "bf16 = true\nbeta = 0.1", "beta=0.1: the objective's slot `penalties` does this"),
        ("bf16 = true", "bf16 = true\nfp16 = true", "TRL refuses these settings"),
        ("bf16 = true", "bf16 = true\nvllm_max_model_length = 900", "exceed vllm_max_model_length = 900"),
        ('"ce_gppo"', '"ppo"', "needs `value`, which the TRL engine has no source of"),
    ],
)
def test_what_would_fail_is_refused_with_status_1(write, old, new, message):
    plan, status = write(TEXT.replace(old, new), "--gpus", 4)
    assert status == 1
    assert any(message in sentence for sentence in plan["refusals"]), plan["refusals"]


def test_rules_that_cannot_act_are_said(write):
    plan, _ = write(TEXT.replace("minibatches = 4\npasses = 2", "minibatches = 1"))
    assert "does nothing at 1 update per rollout batch" in plan["inert"][0]
    assert write(TEXT)[0]["inert"] == []


def test_adapters_are_said_and_that_memory_is_counted_without_them(tmp_path, write):
    assert write(TEXT)[0]["adapters"] == []
    assert write(TEXT, "--set", "model.lora.rank=8")[0]["adapters"] == ["adapters   rank 8, alpha 32, on all-linear"]
    said = _plan(tmp_path / "mine.toml", "--set", "model.lora.rank=8").stdout
    assert "on all-linear; memory is counted as if all weights were trained" in said


def test_a_model_that_nobody_knows_is_no_refusal(write):
    plan, status = write(TEXT.replace("Qwen/Qwen3-8B", "nobody/knows-this"))
    assert (status, plan["memory"], plan["model"]["known"]) == (0, None, False)
    assert "not in the table of isentrope.sizing" in plan["model"]["source"]


def test_data_that_are_not_here_are_missing_and_no_refusal(write, monkeypatch):
    monkeypatch.delenv("ISENTROPE_DATA", raising=False)
    plan, status = write(TEXT.replace('"digitsum"', '"gsm8k"'), "--gpus", 4)
    assert status == 0
    assert plan["data"][1]["present"] is False
    assert any("gsm8k" in sentence for sentence in plan["missing"])
    assert plan["prompt_tokens"] == 1024  # assumed


def test_texts_and_chats_in_one_mix_are_refused(write, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("data")
    for name in ("train", "test"):
        (folder / f"gsm8k_{name}.jsonl").write_text('{"question": "a", "answer": "#### 1"}\n' * 200)
    monkeypatch.setenv("ISENTROPE_DATA", str(folder))
    plan, status = write(TEXT.replace('"digitsum"', '"gsm8k"'), "--gpus", 4)
    assert status == 1
    assert "one data set cannot hold the chat prompts of gsm8k and the texts of countdown" in plan["refusals"]


def test_nothing_is_asked_of_the_hub(write, monkeypatch):
    import datasets
    import huggingface_hub

    asked = []

    def load(name, *_, **__):
        asked.append((name, huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE))
        raise ValueError("offline")

    monkeypatch.delenv("ISENTROPE_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    plan, _ = write(TEXT.replace('name = "digitsum"', 'name = "math"\noptions = { hub = "some/set" }'))
    assert set(asked) == {("some/set", True, True)}
    assert huggingface_hub.constants.HF_HUB_OFFLINE is False
    assert any("some/set" in sentence for sentence in plan["missing"])


def test_the_plan_reads_like_sentences(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = _plan("default")
    assert found.exit_code == 0, found.output
    for text in (
        "model        embedded: 342 k parameters, float32",
        "objective    ce_gppo: GroupRelative",
        "data         countdown: 100% of the prompts; here",
        "rollout      64 prompts x 8 = 512 completions, at most 12.3 k tokens; 8 updates on each",
        "update       128 completions, at most 3.07 k tokens: 128 at a time on each of 1 GPUs, 1 times",
        "run          480 updates = 60 rollouts, 0.94 epochs of 4096 problems",
        "nothing refuses it",
    ):
        assert text in found.stdout
    assert list(tmp_path.iterdir()) == []


def test_hardware_is_for_plans_of_trl(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["train", "--gpus", "4"])
    assert (found.exit_code, "are for --dry-run" in found.stderr) == (2, True)
    found = _plan("default", "--engine", "verl", "--gpus", 4)
    assert (found.exit_code, "are for engine trl" in found.stderr) == (2, True)


# -- recipes of the package -----------------------------------------------------------------------------

FOR_GPUS = {
    "ce_gppo-1.5b": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 0.5),
    "ce_gppo-7b": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 0.75),
    "repo_r-aime": ("Qwen/Qwen3-8B", None),
    "adapo-aime": ("Qwen/Qwen3-8B", None),
    "rloo_fp16-aime": ("Qwen/Qwen3-8B", None),
    "repo_r-appworld": ("Qwen/Qwen3-8B", None),
    "adapo-appworld": ("Qwen/Qwen3-8B", None),
    "rloo_fp16-appworld": ("Qwen/Qwen3-8B", None),
    "gepo-mix": ("Qwen/Qwen3-8B", None),
}
OF_TRL = [name for name in recipe.names() if recipe.load(name).engine == "trl"]


@pytest.mark.parametrize("name", OF_TRL)
def test_every_recipe_of_the_package_passes_its_plan(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ISENTROPE_DATA", raising=False)
    gpus = ["--gpus", 8] if name in FOR_GPUS else []
    found = _plan(name, "--json", *gpus)
    assert found.exit_code == 0, found.output
    plan = json.loads(found.stdout)
    assert plan["model"]["known"]
    assert plan["inert"] == []
    assert 0 < plan["memory"]["peak"] < 80 * GIB
    if name in FOR_GPUS:
        assert plan["memory"]["room"] >= 1
        assert plan["model"]["name"] == FOR_GPUS[name][0]
        assert plan["model"]["parameters"] == sizing.KNOWN[FOR_GPUS[name][0]].architecture.parameters


@pytest.mark.parametrize("name", [name for name, (_, keep) in FOR_GPUS.items() if keep])
def test_the_recipes_of_ce_gppo_have_the_papers_numbers(name):
    found = recipe.load(name)
    loop = found.trainer
    assert (loop.learning_rate, loop.group_size, loop.max_completion_length) == (1e-6, 8, 16_384)  # sec. 4.1
    assert loop.steps // loop.updates_per_rollout == 1000  # sec. 4.1
    assert (loop.prompts, loop.prompts // loop.minibatches, loop.warmup_steps) == (128, 16, 80)  # the public script
    assert found.objective["surrogate"] == {
        "low": 0.2,
        "high": 0.2,
        "keep_low": FOR_GPUS[name][1],
        "keep_high": 1.0,
    }


def test_the_recipe_of_gepo_is_the_preset_on_a_mix():
    found = recipe.load("gepo-mix")
    assert spec.difference(presets.gepo, spec.load(found.objective)) == {}
    assert [task.name for task in found.task] == ["math", "science", "code", "instructions"]


def test_what_a_world_cannot_have_is_refused_in_the_plan(write):
    found, status = write(TEXT.replace('"digitsum"', '"appworld"'), "--gpus", 4)
    assert status == 1
    assert any("cannot be mixed with others" in sentence for sentence in found["refusals"])


def test_a_baseline_is_the_same_run_with_another_objective(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plans = [
        json.loads(_plan("ce_gppo-7b", "--json", "--gpus", 8, *more).stdout) for more in ([], ["--objective", "dapo"])
    ]
    assert plans[1]["objective"].startswith("dapo: GroupRelative")
    assert plans[0]["batches"] == plans[1]["batches"]
    assert plans[0]["memory"] == plans[1]["memory"]
