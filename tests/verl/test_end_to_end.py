"""Whole jobs: verl's real trainer, workers, TransferQueue and rollouts on CPU, driven by the command.

In CI `ce_gppo` with a PI controller on 1 and 2 ranks, the 2-rank job killed and resumed on the way, `gepo` on a mix of
two tasks on 1 and 2 ranks, `repo_d` and `adapo` on 2. What is marked `soak` is left out; CONTRIBUTING has the command.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="needs verl 0.9 (make verl)")


from isentrope import record, token_dump
from isentrope.engines.verl_config import Layout
from isentrope.engines.verl_run import latest_rollout
from isentrope.engines.verl_state import state_of
from isentrope.record import RunFolder

from . import jobs

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(1500)]  # two launches on a busy machine
KILLED_AFTER = 3  # rollouts; checkpoints stand after 2 and 4
CONTROLLED = {
    "ce_gppo": "controller/surrogate.keep_high.",
    "gepo": "controller/shaping.0.",
    "repo_d": "controller/shaping.0.zeta.",
    "adapo": "controller/surrogate.high.",
}


def _finished(objective, out, ranks):
    done = jobs.run(jobs.command(objective, out, ranks))
    assert done.returncode == 0, done.stdout + done.stderr
    return jobs.lines(out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """`ce_gppo` on one rank from beginning to end."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, _finished("ce_gppo", out, 1)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """`ce_gppo` on two ranks, everything of it killed after three rollouts, then resumed; what the command said."""
    out = tmp_path_factory.mktemp("resumed") / "run"
    words, own = jobs.command("ce_gppo", out, 2), {"text": True, "env": jobs.environment(), "process_group": 0}
    with open(out.parent / "said", "w") as said, subprocess.Popen(words, stdout=said, stderr=said, **own) as process:
        jobs.wait_for_rollouts(process, out, KILLED_AFTER)
        for pid in (process.pid, *_descendants(process.pid)):
            os.kill(pid, signal.SIGKILL)
    killed_at = latest_rollout(Layout(out))
    done = jobs.run([*words[:4], "--resume", "--out", str(out)])
    assert done.returncode == 0, done.stdout + done.stderr
    return out, jobs.lines(out), killed_at, done.stdout


def _descendants(pid):
    """The processes that a process started, and theirs."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = dict(map(int, line.split()) for line in table.splitlines())
    found, front = [], {pid}
    while front := {child for child, parent in parents.items() if parent in front}:
        found += sorted(front)
    return found


def _assert_controlled(objective, found):
    """Reward, entropy and the controllers' numbers in every line; entropy and controllers move."""
    assert len(found) == jobs.ROLLOUTS
    assert [line["step"] for line in found] == [jobs.PASSES * i for i in range(1, jobs.ROLLOUTS + 1)]
    names = {name for name in found[0] if name.startswith(CONTROLLED[objective])}
    assert names, sorted(found[0])
    for line in found:
        assert {"reward", "entropy/old_exact", "grad_norm", "completions/mean_length", *names} <= line.keys()
        assert 0 <= line["reward"] <= 1
        assert line["grad_norm"] > 0
    assert len({line["entropy/old_exact"] for line in found}) == jobs.ROLLOUTS
    assert any(len({line[name] for line in found}) > 1 for name in names), "the controller never moved"


def test_a_controlled_objective_trains_in_verls_own_trainer(whole):
    _, found = whole
    _assert_controlled("ce_gppo", found)
    target = 0.4
    first, last = found[0], found[-1]
    assert first["controller/surrogate.keep_high.target"] == target
    assert last["controller/surrogate.keep_high.value"] != first["controller/surrogate.keep_high.value"]


def test_two_ranks_and_a_kill_on_the_way_change_nothing_but_rounding(whole, resumed):
    _, one_rank = whole
    _, two_ranks, killed_at, said = resumed
    assert killed_at == 2, "the last checkpoint before the kill"
    assert "resuming   after rollout 2, update 4" in said
    jobs.assert_equal(one_rank, two_ranks)


def test_the_checkpoint_holds_the_controllers_state_of_the_last_line(whole, resumed):
    for out, found, *_ in (whole, resumed):
        state = state_of(Layout(out).checkpoints / f"global_step_{jobs.ROLLOUTS}")
        assert state
        for name, value in state.items():
            assert found[-1][f"controller/{name}"] == pytest.approx(value, rel=1e-12)


def test_a_run_leaves_a_folder_that_the_other_commands_read(whole):
    from isentrope import readers

    out, found = whole
    folder = RunFolder(out)
    (run,) = readers.read(out)
    assert run.series["reward"].values == tuple(line["reward"] for line in found)
    assert run.series["entropy"].values == tuple(line["entropy/old_exact"] for line in found)
    assert run.facts.entropy_kind == "exact"
    assert run.facts.updates_per_rollout == jobs.PASSES
    assert run.facts.vocabulary == 99
    assert record.read_json(folder.summary)["steps"] == jobs.ROLLOUTS * jobs.PASSES
    assert folder.curves.is_file()
    assert "loss_mode: isentrope" in Layout(out).config.read_text()
    for verb in (["diagnose", str(out)], ["report", str(out), "-o", str(out / "report.html")]):
        done = jobs.run([*jobs.command("ce_gppo", out, 1)[:3], *verb])
        assert done.returncode in (0, 1), done.stderr  # diagnose: 1 where it found something
        assert "Traceback" not in done.stderr


