"""`isentrope eval`: figures with intervals, the same for the same seed, after interruptions, against a baseline."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from isentrope import models, record, results, samplers, tasks
from isentrope.cli import _evaluation, _evaluation_run, _evaluation_table, app
from isentrope.cli._evaluation_progress import Lines, progress
from isentrope.results import Problem, Sample

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
SMALL = ["--tasks", "countdown", "--k", "4", "--max-tokens", "24", "--limit", "10", "--batch", "12"]


def _eval(*arguments):
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


def _json(*arguments):
    found = _eval(*arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def _refused(*arguments):
    found = _eval(*arguments)
    assert found.exit_code == 2, found.output
    assert len(found.stderr.strip().splitlines()) == 1
    return found.stderr


def _same(one, other):
    """Two results without what differs between equal evaluations: when and where they ran."""
    return {name: one[name] for name in ("schema", "model", "tasks")} == {
        name: other[name] for name in ("schema", "model", "tasks")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An evaluation that was not interrupted: its folder and its results."""
    path = tmp_path_factory.mktemp("eval") / "whole"
    return path, _json("embedded", *SMALL, "--out", path)


# -- figures --------------------------------------------------------------------------------------------


def test_the_results_are_those_of_the_problems_kept(whole):
    path, found = whole
    assert record.read_json(path / "results.json")["tasks"] == found["tasks"]
    problems = results.read(path / "problems.jsonl")
    (report,) = found["tasks"]
    assert (report["task"], report["problems"], report["samples"]) == ("countdown", 10, 4)
    assert len(problems) == 10
    right = sum(problem.num_right for problem in problems)
    assert 0 < right < 40
    assert report["pass_at"]["1"] == pytest.approx(right / 40)
    assert report["entropy_kind"] == "exact"
    assert set(report["figures"]) == {problem.key for problem in problems}
    assert report["max_new_tokens"] == 24
    task = tasks.get("countdown")
    for problem in problems:
        example = tasks.Example(problem.prompt, problem.answer, "countdown")
        assert [task.score(one.text, example).outcome for one in problem.samples] == [
            one.outcome for one in problem.samples
        ]


def test_the_batch_size_changes_nothing(whole, tmp_path):
    for batch in (1, 7, 40):
        found = _json("embedded", *SMALL, "--batch", batch, "--out", tmp_path / str(batch))["tasks"][0]
        expected = whole[1]["tasks"][0]
        for name in set(expected) - {"entropy", "intervals", "figures"}:
            assert found[name] == expected[name]
        for name in set(expected["intervals"]) - {"entropy"}:
            assert found["intervals"][name] == expected["intervals"][name]
        assert found["entropy"] == pytest.approx(expected["entropy"], rel=1e-5)  # sums of rounded numbers


def test_another_seed_gives_other_samples(whole, tmp_path):
    other = _json("embedded", *SMALL, "--seed", 1, "--out", tmp_path / "other")
    assert not set(other["tasks"][0]["figures"]) & set(whole[1]["tasks"][0]["figures"])


def test_random_numbers_depend_on_the_seed_and_on_the_problem():
    seeds = [_evaluation_run._seed(seed, key) for seed in (0, 1) for key in ("a", "b")]
    assert len(set(seeds)) == 4
    assert seeds[0] == _evaluation_run._seed(0, "a")
    assert all(0 <= seed < 2**62 for seed in seeds)


def test_a_problem_has_the_same_samples_whatever_else_is_evaluated(whole, tmp_path):
    found = _json("embedded", *SMALL, "--tasks", "digitsum,countdown", "--out", tmp_path / "two")
    assert [report["task"] for report in found["tasks"]] == ["digitsum", "countdown"]
    assert found["tasks"][1] == whole[1]["tasks"][0]


def test_the_table_shows_every_figure_with_its_interval(tmp_path):
    found = _eval("embedded", *SMALL, "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    for text in (
        "countdown: 10 problems x 4",
        "pass@1",
        "pass@2",
        "pass@4",
        "majority@4",
        "avg@4",
        "entropy, nats (exact)",
    ):
        assert text in found.stdout
    assert "the choice of 10 problems alone makes a pass@1 of" in found.stdout
    assert f"results in {tmp_path / 'run'}" in found.stdout


