"""verl's validation dump as our evaluation: every sample with its problem and its verdict."""

import json

import pytest

from isentrope import recipe
from isentrope.engines import verl_data, verl_evaluation
from isentrope.errors import IsentropeError
from isentrope.tasks import compute_score


@pytest.fixture
def rows():
    found = recipe.load("verl", ['task=[{name="countdown"}, {name="digitsum"}]', "evaluation.problems=3"])
    return found, verl_data.held_out_rows(found, verl_data.mix_of(found))


def _dump(path, rows, answers):
    """What verl writes: `answers` of each problem, scored by what it scores with."""
    lines = []
    for row in rows:
        gold = row["reward_model"]["ground_truth"]
        for text in answers(row):
            scored = compute_score(row["data_source"], text, gold, row["extra_info"])
            lines.append({"input": row["prompt"][-1]["content"], "output": text, "gts": gold, "step": 0, **scored})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _reference(row):
    from isentrope import tasks

    task = tasks.get(row["data_source"])
    examples = {json.dumps(e.answer) + str(e.prompt): e for e in task.examples("test", 3, verl_data.PROBLEM_SEED)}
    return examples[row["reward_model"]["ground_truth"] + row["extra_info"]["prompt"]].references[0]


def test_right_and_wrong_samples_are_counted_by_task(tmp_path, rows):
    made, held_out = rows
    _dump(tmp_path / "0.jsonl", held_out, lambda row: [_reference(row), "no idea"])
    countdown, digitsum = verl_evaluation.reports(tmp_path / "0.jsonl", held_out, made)
    for report, name in ((countdown, "countdown"), (digitsum, "digitsum")):
        assert report["task"] == name
        assert (report["problems"], report["samples"]) == (3, 2)
        assert report["pass_at"] == {"1": 0.5, "2": 1.0}
        assert report["right"] == (1, 1, 1)
        assert report["no_answer"] == 0.5
        assert report["temperature"] == 1.0


def test_a_problem_is_known_by_its_prompt_where_answers_agree(tmp_path, rows):
    made, held_out = rows
    first = dict(held_out[0])
    twin = first | {
        "prompt": [{"role": "user", "content": "9,9:36="}],
        "extra_info": first["extra_info"] | {"prompt": "9,9:36="},
    }
    _dump(tmp_path / "0.jsonl", [first, twin], lambda row: ["x"] * (1 if row is twin else 3))
    (report,) = verl_evaluation.reports(tmp_path / "0.jsonl", [twin, first], made)
    assert report["problems"] == 2
    assert report["samples"] == 3


def test_a_sample_of_another_run_is_refused(tmp_path, rows):
    made, held_out = rows
    _dump(tmp_path / "0.jsonl", held_out, lambda _: ["x"])
    with pytest.raises(
        IsentropeError, match=r"0\.jsonl line 1 holds a sample of a problem that this run does not have"
    ):
        verl_evaluation.reports(tmp_path / "0.jsonl", held_out[1:], made)


def test_a_missing_dump_is_said(tmp_path, rows):
    made, held_out = rows
    with pytest.raises(IsentropeError, match="cannot read verl's validation"):
        verl_evaluation.reports(tmp_path / "0.jsonl", held_out, made)


# -- the data


def test_training_rows_are_those_of_the_other_engines_in_verls_form():
    from isentrope import tasks

    found = recipe.load("verl", ['task=[{name="countdown"}, {name="digitsum", weight=3.0}]', "trainer.problems=64"])
    mix = verl_data.mix_of(found)
    rows = verl_data.training_rows(found, mix)
    ours = tasks.dataset_rows(mix, "train", 64, found.seed)
    assert [row["prompt"] for row in rows] == [[{"role": "user", "content": row["prompt"]}] for row in ours]
    assert [row["data_source"] for row in rows] == [row["task"] for row in ours]
    assert [row["reward_model"]["ground_truth"] for row in rows] == [row["answer"] for row in ours]
    assert [row["extra_info"]["index"] for row in rows] == list(range(64))
    assert sum(row["data_source"] == "digitsum" for row in rows) == 48


def test_parquet_gives_the_rows_back(tmp_path, rows):
    import pyarrow.parquet as pq

    _, held_out = rows
    verl_data.write_parquet(tmp_path / "x.parquet", held_out)
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == held_out


def test_a_task_of_a_file_is_named_so_that_every_process_finds_it(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from isentrope.tasks import Countdown\nmine = Countdown()\n")
    monkeypatch.chdir(tmp_path)
    found = recipe.load("verl", ['task=[{name="mine.py:mine"}]'])
    (row, *_) = verl_data.training_rows(found, verl_data.mix_of(found))
    assert row["data_source"] == f"{tmp_path}/mine.py:mine"
    gold, prompt = row["reward_model"]["ground_truth"], row["extra_info"]
    assert compute_score(row["data_source"], "nothing", gold, prompt)["score"] == 0.0


def test_options_of_a_task_reach_its_verifier(evaluation_data):
    options = f'task=[{{name="gsm8k", options={{data_dir="{evaluation_data}"}}}}]'
    found = recipe.load("verl", [options])
    mix = verl_data.mix_of(found)
    assert verl_data.task_options(found, mix) == {"gsm8k": {"data_dir": str(evaluation_data)}}


@pytest.mark.engine
def test_the_longest_prompt_is_measured_in_tokens():
    from importlib.resources import files

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(files("isentrope") / "embedded"))
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in ("12:", "1,2,3:")]
    assert verl_data.longest_prompt(tokenizer, rows, plain=True) == len(tokenizer("1,2,3:")["input_ids"])
    tokenizer.chat_template = None
    with pytest.raises(IsentropeError, match="no chat template"):
        verl_data.longest_prompt(tokenizer, rows, plain=False)
