"""What verl finds registered, how an objective is named in its configuration, and what the hooks compute."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

pytest.importorskip("verl", reason="needs the environment of verl")

import cloudpickle
import numpy as np
import torch
from hydra.errors import InstantiationException
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import Metric
from verl.workers.config import FSDPActorConfig

from isentrope import Objective, presets, spec
from isentrope.aggregate import PromptMean, Totals
from isentrope.engines import verl as plugin
from isentrope.engines import verl_hook, verl_loss
from isentrope.engines.verl_keys import ConfigError, objective_of
from isentrope.engines.verl_loss import ObjectiveLoss, PluginError
from isentrope.engines.verl_placement import hook_refusals
from isentrope.engines.verl_prepare import fingerprint
from isentrope.errors import ColumnError, IsentropeError
from isentrope.surrogate import ClipCov, KLCov

from .actor import configuration

pytestmark = pytest.mark.engine
ROWS, TOKENS = 6, 5


def in_a_process(code: str, **environment: str) -> str:
    """What a fresh process prints; its errors if it fails."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    kept = {name: x for name, x in os.environ.items() if not name.startswith("VERL_")}
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, timeout=100)
    return done.stdout.strip() or done.stderr


# -- registration


@pytest.mark.slow
def test_verl_alone_brings_the_names_once_it_imports_what_holds_them():
    code = (
        "import sys, verl; late = ('verl.trainer.ppo.core_algos', 'isentrope.engines.verl_trainer');"
        "before = [m for m in late if m in sys.modules];"
        "from verl.trainer.ppo import core_algos as c; from verl.trainer.ppo.v1 import get_trainer_cls as g;"
        "print(before, 'isentrope/gepo' in c.POLICY_LOSS_REGISTRY, 'isentrope' in c.ADV_ESTIMATOR_REGISTRY,"
        " [g(n).base_mode for n in ('isentrope', 'isentrope_colocate_async', 'isentrope_separate_async')])"
    )
    found = in_a_process(code).splitlines()[-1]
    assert found == "[] True True ['sync', 'colocate_async', 'separate_async']"


@pytest.mark.slow
def test_names_are_unknown_to_verl_where_the_plugin_is_switched_off():
    code = "from verl.trainer.ppo.v1 import get_trainer_cls; get_trainer_cls('isentrope')"
    assert "Unknown trainer 'isentrope'" in in_a_process(code, VERL_USE_EXTERNAL_PLUGINS="none")


@pytest.mark.slow
def test_a_plugin_that_cannot_load_says_why_although_verl_goes_on():
    found = in_a_process("import sys; sys.modules['wrapt'] = None; import verl")
    assert "isentrope's plug-in for verl cannot be loaded" in found
    assert "import of wrapt halted" in found


@pytest.mark.slow
def test_a_plugin_that_comes_late_registers_at_once():
    code = (
        "from verl.trainer.ppo import core_algos; import isentrope.engines.verl;"
        "print('isentrope' in core_algos.POLICY_LOSS_REGISTRY)"
    )
    assert in_a_process(code, VERL_USE_EXTERNAL_PLUGINS="none").splitlines()[-1] == "True"


def test_the_module_has_what_the_manual_names_and_nothing_else():
    assert plugin.IsentropeTrainer.base_mode == "sync"
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        plugin.Trainer  # noqa: B018


# -- naming the objective

LOSS = "actor_rollout_ref__actor__policy_loss"
OURS = {f"{LOSS}___target_": "isentrope.engines.verl.PolicyLossConfig"}


def settings(**keys: Any) -> Any:
    return configuration("", **({"trainer__v1__isentrope": {}} | keys))


@pytest.mark.parametrize(
    "keys",
    [
        {"trainer__v1__isentrope": {"objective": "gepo"}},
        {**OURS, f"{LOSS}__objective": "gepo", f"{LOSS}__loss_mode": "isentrope"},
        {**OURS, f"{LOSS}__objective": spec.dumps(presets.gepo)},
        {f"{LOSS}__loss_mode": "isentrope/gepo"},
        {"algorithm__adv_estimator": "isentrope/gepo", f"{LOSS}__loss_mode": "isentrope/gepo"},
    ],
)
def test_an_objective_is_named_by_any_of_the_keys(keys):
    assert objective_of(settings(**keys)) == presets.gepo


def test_no_name_and_two_names_are_errors_that_list_the_keys():
    with pytest.raises(ConfigError, match=r"no objective is named: set \+trainer.v1.isentrope.objective=NAME"):
        objective_of(settings())
    with pytest.raises(ConfigError, match=r"two objectives are named: .*loss_mode='grpo'.*adv_estimator='gepo'"):
        objective_of(settings(**{f"{LOSS}__loss_mode": "isentrope/grpo", "algorithm__adv_estimator": "isentrope/gepo"}))


