"""AppWorld as a task of a recipe: its ids, its servers, and what it refuses."""

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.tasks.appworld import AppWorldError
from isentrope.tasks.appworld_task import AppWorld

from .appworld_server import serving


def _file(path, *ids):
    path.write_text("".join(f"{one}\n" for one in ids), encoding="utf-8")
    return str(path)


def test_its_examples_are_the_ids_of_the_file(tmp_path):
    task = tasks.get("appworld", ids=_file(tmp_path / "train.txt", "a_1", "a_2", "b_1"))
    found = task.examples("train", 3, 0)
    assert {one.answer for one in found} == {"a_1", "a_2", "b_1"}
    assert found == task.examples("train", 3, 0)
    assert found[0].prompt[0]["role"] == "user"
    rows = tasks.dataset_rows(task, "train", 3, 0)
    assert {row["answer"] for row in rows} == {'"a_1"', '"a_2"', '"b_1"'}


def test_a_text_is_not_judged():
    task = tasks.get("appworld")
    score = task.score("done", tasks.Example("", "a_1", "appworld"))
    assert (score.outcome, score.reason) == ("unscored", "judged by AppWorld's server, from the state of its world")


def test_each_process_has_servers_of_its_own(monkeypatch):
    task = tasks.get(
        "appworld", url="http://here", port=9000, servers=2, partial=True, settings={"max_interactions": 40}
    )
    assert task.urls(0) == ["http://here:9000", "http://here:9001"]
    assert task.urls(3) == ["http://here:9006", "http://here:9007"]
    monkeypatch.setenv("LOCAL_RANK", "1")
    factory = task.environment_factory()
    assert list(factory.urls) == ["http://here:9002", "http://here:9003"]
    assert (factory.partial, factory.settings) == (True, {"max_interactions": 40})


def test_it_validates_its_splits_and_its_servers(tmp_path):
    train, dev = _file(tmp_path / "train.txt", "a_1", "b_1"), _file(tmp_path / "dev.txt", "c_1")
    with serving() as (server,):
        url, port = server.url.rsplit(":", 1)
        tasks.get("appworld", ids=train, held_out_ids=dev, url=url, port=int(port), servers=1).validate()
        mixed = _file(tmp_path / "dev.txt", "a_2")
        with pytest.raises(IsentropeError, match="has scenarios in both splits: a"):
            tasks.get("appworld", ids=train, held_out_ids=mixed, url=url, port=int(port), servers=1).validate()
    with pytest.raises(AppWorldError, match="start a server there"):
        tasks.get("appworld", ids=train, url=url, port=int(port), servers=1).validate()


def test_what_is_missing_or_impossible_is_named(tmp_path):
    with pytest.raises(IsentropeError, match="needs a file of task ids for the split 'train': set ids"):
        tasks.get("appworld").examples("train", 1, 0)
    with pytest.raises(IsentropeError, match="for the split 'test': set held_out_ids"):
        tasks.get("appworld", ids="x").examples("test", 1, 0)
    with pytest.raises(IsentropeError, match="`appworld download data` makes"):
        tasks.get("appworld", ids=str(tmp_path / "none.txt")).examples("train", 1, 0)
    for options in ({"servers": 0}, {"port": 0}, {"port": 70_000}):
        with pytest.raises(ValueError, match="give at least 1, and a port"):
            AppWorld(**options)