def test_completions_take_what_the_context_leaves(tmp_path):
    found = _json("embedded", *SMALL[:4], "--limit", 2, "--k", 1, "--out", tmp_path / "run")
    prompts = [problem.prompt for problem in results.read(tmp_path / "run" / "problems.jsonl")]
    assert found["settings"]["max_tokens"] == 512 - max(map(len, prompts))  # a token a character


# -- continuing -----------------------------------------------------------------------------------------


def _stop_after(monkeypatch, groups):
    """Make the sampler end the process, as Ctrl-C would, after so many groups; the list of groups it drew."""
    drawn = []
    draw = samplers.TransformersSampler.draw

    def counted(self, task, examples, *rest):
        if len(drawn) == groups:
            raise KeyboardInterrupt
        drawn.append(len(examples))
        return draw(self, task, examples, *rest)

    monkeypatch.setattr(samplers.TransformersSampler, "draw", counted)
    return drawn


def test_an_interrupted_evaluation_goes_on_with_the_same_numbers(whole, tmp_path, monkeypatch):
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        _stop_after(patch, 2)
        found = _eval("embedded", *SMALL, "--out", path)
    assert found.exit_code == 130
    assert f"--resume --out {path}" in found.stderr
    assert len(results.read(path / "problems.jsonl")) == 6
    assert not (path / "results.json").exists()
    drawn = _stop_after(monkeypatch, 99)
    assert _same(whole[1], _json("embedded", *SMALL, "--out", path, "--resume"))
    assert drawn == [3, 1]  # ten problems in groups of three, of which two were there