def test_a_rule_of_a_file_serves(tmp_path):
    (tmp_path / "mine.py").write_text("from isentrope import presets\nrule = presets.dr_grpo\n")
    named = f"{tmp_path}/mine.py:rule"
    assert objective_of(settings(trainer__v1__isentrope={"objective": named})) == presets.dr_grpo


def test_verls_configuration_of_the_loss_takes_our_key_and_refuses_a_wrong_name(monkeypatch):
    monkeypatch.delenv("WG_BACKEND", raising=False)
    policy_loss = settings(**OURS, **{f"{LOSS}__objective": "ce_gppo"}).actor_rollout_ref.actor.policy_loss
    made = omega_conf_to_dataclass(policy_loss)
    assert isinstance(made, plugin.PolicyLossConfig)
    assert (made.objective, made.clip_cov_lb, made.driver) == ("ce_gppo", 1.0, False)
    policy_loss.objective = "ce_gpo"
    with pytest.raises(InstantiationException, match="did you mean 'ce_gppo'"):
        omega_conf_to_dataclass(policy_loss)


def test_a_worker_of_verls_own_trainer_refuses_what_the_loss_alone_cannot_do(monkeypatch):
    monkeypatch.setenv("WG_BACKEND", "ray")
    with pytest.raises(ConfigError, match=r"shaping.0.zeta keep a state on the driver: set trainer.v1.trainer_mode"):
        plugin.PolicyLossConfig(objective="repo_d")
    assert plugin.PolicyLossConfig(objective="repo_d", driver=True).driver
    assert plugin.PolicyLossConfig(loss_mode="isentrope/ce_gppo").loss_mode == "isentrope/ce_gppo"


# -- the hooks of verl's own trainers


def rows(seed: int = 0) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(ROWS, TOKENS, generator=g) < 0.7
    old = -2 * torch.rand(ROWS, TOKENS, generator=g)
    return {
        "old_log_prob": old,
        "log_prob": old + 0.3 * torch.randn(ROWS, TOKENS, generator=g),
        "advantages": torch.randn(ROWS, 1, generator=g).expand(ROWS, TOKENS) * mask,
        "response_mask": mask,
    }


def actor(mask: torch.Tensor, ranks: int = 1, **settings: Any) -> Any:
    made = FSDPActorConfig(strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=2, **settings)
    totals = {"batch_num_tokens": int(mask.sum()), "global_batch_size": ROWS}
    made.global_batch_info.update(totals, dp_size=ranks, loss_scale_factor=made.loss_scale_factor)
    return made


def gradient(name: str, given: dict[str, Any], parts: list[list[int]], ranks: int = 1, **options: Any) -> torch.Tensor:
    """What verl's engine makes of it: the gradients of all micro-batches, averaged over ranks."""
    found = torch.zeros_like(given["log_prob"])
    config = actor(given["response_mask"], ranks, **options)
    for part in parts:
        x = {key: value[part].clone() for key, value in given.items()}
        x["log_prob"].requires_grad_()
        loss, _ = verl_hook.policy_loss(**x, loss_agg_mode="token-mean", config=config, name=name)
        loss.backward()
        found[part] = x["log_prob"].grad / ranks
    return found


HOSTED = ["grpo", "ce_gppo", "gspo", "sapo", "cispo", "gmpo", "rloo", "reinforce_pp", "nsr"]


@pytest.mark.parametrize("name", HOSTED)
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loss_hook_is_the_objective_for_any_split(name, ranks):
    given = rows()
    whole = gradient(name, given, [list(range(ROWS))])
    parts = gradient(name, given, [[4, 0], [1], [5, 3, 2]], ranks)
    torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-9)
    mask = given["response_mask"]
    columns = {"mask": mask, "selected": mask, "counted": mask, "excluded": mask & ~mask, "logp": given["log_prob"]}
    columns |= {"old_logp": given["old_log_prob"], "advantage": given["advantages"]}
    objective = spec.load(name)
    weights = objective.weights(columns, Totals(float(mask.sum()), ROWS, 0))
    torch.testing.assert_close(-whole, weights, rtol=1e-6, atol=1e-9)
    assert weights.abs().max() > 1e-3


