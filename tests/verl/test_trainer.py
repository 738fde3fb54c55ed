"""Our trainer's own methods, without workers: columns, pad rows, sessions, corrections, checkpoints, refusals."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl", reason="needs the environment of verl")

import torch
from transfer_queue import KVBatchMeta

from isentrope import presets, spec
from isentrope.control import EntropyGain
from isentrope.correction import TruncatedImportance
from isentrope.engines import verl_columns, verl_options, verl_state
from isentrope.engines.state import CheckpointError
from isentrope.engines.verl import refusals, state_of
from isentrope.engines.verl_hook import VerlCorrection
from isentrope.engines.verl_keys import ConfigError
from isentrope.engines.verl_prepare import MESSAGE
from isentrope.engines.verl_state import STATE_FILE, Progress
from isentrope.errors import IsentropeError, IsentropeWarning
from isentrope.rollout import Rollout
from isentrope.shaping import GroupEntropyGate

from .actor import PROMPTS, SAMPLES, Store, configuration, rollout_rows, trainer, transfer_queue

pytestmark = pytest.mark.engine
TWO_UPDATES = {"actor_rollout_ref__actor__ppo_mini_batch_size": 2}


def made(objective: str, **keys: Any) -> Any:
    """A trainer that stands before its first step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IsentropeWarning)
        return trainer(configuration(objective, **keys))


def rows_with(seed: int = 0, **options: Any) -> dict[str, dict[str, Any]]:
    """Rows after verl's passes over them: old log-probabilities and entropies, a reference's, a critic's values."""
    rows = rollout_rows(seed, **options)
    g = torch.Generator().manual_seed(seed + 100)
    for row in rows.values():
        n = len(row["responses"])
        row["old_log_probs"] = -2 * torch.rand(n, generator=g)
        row["entropy"] = torch.rand(n, generator=g) + 0.5
        row["ref_log_prob"] = -2 * torch.rand(n, generator=g)
        row["values"] = torch.rand(n, generator=g)
        row["rollout_log_probs"] = row["old_log_probs"] - 0.3 * torch.rand(n, generator=g)
    return rows


def advantages(
    of: Any, rows: dict[str, dict[str, Any]], without: tuple[str, ...] = ()
) -> tuple[Store, dict[str, Any], KVBatchMeta]:
    """Let a trainer compute the advantages of rows. Returns the store, what was logged, and the batch."""
    store = Store({key: {n: x for n, x in row.items() if n not in without} for key, row in rows.items()}, {})
    store.tags = {key: {} for key in rows}
    batch = KVBatchMeta(keys=list(rows), tags=[{} for _ in rows], partition_id="train")
    logged: dict[str, Any] = {}
    with transfer_queue(store):
        return store, logged, of._compute_advantage(batch, logged)


def column(store: Store, name: str, keys: Any = None) -> torch.Tensor:
    """A field of the store, padded."""
    values = [store.rows[key][name] for key in keys or store.rows]
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True) if values[0].ndim else torch.stack(values)


