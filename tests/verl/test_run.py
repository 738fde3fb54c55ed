"""A job as a child process: its metrics under our names, its last words, its end. The job here is a script."""

import json
import os
import signal
import sys
import textwrap
import threading
import time

import pytest

from isentrope.engines import verl_run
from isentrope.engines.verl_config import Layout
from isentrope.engines.verl_run import Job, latest_rollout, reason, resumable, translate
from isentrope.errors import IsentropeError


@pytest.fixture
def job(tmp_path, monkeypatch):
    """`job(text)` starts a Python text as the job of a run folder."""
    started = []

    def start(text, **options):
        monkeypatch.setattr(verl_run, "command", lambda _: [sys.executable, "-c", textwrap.dedent(text)])
        started.append(Job(Layout(tmp_path), laptop=False, **options))
        return started[-1]

    yield start
    for each in started:
        each.stop()
        each.process.wait(10)


LOG = """
    import json, os, time
    path = os.environ["VERL_FILE_LOGGER_PATH"]
    def log(step, **data):
        with open(path, "ab", buffering=0) as file:
            file.write(json.dumps({"step": step, "data": data}).encode() + b"\\n")
"""


def test_every_step_is_seen_once_and_validation_is_not_a_step(job):
    found = job(LOG + "    log(0, val=1.0)\n    for i in (1, 2, 3): log(i, x=i); time.sleep(.2)\n").steps()
    assert [(step.rollout, step.values["x"]) for step in found] == [(1, 1), (2, 2), (3, 3)]


def test_a_line_counts_once_it_is_whole(job):
    half = """
    with open(path, "ab", buffering=0) as file:
        file.write(b'{"step": 1, "da'); time.sleep(1); file.write(b'ta": {"x": 5}}\\n{"step": 2')
"""
    assert [step.values for step in job(LOG + half).steps()] == [{"x": 5}]


def test_each_start_of_a_run_has_a_metrics_file_of_its_own(job, tmp_path):
    for _ in range(3):
        assert len(list(job(LOG + "    log(1, x=1)").steps())) == 1
    assert sorted(path.name for path in (tmp_path / "verl").glob("*.jsonl")) == [
        "metrics-2.jsonl",
        "metrics-3.jsonl",
        "metrics.jsonl",
    ]


def test_a_job_that_fails_is_reported_in_its_own_words(job, tmp_path):
    failing = job("print('ValueError: an earlier start'); raise KeyError('no such column')")
    assert list(failing.steps()) == []
    with pytest.raises(IsentropeError) as caught:
        failing.check()
    assert str(caught.value) == (
        f"verl's job ended with status 1: KeyError: 'no such column' (its log is {tmp_path}/verl/job.log)"
    )


def test_the_words_are_those_of_the_last_start(job):
    first = job("raise ValueError('the first')")
    first.process.wait(10)
    second = job("raise SystemExit(3)")
    second.process.wait(10)
    with pytest.raises(IsentropeError, match="status 3: it left no word"):
        second.check()


def test_a_job_that_ends_well_raises_nothing(job):
    fine = job("print('ValueError: only said')")
    fine.process.wait(10)
    fine.check()


def test_stopping_asks_first(job, tmp_path):
    polite = job(f"""
    import signal, time
    def end(*_): open({str(tmp_path / "ended")!r}, "w").close(); raise SystemExit(0)
    signal.signal(signal.SIGINT, end)
    open({str(tmp_path / "ready")!r}, "w").close()
    time.sleep(60)
    """)
    _wait(tmp_path / "ready")
    polite.stop()
    assert polite.process.returncode == 0
    assert (tmp_path / "ended").exists()


def test_stopping_insists(job, tmp_path, monkeypatch):
    monkeypatch.setattr(verl_run, "PATIENCE", 0.3)
    deaf = job(f"""
    import signal, time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    open({str(tmp_path / "ready")!r}, "w").close()
    time.sleep(60)
    """)
    _wait(tmp_path / "ready")
    deaf.stop()
    assert deaf.process.returncode == -signal.SIGTERM


def test_what_a_job_started_ends_with_it(job, tmp_path):
    parent = job(f"""
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    open({str(tmp_path / "part")!r}, "w").write(str(child.pid))
    os.rename({str(tmp_path / "part")!r}, {str(tmp_path / "ready")!r})
    time.sleep(60)
    """)
    _wait(tmp_path / "ready")
    child = int((tmp_path / "ready").read_text())
    parent.stop()
    time.sleep(0.3)
    assert _is_dead(child)


