"""Rollouts from a world: through the whole command with a server that speaks AppWorld's protocol."""

import importlib.util
import json
from contextlib import ExitStack

import pytest
from typer.testing import CliRunner

from isentrope import models, recipe, tasks
from isentrope.cli import _sources, app
from isentrope.engines import trl
from isentrope.errors import IsentropeError

from ..engines import tool_model
from ..tasks import appworld_server

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs trl"),
    pytest.mark.filterwarnings("ignore:You are using '(rollout_func|environment_factory)':UserWarning"),
]
TEXT = """
objective = "grpo"
[[task]]
name = "appworld"
[trainer]
steps = 1
problems = 4
prompts = 2
group_size = 2
minibatches = 1
max_completion_length = 160
[evaluation]
problems = 0
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": [{"name": "appworld"}, {"name": "gsm8k"}]}, "it cannot be mixed with others"),
        ({"evaluation.problems": 5}, "set evaluation.problems = 0"),
        ({"trainer.sampler": "shared_prefill"}, "leave trainer.sampler at auto"),
    ],
)
def test_what_a_world_cannot_have_is_refused(tmp_path, change, message):
    (tmp_path / "r.toml").write_text(TEXT)
    found = recipe.load(str(tmp_path / "r.toml"), overrides=change)
    with pytest.raises(IsentropeError, match=message):
        _sources.check(found, [(tasks.get(task.name), 1.0) for task in found.task])


def test_a_task_with_a_verifier_is_no_world():
    assert not _sources.is_world(tasks.get("countdown"))
    assert not _sources.is_world(tasks.get("apps"))  # plays its turns itself
    assert _sources.is_world(tasks.get("appworld"))


@pytest.mark.slow
def test_a_recipe_trains_on_servers_that_judge_the_world(tmp_path, monkeypatch):
    (tmp_path / "ids.txt").write_text("a_1\nb_1\nc_1\nd_1\n")
    (tmp_path / "r.toml").write_text(TEXT)
    words = tool_model.tokenizer()
    monkeypatch.setattr(models, "load", lambda *_: (tool_model.model(len(words), context=4096), words))
    seen = []

    def choose(text):
        task_id = text.rsplit("Set done to ", 1)[1].split(".", 1)[0]
        if text.endswith("<t>Execution successful.<a>"):
            return "done<eos>"
        seen.append(task_id)
        return tool_model.call("execute", code=f"set done {task_id if len(seen) % 2 else 'no'}")

    class Scripted(trl.ObjectiveTrainer):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            tool_model.scripted(self, choose)

    monkeypatch.setattr(trl, "ObjectiveTrainer", Scripted)
    with ExitStack() as stack:
        servers = stack.enter_context(appworld_server.serving(4))
        monkeypatch.setattr(
            type(tasks.get("appworld")), "urls", lambda self, rank: [server.url for server in servers]
        )  # the servers' ports are those that were free
        arguments = [str(tmp_path / "r.toml"), "--set", f"task.0.options.ids={tmp_path / 'ids.txt'}"]
        found = CliRunner().invoke(app, ["train", *arguments, "--out", str(tmp_path / "run"), "--json"])
    assert found.exit_code == 0, found.output
    summary = json.loads(found.stdout)
    assert summary["reward"] == [0.5, 0.5]
    assert all("execute" in [method for method, _ in server.calls] for server in servers)