def told(of: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(of._message)
    return found


# -- columns


def test_the_driver_computes_what_the_objective_prepares_of_the_same_columns():
    rows = rows_with()
    store, _, _ = advantages(made("gepo"), rows)
    mask = column(store, "response_mask").bool()
    batch = {
        "reward": column(store, "rm_scores").sum(-1),
        "group": torch.arange(len(rows)) // SAMPLES,
        "mask": mask,
        "old_logp": column(store, "old_log_probs"),
    }
    prepared, _ = presets.gepo.prepare(batch)
    torch.testing.assert_close(column(store, "advantages"), prepared["advantage"])
    torch.testing.assert_close(column(store, "returns"), prepared["advantage"])
    assert prepared["advantage"].abs().max() > 0.1
    assert not mask.all()


def test_nothing_is_sent_that_the_mask_says_already():
    rows = rows_with()
    before = set(next(iter(rows.values())))
    for objective, added in (
        ("ce_gppo", set()),
        ("gepo", set()),
        ("kl_cov", {"isentrope/surrogate/penalised"}),
        ("dr_grpo", {"isentrope/length_limit"}),
    ):
        store, _, _ = advantages(made(objective), rows_with())
        found = set(next(iter(store.rows.values()))) - before - {"advantages", "returns", "isentrope/task"}
        assert found == added, objective


def test_selection_reaches_the_workers():
    rows = rows_with()
    for key, row in rows.items():
        if key.startswith("u0"):
            row["rm_scores"] = torch.zeros_like(row["rm_scores"])
    of = made("dapo")
    store, _, _ = advantages(of, rows)
    kept = {key: bool(row["isentrope/counted"].any()) for key, row in store.rows.items()}
    assert [key for key, x in kept.items() if not x] == [key for key in rows if key.startswith("u0")]
    mask = column(store, "response_mask")[SAMPLES:]
    assert told(of)["totals"] == [float(mask.sum()), len(rows) - SAMPLES, PROMPTS - 1]


def test_a_token_without_a_usable_log_probability_is_excluded_everywhere():
    rows = rows_with()
    first = next(iter(rows))
    rows[first]["old_log_probs"][0] = -torch.inf
    of = made("ce_gppo")
    with pytest.warns(IsentropeWarning, match="`old_logp` is -inf at 1 token"):
        store, _, _ = advantages(of, rows)
    assert store.rows[first]["isentrope/excluded"].tolist()[0]
    assert told(of)["totals"][0] == float(column(store, "response_mask").sum()) - 1


@pytest.mark.parametrize("objective", ["grpo", "gepo", "repo_d", "kl_cov", "reinforce_pp"])
@pytest.mark.parametrize("count", [1, SAMPLES])
def test_a_row_that_could_not_be_scored_is_as_if_it_were_not_there(objective, count):
    rows = rows_with()
    left_out = list(rows)[1 : 1 + count]
    for key, row in rows.items():
        row["extra_fields"] = {"reward_extra_info": {"unscored": float(key in left_out), "pred": ""}}
    of, plain = made(objective), made(objective)
    store, logged, _ = advantages(of, rows)
    others = {key: row for key, row in rows_with().items() if key not in left_out}
    expected, _, _ = advantages(plain, others)
    assert logged["unscored"] == count / len(rows)
    assert told(of)["totals"] == told(plain)["totals"]
    for key in others:
        torch.testing.assert_close(store.rows[key]["advantages"], expected.rows[key]["advantages"])
        assert not store.rows[key]["isentrope/excluded"].any()
    for key in left_out:
        assert store.rows[key]["isentrope/excluded"].all()
        assert not store.rows[key]["advantages"].any()


@pytest.mark.parametrize("objective", ["gepo", "repo_d", "dapo", "kl_cov", "reinforce_pp", "high_entropy"])
def test_pad_rows_enter_no_statistic(objective):
    plain, padded = made(objective), made(objective)
    without, logged, _ = advantages(plain, rows_with())
    rows = rows_with(pads=5)
    rows["pad0f_0_0"]["old_log_probs"] = torch.tensor([torch.nan])
    with_pads, logged_with, _ = advantages(padded, rows)
    for key in without.rows:
        for name, x in without.rows[key].items():
            if isinstance(x, torch.Tensor):
                torch.testing.assert_close(with_pads.rows[key][name], x, rtol=0, atol=0, equal_nan=True)
    assert all(
        float(row["advantages"].abs().max()) == 0 for key, row in with_pads.rows.items() if key.startswith("pad")
    )
    assert plain._progress == padded._progress
    assert logged == logged_with
    assert told(plain)["totals"] == told(padded)["totals"]


def test_the_totals_are_those_of_one_update():
    one, two = made("grpo"), made("grpo", **TWO_UPDATES)
    advantages(one, rows_with())
    advantages(two, rows_with())
    assert told(two)["totals"] == [x / 2 for x in told(one)["totals"]]


def test_groups_go_by_uid_in_any_order():
    rows = rows_with()
    shuffled = dict(sorted(rows.items(), key=lambda item: item[0][::-1]))
    assert list(shuffled) != list(rows)
    a, b = advantages(made("grpo"), rows)[0], advantages(made("grpo"), shuffled)[0]
    for key in rows:
        torch.testing.assert_close(a.rows[key]["advantages"], b.rows[key]["advantages"])


def test_sessions_of_several_rows_count_once():
    long = rows_with(turns=3)
    last = {key: row for key, row in long.items() if key.endswith("_2")}
    whole, final = advantages(made("grpo"), long)[0], advantages(made("grpo"), last)[0]
    for key in long:
        expected = final.rows[f"{key[:-1]}2"]["advantages"].abs().max()
        assert float(whole.rows[key]["advantages"].abs().max()) == pytest.approx(float(expected), abs=1e-6)
    with pytest.raises(IsentropeError, match="BatchWhitened gives an advantage a token"):
        advantages(made("reinforce_pp"), rows_with(turns=2))
    of = made("repo_d")
    _, logged, _ = advantages(of, rows_with(turns=2))
    assert logged["controller/shaping.0.zeta.target"] == pytest.approx(logged["entropy/old_exact"])


def test_the_last_row_of_a_session_is_the_one_with_the_largest_number_wherever_it_stands():
    session, final = verl_columns._sessions(["a_0_1", "b_0_0", "a_0_10", "a_0_2", "a_1_0"])
    assert session.tolist() == [0, 1, 0, 0, 2]
    assert final.tolist() == [False, True, True, False, True]


def test_tasks_are_numbered_once_and_their_rewards_logged():
    of = made("grpo")
    store, logged, _ = advantages(of, rows_with())
    assert of._progress.tasks == ["task0", "task1"]
    assert {"reward/task0", "reward/task1"} <= logged.keys()
    assert [int(row["isentrope/task"]) for row in store.rows.values()] == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    rows = rows_with()
    for row in rows.values():
        row["task"] = "aaa"
    advantages(of, rows)
    assert of._progress.tasks == ["task0", "task1", "aaa"]


def test_responses_of_the_full_length_hit_the_limit():
    of = made("dapo_full", algorithm__filter_groups__enable=True, data__max_response_length=10)
    of._objective = replace(of._objective, advantage=replace(of._objective.advantage, buffer=4))
    store, _, _ = advantages(of, rows_with())
    full = {key for key, row in store.rows.items() if len(row["responses"]) >= 10}
    selected = {key for key, row in store.rows.items() if bool(row["isentrope/selected"].any())}
    assert full
    assert selected == store.rows.keys() - full


def test_a_controller_goes_on_from_batch_to_batch():
    of, gain = made("repo_d"), EntropyGain(start=1.0, low=1e-3, high=10.0)
    state, values = gain.init(), []
    for seed in range(3):
        _, logged, _ = advantages(of, rows_with(seed))
        state = gain.observe(state, measured_entropy=logged["entropy/old_exact"])
        assert of._progress.state == {f"shaping.0.zeta.{name}": pytest.approx(x) for name, x in state.items()}
        values.append(state["value"])
    assert len(set(values)) > 1


def test_an_empty_batch_of_pad_rows_moves_nothing():
    of = made("repo_d")
    rows = {key: row for key, row in rows_with(pads=4).items() if key.startswith("pad")}
    store, _, _ = advantages(of, rows)
    assert of._progress.state == of._objective.init()
    assert column(store, "advantages").abs().max() == 0
    assert told(of)["totals"] == [0.0, 0.0, 0.0]


# -- what verl does to rewards and tokens, and its critic


def test_verls_sampler_correction_becomes_the_correction_and_rejected_tokens_stay_in_the_count():
    keys = {
        "algorithm__rollout_correction__rollout_is": "token",
        "algorithm__rollout_correction__rollout_is_threshold": 1.2,
    }
    of = made("grpo", **keys)
    assert of._objective.correction == VerlCorrection()
    store, logged, _ = advantages(of, rows_with())
    weights, mask = column(store, "rollout_is_weights"), column(store, "response_mask").bool()
    gap = column(store, "old_log_probs") - column(store, "rollout_log_probs")
    torch.testing.assert_close(weights[mask], gap.exp().clamp(max=1.2)[mask])
    assert "rollout_corr/kl" in logged
    rejecting = made(
        "grpo",
        algorithm__rollout_correction__rollout_rs="token_k1",
        algorithm__rollout_correction__rollout_rs_threshold="0.9_1.2",
    )
    store, _, _ = advantages(rejecting, rows_with())
    weights = column(store, "rollout_is_weights")
    assert set(weights[mask].unique().tolist()) == {0.0, 1.0}
    assert torch.equal(column(store, "response_mask").bool(), mask)
    assert told(rejecting)["totals"][0] == float(mask.sum())


def test_a_kl_penalty_in_the_reward_lowers_rewards_before_the_advantage():
    of = made("nsr", algorithm__use_kl_in_reward=True, algorithm__kl_ctrl__kl_coef=100.0)
    store, logged, _ = advantages(of, rows_with())
    assert logged["actor/reward_kl_penalty_coeff"] == 100.0
    free = advantages(made("nsr"), rows_with())[0]
    assert not torch.equal(column(store, "advantages"), column(free, "advantages"))


def test_a_critic_gets_its_targets():
    of = made("ppo")
    assert of.config.critic.enable
    assert of.use_critic
    store, _, _ = advantages(of, rows_with())
    mask = column(store, "response_mask").bool()
    rewards = column(store, "rm_scores").sum(-1, keepdim=True)
    # gamma = lam = 1: every target is the reward to come
    torch.testing.assert_close(column(store, "returns")[mask], rewards.expand(mask.shape)[mask])
    assert float(column(store, "advantages")[mask].mean()) == pytest.approx(0, abs=1e-5)


def test_what_the_objective_reads_is_started_and_verls_mode_is_put_back():
    plain, kl = made("grpo"), made('preset = "grpo"\n[[penalties]]\nrule = "ReferenceKL"\ncoef = 0.1')
    assert (plain.use_reference_policy, kl.use_reference_policy) == (False, True)
    assert (plain.use_critic, plain.trainer_mode) == (False, "sync")
    assert type(plain.replay_buffer).__name__ == "ReplayBuffer"
    assert made("entropy_bonus").config.actor_rollout_ref.actor.calculate_entropy
    assert not plain.config.actor_rollout_ref.actor.calculate_entropy


def test_the_asynchronous_trainers_are_verls_with_the_objectives_steps():
    separate = {
        "trainer__v1__separate_async__parameter_sync_step": 2,
        "actor_rollout_ref__actor__ppo_mini_batch_size": 2,
        "actor_rollout_ref__rollout__nnodes": 1,
        "actor_rollout_ref__rollout__n_gpus_per_node": 1,
        "actor_rollout_ref__rollout__checkpoint_engine__backend": "file",
    }
    for base, keys in (("colocate_async", {}), ("separate_async", separate)):
        mode = f"isentrope_{base}"
        of = made("grpo", trainer__v1__trainer_mode=mode, **{f"trainer__v1__{mode}": {"objective": "grpo"}}, **keys)
        assert of.trainer_mode == base
        assert of.parameter_sync_step == (2 if keys else 1)
        assert type(of.replay_buffer).__name__ == "ReplayBufferAsync"
        advantages(of, rows_with())
        assert told(of)["totals"][1] == len(rows_with()) / (2 if keys else 1)


def test_the_loss_section_is_told_that_a_driver_of_ours_is_there():
    section = "actor_rollout_ref__actor__policy_loss"
    keys = {f"{section}___target_": "isentrope.engines.verl.PolicyLossConfig", f"{section}__objective": "repo_d"}
    of = made("repo_d", **keys)
    assert of.config.actor_rollout_ref.actor.policy_loss.driver is True
    assert "driver" not in made("repo_d").config.actor_rollout_ref.actor.policy_loss


def test_rules_that_cannot_act_are_named_before_training():
    with pytest.warns(IsentropeWarning, match="does nothing at 1 update per rollout batch"):
        trainer(configuration("ce_gppo"))


# -- one step


def test_the_batch_takes_state_and_totals_along_and_sums_become_means():
    of = made("adapo")
    _, _, batch = advantages(of, rows_with())
    sent = {}

    def update(batch: KVBatchMeta) -> dict[str, Any]:
        sent.update(batch.extra_info)
        found = {
            "isentrope/clip/low/sum": [1.0, 2.0],
            "isentrope/clip/low/count": [10.0, 20.0],
            "mfu": [0.1],
            "lr": [0.5],
        }
        return {"metrics": found | {"isentrope/kl/sum": [0.0], "isentrope/kl/count": [0.0]}}

    of.actor_rollout_wg = SimpleNamespace(update_actor=update)
    logged: dict[str, Any] = {}
    of._update_actor(batch, logged)
    assert sent[MESSAGE] == of._message
    assert told(of)["state"] == of._progress.state
    assert logged["clip/low"] == pytest.approx(0.1)
    assert "kl" not in logged
    assert logged["actor/lr"] == 0.5
    assert not [name for name in logged if "isentrope" in name]


# -- checkpoints


def saving(of: Any, folder: Path) -> Any:
    """The trainer with stand-ins for what writes verl's own files."""
    of.config.trainer.default_local_dir = str(folder)
    nothing = {"save_checkpoint": lambda *a, **k: None, "load_checkpoint": lambda *a, **k: None}
    of.actor_rollout_wg = SimpleNamespace(**nothing)
    of.train_dataloader = SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
    return of


def test_state_and_tasks_come_back_from_verls_checkpoint(tmp_path):
    first = saving(made("adapo"), tmp_path)
    advantages(first, rows_with(0))
    advantages(first, rows_with(1))
    first.global_steps = 2
    first._save_checkpoint()
    folder = tmp_path / "global_step_2"
    assert (folder / STATE_FILE).is_file()
    assert state_of(folder) == first._progress.state
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "2"
    second = saving(made("adapo"), tmp_path)
    second._load_checkpoint()
    assert second.global_steps == 2
    assert second._progress == first._progress
    a, b = advantages(first, rows_with(2))[1], advantages(second, rows_with(2))[1]
    assert a == b
    by_path = saving(
        made("adapo", trainer__resume_mode="resume_path", trainer__resume_from_path=str(folder)), tmp_path / "elsewhere"
    )
    by_path._load_checkpoint()
    assert by_path._progress.state == state_of(folder)


def test_a_run_from_the_beginning_starts_with_the_first_state(tmp_path):
    of = saving(made("adapo"), tmp_path)
    of._load_checkpoint()
    assert of._progress == Progress(presets.adapo.init())


def test_a_checkpoint_of_another_objective_or_of_verl_alone_is_refused(tmp_path):
    verl_state.save(tmp_path, presets.adapo, Progress(presets.adapo.init()))
    with pytest.raises(CheckpointError, match="holds the state of another objective"):
        verl_state.load(tmp_path, presets.repo_d)
    with pytest.raises(CheckpointError, match="holds the state of another objective"):
        verl_state.load(tmp_path, presets.grpo)
    with pytest.raises(CheckpointError, match=r"has no isentrope_state.json: our trainer did not save it"):
        verl_state.load(tmp_path / "global_step_1", presets.adapo)
    assert verl_state.load(tmp_path / "global_step_1", presets.grpo) == Progress({})
    (tmp_path / STATE_FILE).write_text('{"version": 99}')
    with pytest.raises(CheckpointError, match="version 99; this library reads version 1"):
        state_of(tmp_path)


# -- refusals


@pytest.mark.parametrize(
    ("objective", "keys", "sentence"),
    [
        (
            "grpo",
            {"actor_rollout_ref__actor__clip_ratio_high": 0.28},
            "clip_ratio_high=0.28: .*slot `surrogate`",
        ),
        ("grpo", {"actor_rollout_ref__actor__entropy_coeff": 0.001}, "entropy_coeff=0.001: .*EntropyBonus"),
        ("grpo", {"actor_rollout_ref__actor__use_kl_loss": True}, "use_kl_loss=True: .*ReferenceKL"),
        ("grpo", {"actor_rollout_ref__actor__loss_agg_mode": "token-sum"}, "loss_agg_mode=token-sum: .*`aggregate`"),
        ("grpo", {"actor_rollout_ref__actor__loss_scale_factor": 100}, "loss_scale_factor=100: .*ConstantLength"),
        (
            "grpo",
            {"actor_rollout_ref__actor__policy_loss__loss_mode": "gspo"},
            "loss_mode=gspo: the objective is",
        ),
        (
            "grpo",
            {"actor_rollout_ref__actor__policy_loss__objective": "grpo"},
            "objective needs .*_target_=",
        ),
        ("grpo", {"algorithm__adv_estimator": "rloo"}, "adv_estimator=rloo: the objective's slot `advantage`"),
        ("grpo", {"algorithm__adv_estimator": "isentrope/dapo"}, "two objectives are named"),
        ("grpo", {"algorithm__norm_adv_by_std_in_grpo": False}, r"norm_adv_by_std_in_grpo=False: .*GroupCentred\(\)"),
        ("ppo", {"algorithm__gamma": 0.99}, r"algorithm.gamma=0.99: .*GeneralizedAdvantage\(gamma=...\)"),
        ("grpo", {"critic__enable": True}, "critic.enable=True trains a critic that the objective does not read"),
        (
            "ppo",
            {"critic__enable": False},
            r"the column `value` \(the critic's value\); to have it: critic",
        ),
        ("repo_d", {"algorithm__rollout_correction__bypass_mode": True}, None),
        ("erc", {"algorithm__rollout_correction__bypass_mode": True}, "the column `old_entropy` .*bypass_mode=False"),
        ("arbitrary_entropy", {}, "the column `tempered`.*verl: its agent loops sample all rows at one temperature"),
        ("dapo_full", {}, "algorithm.filter_groups.enable=True, by which verl"),
        ("dapo_full", {"algorithm__filter_groups__enable": True}, None),
        ("grpo", {"distillation__enabled": True}, "distillation.enabled=True"),
        ("grpo", {"trainer__use_v1": False}, "the legacy trainer has no place"),
        ("grpo", {}, None),
        ("grpo", {"algorithm__adv_estimator": "grpo"}, None),
        ("ppo", {"algorithm__adv_estimator": "gae"}, None),
        ("grpo", {"actor_rollout_ref__actor__loss_agg_mode": "seq-mean-token-mean"}, None),
    ],
)
def test_what_cannot_be_honoured_is_named_before_anything_starts(objective, keys, sentence):
    config = configuration(objective, **keys)
    found = refusals(config, spec.load(objective))
    if sentence is None:
        assert found == []
        return
    assert [line for line in found if re.search(sentence, line)], found
    with pytest.raises(ConfigError, match=sentence):
        trainer(config)


CORRECTED = replace(presets.grpo, correction=TruncatedImportance())


def test_a_sampler_is_corrected_once_and_with_its_log_probabilities():
    section = {"rollout_is": "token", "rollout_is_threshold": 2.0}
    config = configuration("grpo", algorithm__rollout_correction=section)
    assert any("corrected twice" in line for line in refusals(config, CORRECTED))
    assert refusals(config, presets.grpo) == []
    config.actor_rollout_ref.rollout.calculate_log_probs = False
    assert any("rollout_is corrects nothing without" in line for line in refusals(config, presets.grpo))
    config.algorithm.rollout_correction = {}
    assert any("TruncatedImportance(cap=2.0)) corrects nothing" in line for line in refusals(config, CORRECTED))


def test_verls_own_trainer_is_asked_what_its_hooks_need():
    config = configuration(
        "", trainer__v1__trainer_mode="sync", trainer__v1__isentrope={}, algorithm__adv_estimator="grpo"
    )
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "isentrope/adapo"
    found = refusals(config, presets.adapo)
    assert any("adv_estimator=grpo: the objective's slot `advantage` does this" in line for line in found)
    assert any("controllers at surrogate.high" in line for line in found)
    config.algorithm.adv_estimator = "isentrope"
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "isentrope/ce_gppo"
    config.actor_rollout_ref.actor.entropy_coeff = 0.01  # verl adds it itself
    assert refusals(config, presets.ce_gppo) == []
    assert any("slot `aggregate`" in line for line in refusals(config, presets.gspo))


def test_a_verl_out_of_the_tested_range_is_refused_and_an_absent_one_is_not_looked_at(monkeypatch):
    config = configuration("grpo")
    assert any("verl 0.10.0 is installed" in line for line in refusals(config, presets.grpo, "0.10.0"))
    assert any("verl 0.8.2 is installed" in line for line in refusals(config, presets.grpo, "0.8.2"))
    assert refusals(config, presets.grpo, "0.9.7") == []

    def absent(name: str) -> str:
        raise verl_options.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(verl_options.metadata, "version", absent)
    assert refusals(config, presets.grpo) == []


def test_refusals_take_plain_dictionaries_and_count_missing_keys_as_verls_defaults():
    config = {"trainer": {"v1": {"trainer_mode": "isentrope", "isentrope": {"objective": "grpo"}}}}
    assert refusals(config, presets.grpo) == []
    assert len(refusals({}, presets.grpo)) >= 2  # no objective is named, and verl's estimator is gae


def test_a_fixed_temperature_must_be_the_configurations():
    warm = replace(presets.grpo, rollout=Rollout(temperature=0.7))
    config = configuration("grpo")
    assert any("take actor_rollout_ref.rollout.temperature=1.0 for all rows" in line for line in refusals(config, warm))
    config.actor_rollout_ref.rollout.temperature = 0.7
    assert refusals(config, warm) == []


def test_a_controller_by_task_reads_the_tasks():
    gate = GroupEntropyGate(low=replace(GroupEntropyGate().low, by_task=True))
    of = made("gepo")
    of._objective = replace(presets.gepo, shaping=(gate,))
    of._progress = Progress(of._objective.init())
    advantages(of, rows_with())
    assert {"shaping.0.low.value/0", "shaping.0.low.value/1"} <= of._progress.state.keys()