def _is_dead(pid):
    """Whether a process is gone, or waits only to be collected."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _wait(path, seconds=10):
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


def test_ctrl_c_in_the_terminal_reaches_us_alone(job):
    assert os.getpgid(job("import time; time.sleep(5)").process.pid) != os.getpgid(0)


def test_threads_and_the_rehearsals_variables_are_the_jobs(job, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = LOG + "    log(1, threads=int(os.environ['OMP_NUM_THREADS']))"
    (step,) = job(text, threads=3).steps()
    assert step.values["threads"] == 3
    (step,) = job(text).steps()
    assert step.values["threads"] == 1


def test_verl_is_told_our_modules_so_that_their_errors_show(job, monkeypatch):
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "mine,isentrope.engines.verl")
    text = LOG + "    log(1, modules=os.environ['VERL_USE_EXTERNAL_MODULES'])"
    (step,) = job(text).steps()
    assert step.values["modules"] == "mine,isentrope.engines.verl"
    assert verl_run._modules("", True) == ["isentrope.engines.verl", "isentrope.engines.verl_laptop"]


def test_the_workers_of_a_cluster_that_runs_already_are_told_too():
    pytest.importorskip("hydra")
    from hydra.core.override_parser.overrides_parser import OverridesParser

    words = verl_run._for_workers({"A": "/a b/c,d=e.jsonl", "B": "x,y"})
    found = OverridesParser.create().parse_overrides(words)
    where = "ray_kwargs.ray_init.runtime_env.env_vars"
    assert {one.key_or_group: one.value() for one in found} == {f"{where}.A": "/a b/c,d=e.jsonl", f"{where}.B": "x,y"}


def test_steps_end_when_the_reader_stops_the_job(job):
    endless = job(LOG + "    i = 0\n    while True: i += 1; log(i, x=i); time.sleep(.05)")
    threading.Timer(0.5, endless.stop).start()
    assert [step.rollout for step in endless.steps()][:2] == [1, 2]


# -- names


def test_numbers_that_other_engines_log_have_their_names():
    found = translate(
        {"critic/score/mean": 0.5, "actor/grad_norm": 2, "controller/x.value": 1.0, "perf/y": 3, "text": "no"}
    )
    assert found == {"reward": 0.5, "grad_norm": 2.0, "controller/x.value": 1.0, "perf/y": 3.0}


def test_what_our_trainer_logs_under_our_name_stays():
    assert translate({"rollout_corr/k3_kl": 1.0, "kl_rollout": 2.0}) == {"kl_rollout": 2.0}


def test_every_name_is_one_that_the_readers_know():
    from isentrope.readers._keys import KEYS

    known = {name for names in KEYS["isentrope"].values() for name in names}
    others = {"completions/max_length", "completions/min_length", "step_time"}  # TRL logs them, no curve needs them
    assert set(verl_run.NAMES.values()) - others <= known


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a", "ValueError: b", "c"], "ValueError: b"),
        (["\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m verl.errors.BadError: b"], "verl.errors.BadError: b"),
        (["(Worker pid=7, ip=1.2.3.4) KeyError: 'x'", "ValueError: "], "KeyError: 'x'"),
        (["only words", ""], "only words"),
        ([], "it left no word"),
        (["see Error: not at the start of its line"], "see Error: not at the start of its line"),
    ],
)
def test_the_reason_is_the_last_exception_of_the_log(lines, expected):
    assert reason(lines) == expected


# -- checkpoints


def test_the_latest_checkpoint_is_the_one_that_verl_names(tmp_path):
    layout = Layout(tmp_path)
    assert latest_rollout(layout) is None
    with pytest.raises(IsentropeError, match="holds no complete checkpoint; remove it"):
        resumable(tmp_path)
    layout.checkpoints.mkdir()
    (layout.checkpoints / "global_step_9").mkdir()  # cut short: verl has not named it
    (layout.checkpoints / "latest_checkpointed_iteration.txt").write_text("4")
    assert latest_rollout(layout) == 4
    resumable(tmp_path)
    (layout.checkpoints / "latest_checkpointed_iteration.txt").write_text("four")
    with pytest.raises(IsentropeError, match="holds no number"):
        latest_rollout(layout)


def test_the_command_runs_the_folders_configuration(tmp_path):
    words = verl_run.command(Layout(tmp_path))
    assert words[1:3] == ["-m", "verl.trainer.main_ppo"]
    assert words[words.index("--config-path") + 1] == str(tmp_path)
    assert words[words.index("--config-name") + 1] == "verl"
    assert json.dumps(words), "plain texts"
