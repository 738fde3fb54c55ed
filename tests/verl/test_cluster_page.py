"""The command of docs/cluster.md: every key is one of verl's, and our trainer takes the job as it stands."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from isentrope import presets
from isentrope.engines.verl_keys import objective_of, trainer_mode
from isentrope.engines.verl_options import refusals

pytest.importorskip("verl", reason="needs verl 0.9")
hydra = pytest.importorskip("hydra")


PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def config() -> Any:
    """verl's configuration with the page's overrides; a key that verl does not have would raise here."""
    (job,) = re.findall(r"^```bash\n(python -m verl\.trainer\.main_ppo.*?)^```$", PAGE.read_text(), re.M | re.S)
    words = shlex.split(job.replace("\\\n", " "))
    assert words[:3] == ["python", "-m", "verl.trainer.main_ppo"]
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return hydra.compose("ppo_trainer", overrides=words[3:])


def test_the_two_keys_name_the_trainer_and_the_objective(config: Any) -> None:
    assert trainer_mode(config) == "isentrope"
    assert objective_of(config) == presets.ce_gppo


def test_our_trainer_refuses_nothing_of_it(config: Any) -> None:
    assert refusals(config, objective_of(config)) == []


def test_the_batch_divides_among_the_ranks(config: Any) -> None:
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    assert config.data.train_batch_size % actor.ppo_mini_batch_size == 0
    assert actor.ppo_mini_batch_size * rollout.n % ranks == 0
    assert actor.ppo_max_token_len_per_gpu >= config.data.max_prompt_length + config.data.max_response_length


def test_other_keys_that_the_page_names_exist(config: Any) -> None:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert rollout.gpu_memory_utilization == 0.5
    assert rollout.free_cache_engine is True
    assert actor.ulysses_sequence_parallel_size == 1
    assert (actor.fsdp_config.param_offload, actor.fsdp_config.optimizer_offload) == (False, False)
    assert actor.fsdp_config.model_dtype == "fp32"