def test_the_token_dump_is_that_of_the_first_update_on_a_rollout(whole, resumed):
    for out, *_ in (whole, resumed):
        assert token_dump.token_steps(RunFolder(out).tokens) == [3 * jobs.PASSES, 6 * jobs.PASSES]
    one, two = (
        token_dump.read_tokens(RunFolder(out).tokens, 6 * jobs.PASSES).to_pydict() for out, *_ in (whole, resumed)
    )
    assert set(one["row"]) == set(range(5 * 32, 6 * 32))
    assert set(one["group"]) == set(range(5 * 8, 6 * 8))
    assert one["logp"] == one["old_logp"]
    assert one["logp"] == pytest.approx(one["rollout_logp"], abs=1e-4)
    assert any(one["weight"])
    assert len(one["row"]) == round(whole[1][-1]["completions/mean_length"] * 32)
    for name in ("logp", "entropy", "advantage", "weight"):
        assert sorted(one[name]) == pytest.approx(sorted(two[name]), abs=1e-4), name


def test_the_model_in_the_checkpoint_is_the_trained_one(whole):
    import torch

    from isentrope import models

    out, _ = whole
    checkpoint = RunFolder(out).last_checkpoint()
    assert checkpoint is not None
    before, after = models.load("embedded")[0].state_dict(), models.load(str(checkpoint))[0].state_dict()
    assert any(not torch.equal(weights, after[name]) for name, weights in before.items())


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """`job(objective, ranks)`: the metrics of a whole job, which is run once."""
    found = {}

    def get(objective, ranks):
        if (objective, ranks) not in found:
            found[objective, ranks] = _finished(objective, tmp_path_factory.mktemp(objective) / "run", ranks)
        return found[objective, ranks]

    return get


def test_a_mix_of_tasks_is_logged_by_task_and_the_same_on_one_and_two_ranks(job):
    found = job("gepo", 1)
    _assert_controlled("gepo", found)
    for line in found:
        assert {"reward/countdown", "reward/digitsum"} <= line.keys()
        low, high = sorted((line["reward/countdown"], line["reward/digitsum"]))
        assert low <= line["reward"] <= high
    jobs.assert_equal(found, job("gepo", 2))


@pytest.mark.parametrize("objective", ["repo_d", "adapo"])
def test_the_other_controlled_objectives_train_on_two_ranks(objective, job):
    _assert_controlled(objective, job(objective, 2))


@pytest.mark.soak
@pytest.mark.parametrize("objective", ["repo_d", "adapo"])
def test_they_are_the_same_on_one_rank(objective, job):
    _assert_controlled(objective, job(objective, 1))
    jobs.assert_equal(job(objective, 1), job(objective, 2))


@pytest.mark.soak
def test_rollouts_on_gpus_of_their_own_train_in_the_asynchronous_trainer(tmp_path):
    more = [
        'verl.trainer.v1.trainer_mode="isentrope_separate_async"',
        "verl.trainer.v1.separate_async.parameter_sync_step=1",
        "verl.actor_rollout_ref.rollout.nnodes=1",
        "verl.actor_rollout_ref.rollout.n_gpus_per_node=1",
    ]
    out = tmp_path / "run"
    done = jobs.run(jobs.command("adapo", out, 1, more))
    assert done.returncode == 0, done.stdout + done.stderr
    found = jobs.lines(out)
    _assert_controlled("adapo", found)
    assert max(line["training/off_policy/trajectory_staleness/mean"] for line in found) > 0, "rollouts run ahead"


@pytest.mark.soak
def test_a_job_joins_a_cluster_that_runs_already(tmp_path, monkeypatch):
    ray, sockets = Path(sys.executable).parent / "ray", tempfile.mkdtemp(prefix="ray-")  # their paths must be short
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # for the cluster and the job alike
    options = ["--head", "--block", "--node-ip-address=127.0.0.1", "--port=6399", "--include-dashboard=false"]
    options += ["--num-gpus=1", "--num-cpus=12"]
    words = [str(ray), "start", *options, f"--temp-dir={sockets}"]
    with (
        open(tmp_path / "ray.log", "w") as log,
        subprocess.Popen(words, stdout=log, stderr=log, env=jobs.environment(), process_group=0) as cluster,
    ):
        try:
            while "--block" not in (tmp_path / "ray.log").read_text():
                assert cluster.poll() is None, (tmp_path / "ray.log").read_text()
                time.sleep(0.2)
            monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6399")
            found = _finished("repo_d", tmp_path / "run", 1)
            assert cluster.poll() is None, "the job leaves the cluster running"
            assert len(list(Path(sockets).glob("session_latest/logs/worker-*"))) > 5, "the workers were that cluster's"
        finally:
            for pid in filter(_is_alive, (cluster.pid, *_descendants(cluster.pid))):
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(sockets, ignore_errors=True)
    _assert_controlled("repo_d", found)


@pytest.mark.soak
def test_ctrl_c_ends_every_process_of_a_job_and_leaves_its_last_checkpoint(tmp_path):
    out, own = tmp_path / "run", {"text": True, "env": jobs.environment(), "process_group": 0}
    words = [*jobs.command("adapo", out, 1), "--steps", "4000"]
    with open(tmp_path / "said", "w") as said, subprocess.Popen(words, stdout=said, stderr=said, **own) as process:
        jobs.wait_for_rollouts(process, out, KILLED_AFTER)
        started = _descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    assert "stopped; verl's last checkpoint is after update" in (tmp_path / "said").read_text()
    assert latest_rollout(Layout(out)) is not None
    deadline = time.monotonic() + 30
    while left := [pid for pid in started if _is_alive(pid)]:
        assert time.monotonic() < deadline, f"{len(left)} of {len(started)} processes are left"
        time.sleep(0.5)


def _is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