def test_a_group_that_was_cut_short_is_drawn_again_whole(whole, tmp_path, monkeypatch):
    path = tmp_path / "run"
    _json("embedded", *SMALL, "--out", path)
    lines = (path / "problems.jsonl").read_bytes().splitlines(keepends=True)
    (path / "problems.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:50])
    drawn = _stop_after(monkeypatch, 99)
    assert _same(whole[1], _json("embedded", *SMALL, "--out", path, "--resume"))
    assert drawn == [3, 3, 1]
    assert len(results.read(path / "problems.jsonl")) == 10


def test_a_finished_evaluation_is_read_back(whole, tmp_path, monkeypatch):
    drawn = _stop_after(monkeypatch, 99)
    assert _same(whole[1], _json("embedded", *SMALL, "--out", whole[0], "--resume"))
    assert drawn == []


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_with_the_same_numbers(tmp_path):
    command = [sys.executable, "-m", "isentrope", "eval", "embedded", "--tasks", "countdown"]
    command += ["--k", "8", "--max-tokens", "24", "--limit", "80", "--batch", "8", "--json"]
    subprocess.run([*command, "--out", tmp_path / "whole"], check=True, capture_output=True)
    path = tmp_path / "killed"
    process = subprocess.Popen([*command, "--out", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = path / "problems.jsonl"
    deadline = time.monotonic() + 120
    while not (file.is_file() and file.read_bytes().count(b"\n") >= 3):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert file.read_bytes().count(b"\n") < 80
    subprocess.run([*command, "--out", path, "--resume"], check=True, capture_output=True)
    found = [record.read_json(folder / "results.json") for folder in (tmp_path / "whole", path)]
    assert _same(*found)


# -- baselines ------------------------------------------------------------------------------------------


def test_a_model_against_itself_differs_by_nothing(whole, tmp_path):
    found = _json("embedded", *SMALL, "--out", tmp_path / "run", "--baseline", whole[0] / "results.json")
    comparison = found["comparison"]
    assert comparison["baseline"] == "embedded"
    assert comparison["differs"] == {}
    (task,) = comparison["tasks"]
    assert (task["task"], task["problems"]) == ("countdown", 10)
    assert set(task["differences"].values()) == {0.0}
    assert task["intervals"]["pass@1"] == [0.0, 0.0]


@pytest.fixture
def worse(tmp_path):
    """The embedded model with noise on its head, in a folder."""
    import torch

    model, tokenizer = models.load("embedded")
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    with models.without_progress_bars():
        model.save_pretrained(tmp_path / "worse")
    tokenizer.save_pretrained(tmp_path / "worse")
    return tmp_path / "worse"


def test_two_models_are_compared_on_the_same_problems(worse, tmp_path):
    arguments = [*SMALL, "--limit", 24, "--out", tmp_path / "run", "--baseline", worse]
    found = _eval("embedded", *arguments)
    assert found.exit_code == 0, found.output
    full = record.read_json(tmp_path / "run" / "results.json")
    earlier = record.read_json(tmp_path / "run" / "baseline" / "results.json")
    (task,) = full["comparison"]["tasks"]
    expected = full["tasks"][0]["pass_at"]["1"] - earlier["tasks"][0]["pass_at"]["1"]
    assert task["differences"]["pass@1"] == pytest.approx(expected)
    assert task["problems"] == 24
    low, high = task["intervals"]["pass@1"]
    assert 0 < low < expected < high
    assert full["comparison"]["baseline"] == str(worse)
    assert "Minus the baseline" in found.stdout
    assert "] *" in found.stdout


def test_settings_that_differ_from_the_baselines_are_said(whole, tmp_path):
    found = _eval("embedded", *SMALL, "--k", 2, "--out", tmp_path / "run", "--baseline", whole[0])
    assert found.exit_code == 0, found.output
    assert "warning: samples was 4 for the baseline and is 2 here" in found.stdout


# -- runs -----------------------------------------------------------------------------------------------


@pytest.fixture
def run_folder(tmp_path):
    """A run folder with a checkpoint, without the training."""
    folder = record.RunFolder(tmp_path / "run")
    checkpoint = folder.checkpoints / "checkpoint-7"
    model, tokenizer = models.load("embedded")
    with models.without_progress_bars():
        model.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    record.finish_checkpoint(checkpoint)
    text = '[[task]]\nname = "digitsum"\n[trainer]\nmax_completion_length = 20\n[evaluation]\ntemperature = 0.5\n'
    record.write_text(folder.recipe, text)
    return folder


def test_a_run_is_evaluated_on_its_tasks_at_its_settings(run_folder, tmp_path):
    found = _json(run_folder.path, "--k", 2, "--limit", 3, "--out", tmp_path / "e")
    assert found["settings"]["source"] == str(run_folder.checkpoints / "checkpoint-7")
    (report,) = found["tasks"]
    assert (report["task"], report["temperature"], report["max_new_tokens"]) == ("digitsum", 0.5, 20)
    other = _json(run_folder.path, *SMALL[:2], "--k", 2, "--limit", 3, "--temperature", 1, "--out", tmp_path / "f")
    assert (other["tasks"][0]["task"], other["tasks"][0]["temperature"]) == ("countdown", 1.0)


def test_a_run_without_checkpoint_says_so(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    assert "holds no complete checkpoint" in _refused(tmp_path)


# -- saved completions ----------------------------------------------------------------------------------


def test_saved_completions_are_judged_without_a_model(tmp_path, monkeypatch):
    monkeypatch.setattr(samplers, "load", lambda *_: pytest.fail("a model was asked for"))
    path = tmp_path / "mine.jsonl"
    rows = [("72", ["#### 72", "so 72.0", "#### 71", ""]), ("5", ["#### 4", "#### 4", "#### 5", "#### 5"])]
    path.write_text("".join(json.dumps({"answer": answer, "completions": texts}) + "\n" for answer, texts in rows))
    (report,) = _json("--completions", path, "--tasks", "gsm8k", "--out", tmp_path / "out")["tasks"]
    assert report["right"] == [2, 2]
    assert report["pass_at"] == {"1": 0.5, "2": pytest.approx(1 - 1 / 6), "4": 1.0}
    assert report["majority"] == 0.75  # 72 wins the first vote, the second is a tie
    assert report["no_answer"] == 0.125
    assert (report["length"], report["entropy"], report["entropy_kind"]) == ("nan", "nan", "")
    table = _eval("--completions", path, "--tasks", "gsm8k").stdout
    assert "pass@4" in table
    assert "entropy" not in table
    again = _json("--completions", tmp_path / "out" / "problems.jsonl")
    assert again["tasks"] == [report]


def test_a_tasks_own_figures_are_in_table_json_and_comparison(tmp_path):
    kinds = {"instruction_id_list": ["detectable_format:title", "punctuation:no_comma"], "kwargs": [{}, {}]}
    lines = [{"key": i, "prompt": f"Write title {i} and no comma."} | kinds for i in range(2)]
    (tmp_path / "ifeval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    examples = tasks.get("ifeval", data_dir=tmp_path).examples("test", 2, 0)
    texts = [["<<A>> b", "<<A>>, b"], ["Sure, here:\n<<A>> b", "A, b"]]
    rows = [
        {"task": "ifeval", "prompt": example.prompt, "answer": example.answer, "completions": some}
        for example, some in zip(examples, texts, strict=True)
    ]
    path, out = tmp_path / "mine.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (report,) = _json("--completions", path, "--data-dir", tmp_path, "--out", out)["tasks"]
    assert report["own"] == {
        "prompt_strict": 0.25,
        "instruction_strict": 0.5,
        "prompt_loose": 0.5,
        "instruction_loose": 0.625,
    }
    assert set(report["own"]) <= set(report["intervals"])
    printed = _eval("--completions", path, "--data-dir", tmp_path, "--baseline", out).stdout
    assert re.search(r"instruction strict +0\.500 \[0\.\d{3}, 0\.\d{3}\]", printed)
    assert re.search(r"instruction loose +0\.000 \[0\.000, 0\.000\]", printed)  # minus itself
    # a file from before a task had figures of its own is read, and says nothing of them
    kept = [json.loads(line) for line in (out / "problems.jsonl").read_text().splitlines()]
    assert all(row.pop("own") for row in kept)
    older = tmp_path / "older.jsonl"
    older.write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert all(not problem.own for problem in results.read(older))


def test_an_evaluations_own_file_is_judged_again_with_the_same_result(whole):
    (again,) = _json("--completions", whole[0] / "problems.jsonl")["tasks"]
    (report,) = whole[1]["tasks"]
    told = ("max_new_tokens", "temperature")  # by the settings of the evaluation, which the file does not have
    assert {name: x for name, x in again.items() if name not in told} == {
        name: x for name, x in report.items() if name not in told
    }


def test_saved_completions_can_be_compared_with_results(whole, tmp_path):
    found = _json("--completions", whole[0] / "problems.jsonl", "--baseline", whole[0], "--out", tmp_path / "o")
    assert found["comparison"]["tasks"][0]["differences"]["majority"] == 0.0
    assert record.read_json(tmp_path / "o" / "results.json")["comparison"] == found["comparison"]


def test_data_dir_and_options_reach_the_tasks(tmp_path):
    line = {"question": "How many?", "answer": "#### 72"}
    (tmp_path / "gsm8k_test.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    path = tmp_path / "mine.jsonl"
    prompt = tasks.get("gsm8k", data_dir=tmp_path).examples("test", 1, 0)[0].prompt
    path.write_text(json.dumps({"task": "gsm8k", "prompt": prompt, "completion": "#### 72"}) + "\n", encoding="utf-8")
    assert _json("--completions", path, "--data-dir", tmp_path)["tasks"][0]["right"] == [1]
    assert _json("--completions", path, "--set", f"gsm8k.data_dir={tmp_path}")["tasks"][0]["right"] == [1]


@pytest.mark.parametrize("name", ["gsm8k", "aime24", "hmmt_feb_2025"])
def test_the_gold_answers_of_a_set_are_all_right(evaluation_data, tmp_path, name):
    examples = results.held_out_problems(tasks.get(name, data_dir=evaluation_data), 20, 0)
    path = tmp_path / "gold.jsonl"
    rows = [{"task": name, "prompt": one.prompt, "completion": one.references[0]} for one in examples]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (report,) = _json("--completions", path, "--data-dir", evaluation_data)["tasks"]
    assert (report["pass_at"]["1"], report["problems"]) == (1.0, 20)


# -- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a model to evaluate, or a file of completions"),
        (["embedded"], "isentrope: say what to evaluate embedded on: --tasks with some of countdown"),
        (["runs/mine"], "isentrope: there is no folder runs/mine; if it is a hub id, say what to evaluate"),
        (["embedded", "--tasks", "countdwn"], "unknown task 'countdwn'; did you mean 'countdown'?"),
        (["embedded", "--tasks", "appworld"], "task appworld is judged by servers that play it"),
        (["embedded", "--tasks", "countdown,countdown"], "names countdown more than once"),
        (["none", "--tasks", "countdown"], "cannot load model 'none'"),
        (["embedded", *SMALL, "--data-dir", "."], "none of the tasks countdown reads data"),
        (["embedded", *SMALL, "--set", "gsm8k.x=1"], "expected TASK.OPTION=VALUE with a task out of countdown"),
        (["embedded", *SMALL, "--resume"], "--resume needs --out"),
        (["embedded", *SMALL, "--resume", "--out", "none"], "holds no evaluation to continue"),
        (["embedded", *SMALL, "--backend", "vlm"], "there is no backend 'vlm'"),
        (["embedded", *SMALL, "--max-tokens", "600"], "exceed the model's context of 512"),
        (["embedded", *SMALL, "--completions", "x"], "leave out embedded or --completions"),
        (["--completions", "none.jsonl", "--tasks", "countdown"], "cannot read none.jsonl"),
        (["--completions", "none.jsonl", "--tasks", "countdown", "--resume"], "scoring a file starts anew"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in _refused(*arguments)


def test_a_folder_is_not_written_over_and_goes_on_only_as_it_began(whole):
    assert "is not empty" in _refused("embedded", *SMALL, "--out", whole[0])
    line = _refused("embedded", *SMALL, "--temperature", 0.5, "--out", whole[0], "--resume")
    assert "temperature was 1.0 in" in line
    assert "is 0.5 now" in line


def test_a_baseline_on_other_tasks_or_of_another_kind_is_refused(whole, tmp_path):
    arguments = ["embedded", "--tasks", "digitsum", "--k", 1, "--limit", 1, "--out", tmp_path / "o"]
    assert "was evaluated on countdown and has none of the tasks digitsum" in _refused_after(*arguments, whole[0])
    (tmp_path / "results.json").write_text("[]")
    found = _eval(*arguments[:-1], tmp_path / "p", "--baseline", tmp_path / "results.json")
    assert "this is no results.json of schema 1" in found.stderr


def _refused_after(*arguments):
    *rest, baseline = arguments
    found = _eval(*rest, "--baseline", baseline)
    assert found.exit_code == 2
    return found.stderr


# -- what is shown --------------------------------------------------------------------------------------


def _report(*samples, task="t"):
    from isentrope.evaluate import summarise

    return summarise([Problem(task, "k", "p", None, samples)] * 30, 1.0, 64, 0).to_dict()


def test_a_small_set_is_said_to_be_small_and_a_large_one_is_not():
    right, wrong = Sample("", "right", 1.0, "7"), Sample("", "wrong", 0.0, "8")
    (text,) = _evaluation_table.sentences([_report(right, wrong)])[1:]
    assert "the choice of 30 problems alone makes a pass@1 of 0.500 uncertain by ±0.168 (95%)" in text
    assert "differ by up to 0.238 by chance" in text  # sqrt(2) * .168
    assert _evaluation_table.sentences([_report(right) | {"problems": 500}])[1:] == []


def test_what_could_not_be_scored_and_what_was_cut_is_said():
    right, unscored = Sample("", "right", 1.0, "7", "", 64, True, 1.0), Sample("", "unscored", 0.0, "", "time-out")
    said = " ".join(_evaluation_table.sentences([_report(right, unscored) | {"problems": 500}]))
    assert "50.0% of the completions could not be scored and count neither way; pass@2 is over the 0 of 500" in said
    assert "100.0% of the completions were cut at 64 tokens" in said


def test_the_time_left_is_that_of_what_is_to_do(capsys):
    times = iter([0.0, 10.0, 11.0, 40.0])
    lines = Lines(Console(force_terminal=False), "m: t", 10, 4, 10.0, lambda: next(times))
    lines(2)  # two of six in ten seconds, four to go
    lines(2)  # a second later: nothing is said
    lines(2)
    assert capsys.readouterr().out.splitlines() == ["m: t: 6/10 problems  left 0:20", "m: t: 10/10 problems  left 0:00"]


def test_a_terminal_gets_a_bar(capsys):
    with progress(Console(force_terminal=True, width=80), "m: t", 4, 1) as advance:
        advance(2)
    assert "3/4" in capsys.readouterr().out


def test_groups_depend_on_lengths_alone_and_hold_every_problem_once():
    lengths = [5, 3, 9, 3, 1]
    for samples, batch in ((1, 1), (4, 8), (8, 4), (2, 100)):
        groups = _evaluation.sorted_batches(lengths, samples, batch)
        flat = [place for group in groups for place in group]
        assert sorted(flat) == list(range(5))
        assert [lengths[place] for place in flat] == sorted(lengths)
        assert all(len(group) * samples <= max(batch, samples) for group in groups)
