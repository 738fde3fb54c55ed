"""The command line as a whole: verbs are found, help works, importing it is cheap."""

import re
import shlex
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from isentrope import cli


def test_every_verb_has_help_from_its_docstring():
    assert "train" in cli.verbs()
    for verb in cli.verbs():
        result = CliRunner().invoke(cli.app, [verb, "--help"])
        assert result.exit_code == 0
        assert "--debug" in result.stdout


def test_the_verbs_are_listed():
    result = CliRunner().invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    for verb in cli.verbs():
        assert verb in result.stdout


def test_importing_the_command_line_takes_no_host_framework_along():
    heavy = ("transformers", "trl", "datasets", "pyarrow", "pydantic", "matplotlib")
    code = f"import isentrope.cli, sys; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_the_package_runs_as_a_module():
    result = subprocess.run([sys.executable, "-m", "isentrope", "--help"], capture_output=True, text=True, check=True)
    assert "train" in result.stdout


def test_an_unknown_verb_is_bad_input():
    assert CliRunner().invoke(cli.app, ["trian"]).exit_code == 2


@pytest.mark.parametrize("verb", cli.verbs())
def test_the_help_of_every_verb_shows_an_example_that_its_parser_takes(verb):
    command = typer.main.get_command(cli.app).commands[verb]
    examples = re.findall(r"^ *(?:.*: )?isentrope (.+)$", command.help, re.MULTILINE)
    assert "Example: isentrope" in command.help
    for example in examples:
        named, *arguments = shlex.split(example)
        assert named == verb
        command.make_context(verb, arguments)  # an unknown option or a missing argument raises