def test_what_stands_behind_the_mask_does_not_matter():
    given = rows()
    dirty = {
        key: x if x.dtype == torch.bool else x.masked_fill(~given["response_mask"], torch.nan)
        for key, x in given.items()
    }
    for name in HOSTED:
        clean = gradient(name, given, [list(range(ROWS))])
        torch.testing.assert_close(gradient(name, dirty, [list(range(ROWS))]), clean, rtol=0, atol=0)


def test_verls_sampler_weights_multiply_once():
    given, weights = rows(), torch.full((ROWS, TOKENS), 0.5)
    twice = gradient("grpo", given | {"rollout_is_weights": weights}, [list(range(ROWS))])
    torch.testing.assert_close(2 * twice, gradient("grpo", given, [list(range(ROWS))]))
    with pytest.raises(ConfigError, match="corrected twice"):
        verl_hook._corrected(replace(presets.grpo, correction=verl_hook.VerlCorrection()))


def test_dr_grpo_takes_its_length_from_verls_loss_scale_factor():
    given = rows()
    found = gradient("dr_grpo", given, [[0, 1, 2], [3, 4, 5]], loss_scale_factor=50)
    twice = gradient("dr_grpo", given, [[0, 1, 2], [3, 4, 5]], loss_scale_factor=25)
    torch.testing.assert_close(2 * found, twice)
    with pytest.raises(ConfigError, match=r"ConstantLength needs a length: set actor.loss_scale_factor"):
        gradient("dr_grpo", given, [[0]])


def estimate(name: str, **changes: Any) -> torch.Tensor:
    """The estimator on four prompts of three, as verl calls it, and two of its pad rows."""
    g = torch.Generator().manual_seed(0)
    rewards, mask = torch.zeros(14, TOKENS), torch.rand(14, TOKENS, generator=g) < 0.7
    rewards[:12, 0] = torch.rand(12, generator=g)
    mask[12:] = False
    index = np.array([f"u{i % 4}" for i in range(12)] + ["pad1", "pad2"], dtype=object)
    given = {"token_level_rewards": rewards, "response_mask": mask.long(), "index": index, "config": None} | changes
    found, returns = verl_hook.advantages(**given, name=name)
    assert torch.equal(found, returns)
    return found


def test_the_estimator_is_the_advantage_slot_and_leaves_pad_rows_out():
    found = estimate("grpo")
    assert found[12:].abs().max() == 0
    g = torch.Generator().manual_seed(0)
    mask, reward = torch.rand(14, TOKENS, generator=g) < 0.7, torch.rand(12, generator=g)
    batch = {"reward": reward, "group": torch.arange(12) % 4, "mask": mask[:12], "old_logp": torch.zeros(12, TOKENS)}
    torch.testing.assert_close(found[:12], presets.grpo.prepare(batch)[0]["advantage"])
    by_batch = estimate('preset = "grpo"\n[advantage]\nscale = "batch"')[:12, 0][mask[:12, 0]]
    deviation = (reward - reward.view(3, 4).mean(0).repeat(3)) / (reward.std() + 1e-6)
    torch.testing.assert_close(by_batch, deviation[mask[:12, 0]])  # a pad row's reward of 0 would enter the deviation
    whitened = estimate("reinforce_pp")
    assert float(whitened[:12][mask[:12]].mean()) == pytest.approx(0, abs=1e-6)


def test_the_estimator_finds_its_objective_at_the_root_of_the_configuration():
    config = settings(**{f"{LOSS}__loss_mode": "isentrope/nsr"}, trainer__v1__trainer_mode="sync")
    assert set(estimate("", config=config.algorithm).unique().tolist()) <= {0.0, -1.0}
    with pytest.raises(ConfigError, match=r"needs the uid of each row"):
        estimate("grpo", index=None)


@pytest.mark.parametrize(
    ("objective", "sentence"),
    [
        ("repo_d", "controllers at shaping.0.zeta keep a state on the driver"),
        ("adapo", "controllers at surrogate.high"),
        ("dapo", "select.0: VaryingReward drops rows or tokens"),
        ("kl_cov", 'surrogate: KLCov takes statistics of the whole batch .*scope="micro_batch"'),
        ("clip_cov", "surrogate: ClipCov takes statistics of the whole batch"),
        ("entropy_bonus", r"column `entropy` \(exact softmax entropy of the current policy, nats\) is missing"),
        ("erc", "column `old_entropy`"),
        ("ppo", "column `value`"),
        ("dr_grpo", "ConstantLength needs a length"),
        (replace(presets.grpo, aggregate=PromptMean()), "aggregate: PromptMean takes statistics"),
    ],
)
def test_what_the_hooks_cannot_host_is_named(objective, sentence):
    found = hook_refusals(spec.load(objective))
    assert any(re.search(sentence, line) for line in found), found
    if isinstance(objective, str) and objective != "dr_grpo":
        with pytest.raises(ConfigError, match=sentence):
            gradient(objective, rows(), [[0]])


