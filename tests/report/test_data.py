"""Reading runs: ours, those of others, and files that are not what they should be."""

import json

import pytest

from isentrope import record
from isentrope.errors import IsentropeError
from isentrope.record import RunFolder
from isentrope.report.data import Curve, load, read_curves

from . import synthetic


def test_a_run_of_ours_holds_everything(tmp_path):
    (run,) = load([synthetic.write_run(tmp_path / "mine")])
    assert (run.name, run.engine, run.entropy_kind) == ("mine", "isentrope", "exact")
    assert len(run.curve("reward")) == 40
    assert run.tasks == ["addition", "countdown"]
    assert [(one.step, one.task) for one in run.evaluations] == [
        (0, "addition"),
        (0, "countdown"),
        (40, "addition"),
        (40, "countdown"),
    ]
    assert run.dumped == (20, 40)
    assert run.updates_per_rollout == 4
    assert "torch" in run.versions


def test_dumped_tokens_say_who_moves_the_entropy_where_nothing_else_does(tmp_path):
    live, dumped = load([synthetic.write_run(tmp_path / str(i), live=bool(i)) for i in (1, 0)])
    assert len(live.curve("diagnostics/change_share/PA&HP")) == 40
    assert dumped.curve("change_share/PA&HP").steps == (20, 40)


def test_later_evaluations_stand_at_their_step(tmp_path):
    folder = RunFolder(synthetic.write_run(tmp_path / "mine", tasks=("math",)))
    record.write_json(folder.path / "evaluation-step-000020.json", [synthetic.evaluation("math", 0.1)])
    (run,) = load([folder.path])
    assert [one.step for one in run.evaluations] == [0, 20, 40]


def test_numbers_that_are_not_finite_and_no_numbers_are_no_points():
    lines = [
        {"step": 1, "time": 5.0, "a": 1.0, "b": float("nan"), "c": "text", "d": True},
        {"step": 2, "a": None},
        {"step": 2, "a": float("inf")},
        {"step": 3, "a": 2},
        {"step": 3, "a": 4},
    ]
    assert read_curves(lines) == {"a": Curve((1, 3), (1.0, 4.0))}


def test_ends_are_means_over_a_tenth():
    values = [float(i) for i in range(20)]
    assert Curve(tuple(values), tuple(values)).ends == (0.5, 18.5)
    assert Curve((1.0,), (3.0,)).ends == (3.0, 3.0)


def test_equal_names_get_the_folder_that_tells_them_apart(tmp_path):
    paths = [synthetic.write_run(tmp_path / parent / "run", steps=2, dumped=()) for parent in "ab"]
    assert [run.name for run in load(paths)] == ["a/run", "b/run"]


def test_a_folder_of_runs_gives_all_of_them(tmp_path):
    for name in "ab":
        synthetic.write_run(tmp_path / name, steps=2, dumped=())
    assert [run.name for run in load([tmp_path])] == ["a", "b"]


def test_a_run_of_trl_is_read_as_far_as_it_goes(tmp_path):
    log = [{"step": i, "reward": 0.1 * i, "entropy": 0.5, "completions/mean_length": 9.0} for i in range(1, 30)]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trainer_state.json").write_text(json.dumps({"log_history": log, "global_step": 29}))
    (run,) = load([tmp_path / "out"])
    assert (run.name, run.engine) == ("out", "trl")
    assert len(run.curve("reward")) == 29
    assert (run.recipe, run.evaluations, run.dumped) == ({}, (), ())
    assert any("cannot be said" in sentence for sentence in run.lacks)


def test_the_same_path_twice_is_refused(tmp_path):
    path = synthetic.write_run(tmp_path / "mine", steps=2, dumped=())
    with pytest.raises(IsentropeError, match="named twice"):
        load([path, tmp_path / "x" / ".." / "mine"])


def test_what_holds_no_run_is_named(tmp_path):
    with pytest.raises(IsentropeError, match=r"there is no .*none"):
        load([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(IsentropeError, match="empty holds nothing that is known"):
        load([tmp_path / "empty"])


@pytest.mark.parametrize(
    "content",
    [
        "[1]",
        "3",
        '[{"task": "a"}]',
        '[{"task": "a", "problems": 1, "pass_at": {"one": 1}}]',
        '[{"task": "a", "problems": 1, "pass_at": {"1": "x"}}]',
        '[{"task":"a","problems":1,"pass_at":{"1":1},"interval":[1]}]',
    ],
)
def test_an_evaluation_that_is_none_is_named(tmp_path, content):
    path = synthetic.write_run(tmp_path / "mine", steps=2, dumped=())
    (path / "evaluation-after.json").write_text(content)
    with pytest.raises(IsentropeError, match=r"evaluation-after\.json is not an evaluation"):
        load([path])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("versions.json", "[]", "is not a JSON object"),
        ("recipe.toml", "a = ", "recipe.toml is not"),
        ("metrics.jsonl", "{}\n", "without|whole number"),
    ],
)
def test_other_files_that_are_not_what_they_should_be_are_named(tmp_path, name, content, message):
    path = synthetic.write_run(tmp_path / "mine", steps=2, dumped=())
    (path / name).write_text(content)
    with pytest.raises(IsentropeError, match=message):
        load([path])
