"""What Tab offers, by the protocol that shells speak and in a shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isentrope import cli, presets, recipe, tasks


def offered(*words: str) -> list[str]:
    """What bash is told for a line of these words, the last of them being typed."""
    asked = {
        "_ISENTROPE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["isentrope", *words]),
        "COMP_CWORD": str(len(words)),
    }
    result = CliRunner().invoke(cli.app, [], env=asked, prog_name="isentrope")
    assert result.exit_code == 0, result.output
    return result.stdout.split()


def test_verbs_are_offered():
    assert offered("") == cli.verbs()
    assert offered("di") == ["diagnose", "diff"]


def test_options_are_offered():
    assert offered("train", "--ob") == ["--objective"]
    assert {"--set", "--seed", "--steps"} == set(offered("train", "--s"))


def test_presets_are_offered_wherever_an_objective_is_asked_for():
    assert set(presets.names()) <= set(offered("train", "--objective", ""))
    for line in (
        ["show", "ce"],
        ["check", "ce"],
        ["diff", "ce"],
        ["diff", "grpo", "ce"],
        ["train", "--objective", "ce"],
    ):
        assert offered(*line) == ["ce_gppo"]


def test_recipes_of_the_package_are_offered():
    assert offered("train", "") == recipe.names()
    assert offered("compare", "tab") == ["tabular"]


def test_tasks_are_offered():
    assert offered("train", "--task", "") == list(tasks.names())
    assert offered("probe", "embedded", "--task", "countd") == ["countdown"]


def test_lists_are_continued_behind_the_comma():
    assert offered("compare", "--objectives", "grpo,gep") == ["grpo,gepo"]
    assert offered("eval", "embedded", "--tasks", "gsm8k,aime24,countd") == ["gsm8k,aime24,countdown"]


def test_keys_of_a_recipe_are_offered_and_taken():
    keys = offered("train", "--set", "")
    assert "trainer.learning_rate=" in keys
    assert "seed=" in keys
    nested = recipe.Recipe().model_dump(mode="json")
    for key in keys:
        value = nested
        for part in key.removesuffix("=").split("."):
            value = value[part]
        assert not isinstance(value, dict)


def test_names_for_the_reader_of_foreign_runs_are_offered():
    assert "entropy=" in offered("diagnose", "x.csv", "--column", "ent")
    assert offered("diagnose", "x.csv", "--fact", "updates") == ["updates_per_rollout="]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["train", "--engine", "t"], ["trl", "tabular"]),
        (["train", "--model", "e"], ["embedded"]),
        (["eval", "s"], ["smollm2"]),
        (["eval", "embedded", "--backend", "v"], ["vllm"]),
        (["eval", "embedded", "--dtype", "b"], ["bfloat16"]),
    ],
)
def test_words_of_closed_lists_are_offered(line, expected):
    assert offered(*line) == expected


def test_where_nothing_of_ours_begins_so_the_shell_is_left_to_offer_files():
    assert offered("train", "./my") == []


@pytest.mark.slow
def test_bash_completes_after_sourcing_what_the_command_shows():
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    script = """
        eval "$(isentrope --show-completion)"
        complete -p isentrope
        COMP_WORDS=(isentrope train --objective ce); COMP_CWORD=3
        _isentrope_completion isentrope
        echo "${COMPREPLY[@]}"
    """
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [bash, "--norc", "-c", script], env=os.environ | path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["complete -o default -F _isentrope_completion isentrope", "ce_gppo"]