@dataclass(frozen=True)
class Particular:
    """A rule of a user's whose `prepare` wants more than made-up numbers."""

    def prepare(self, *, old_logp: torch.Tensor) -> dict[str, torch.Tensor]:
        raise ValueError(f"{len(old_logp)} rows are too few")

    def __call__(self, log_ratio: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        return log_ratio * advantage


def test_a_rule_whose_prepare_cannot_be_tried_counts_as_one_that_prepares():
    (found,) = hook_refusals(replace(presets.grpo, surrogate=Particular()))
    assert "surrogate: Particular takes statistics of the whole batch" in found


def test_what_the_hooks_can_host_is_taken():
    assert [name for name in HOSTED if hook_refusals(spec.load(name))] == []
    assert hook_refusals(replace(presets.kl_cov, surrogate=KLCov(scope="micro_batch"))) == []
    assert hook_refusals(replace(presets.clip_cov, surrogate=ClipCov(scope="micro_batch"))) == []
    assert hook_refusals(presets.dr_grpo, loss_scale_factor=100) == []


# -- the loss of our trainer, as an engine calls it


def message(**changes: Any) -> str:
    return json.dumps({"state": {}, "totals": [9.0, 3.0, 1.0], "tasks": [], "rows": {}} | changes)


def data(sent: str | None, **fields: torch.Tensor) -> TensorDict:
    """A micro-batch of Megatron's or FSDP's: three rows of 2, 3 and 4 response tokens after prompts of 2."""
    lengths = (2, 3, 4)

    def nested(make: Any) -> torch.Tensor:
        return torch.nested.as_nested_tensor([make(n) for n in lengths], layout=torch.jagged)

    made = {
        "prompts": nested(lambda n: torch.ones(2, dtype=torch.long)),
        "responses": nested(lambda n: torch.ones(n, dtype=torch.long)),
        "response_mask": nested(lambda n: torch.ones(n, dtype=torch.long)),
        "old_log_probs": nested(lambda n: torch.full((n,), -1.0)),
        "advantages": nested(lambda n: torch.arange(1.0, n + 1)),
    }
    found = TensorDict(made | fields, batch_size=3)
    tu.assign_non_tensor(found, dp_size=2, **({} if sent is None else {"isentrope": sent}))
    return found


def output(value: float = -0.9, **extra: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor]:
    """Log-probabilities of whole sequences, shifted as verl's engines shift them."""
    leaf = torch.full((15,), value, requires_grad=True)
    offsets = torch.tensor([0, 4, 9, 15])
    return {"log_probs": torch.nested.nested_tensor_from_jagged(leaf * 1.0, offsets=offsets)} | extra, leaf


def test_an_engine_calls_it_by_keyword_and_gets_a_scalar_with_a_graph_and_metrics():
    model_output, leaf = output()
    loss, found = ObjectiveLoss.of(presets.ce_gppo)(model_output=model_output, data=data(message()), dp_group=None)
    loss.backward()
    ratio = torch.tensor(0.1).exp()
    expected = -ratio * torch.tensor([0, 1, 2, 0, 0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 0.0]).roll(0) / 9 * 2
    # token t of a response is predicted at position prompt + t - 1
    torch.testing.assert_close(leaf.grad, expected)
    assert all(isinstance(x, Metric) for x in found.values())
    merged: dict[str, Any] = {f"actor/{name}": x.aggregate() for name, x in found.items()}
    assert verl_loss.pooled(merged, "actor/")["ratio/mean"] == pytest.approx(float(ratio))
    assert list(merged) == ["actor/pg_loss"]


def test_what_stands_behind_the_mask_does_not_reach_the_loss_of_our_trainer():
    def nested(*rows: list[float]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)

    nan = float("nan")
    fields = {"response_mask": nested([1, 0], [1, 1, 0], [0, 0, 1, 1]).long()}
    clean = fields | {"old_log_probs": nested([-1.0, 0.0], [-1.0, -1.0, 0.0], [0.0, 0.0, -1.0, -1.0])}
    dirty = fields | {"old_log_probs": nested([-1.0, nan], [-1.0, -1.0, nan], [nan, -torch.inf, -1.0, -1.0])}
    dirty |= {"rollout_log_probs": nested([-1.0, nan], [-1.0, -1.0, nan], [nan, nan, -1.0, -1.0])}
    for name in HOSTED:
        found = []
        for given in (clean, dirty):
            model_output, leaf = output()
            loss, metrics = ObjectiveLoss.of(spec.load(name))(model_output=model_output, data=data(message(), **given))
            loss.backward()
            assert all(x == x for one in metrics.values() for x in one.values)
            found.append((loss.detach(), leaf.grad))
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_a_batch_without_a_message_of_our_trainer_is_an_error():
    with pytest.raises(PluginError, match="carries no state and totals of ours"):
        ObjectiveLoss.of(presets.grpo)(model_output=output()[0], data=data(None))


def test_the_state_travels_with_the_batch():
    loss = ObjectiveLoss.of(presets.adapo)
    low = {"surrogate.high.value": 0.05, "surrogate.high.target": 1.0}
    at = partial(loss, dp_group=None)
    tight = at(model_output=output(-0.8)[0], data=data(message(state=low)))[0]
    wide = at(model_output=output(-0.8)[0], data=data(message(state=low | {"surrogate.high.value": 0.5})))[0]
    assert float(tight.detach()) / 1.05 == pytest.approx(float(wide.detach()) / float(torch.tensor(0.2).exp()))


def test_the_entropy_has_a_gradient_where_a_rule_uses_it_and_no_graph_where_none_does():
    offsets = torch.tensor([0, 4, 9, 15])
    for objective, has_gradient in (("entropy_bonus", True), ("grpo", False)):
        leaf = torch.ones(15, requires_grad=True)
        entropy = torch.nested.nested_tensor_from_jagged(leaf * 1.0, offsets=offsets)
        given = output(entropy=entropy)[0]
        loss, found = ObjectiveLoss.of(spec.load(objective))(model_output=given, data=data(message()))
        loss.backward()
        assert (leaf.grad is not None and bool(leaf.grad.any())) is has_gradient
        assert found["isentrope/entropy/current_exact/sum"].aggregate() == 9.0


def test_columns_a_value_a_row_keep_their_shape():
    told = verl_loss.Told(presets.dr_grpo, Totals(9, 3, 1), [], {"isentrope/length_limit": 1, "isentrope/pair": 2})
    fields = {"isentrope/length_limit": torch.full((3,), 7.0), "isentrope/pair": torch.ones(3, 2)}
    found = verl_loss._rows(told, output()[0], data(message(), **fields))
    assert found["length_limit"].tolist() == [7.0] * 3
    assert found["pair"].shape == (3, 2)
    assert verl_loss._of_rows(torch.ones(3, 1), 1).shape == (3,)


def test_excluded_tokens_leave_the_mask_and_selection():
    excluded = torch.nested.as_nested_tensor([torch.arange(n) == 0 for n in (2, 3, 4)], layout=torch.jagged)
    told = verl_loss.Told(presets.grpo, Totals(9, 3, 1), [], {})
    found = verl_loss._rows(told, output()[0], data(message(), **{"isentrope/excluded": excluded}))
    assert found["mask"].sum(-1).tolist() == [1, 2, 3]
    assert not (found["selected"] & found["excluded"]).any()


# -- the same library and rules on every node


def test_a_worker_reads_the_objective_and_compares_fingerprints():
    sent = ObjectiveLoss.of(presets.gepo)
    assert cloudpickle.loads(cloudpickle.dumps(sent))._objective == presets.gepo
    sent.expected = "0123456789abcdef"
    with pytest.raises(PluginError, match="install the same isentrope on every node"):
        cloudpickle.loads(cloudpickle.dumps(sent))


def test_the_fingerprint_covers_objective_and_the_files_of_its_rules(tmp_path):
    file = tmp_path / "rules.py"
    text = (
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Mine:\n"
        "    def __call__(self, *, reward):\n        return reward\n"
    )
    file.write_text(text)
    mine = spec.load(f'preset = "grpo"\n[advantage]\nrule = "{file}:Mine"')
    first = fingerprint(mine)
    file.write_text(text.replace("return reward", "return 2 * reward"))
    assert fingerprint(mine) != first
    assert fingerprint(presets.grpo) != fingerprint(presets.dapo)
    assert fingerprint(presets.grpo) == fingerprint(spec.load(spec.dumps(presets.grpo)))


def test_the_errors_are_the_users_to_act_on():
    assert issubclass(ConfigError, IsentropeError)
    assert issubclass(PluginError, IsentropeError)
    with pytest.raises(ColumnError):
        Objective.prepare(presets.grpo, {"mask": torch.ones(1, 1, dtype=torch.bool)})
