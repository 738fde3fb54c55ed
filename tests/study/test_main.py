"""The command of the study: options that would be ignored are refused."""

import pytest
import typer
from typer.testing import CliRunner

from isentrope.study import __main__ as command

APP = typer.Typer()
APP.command()(command.main)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--runs", "x"], "--runs has no effect"),
        (["--language-model", "--steps", "16"], "--steps has no effect"),
        (["--only", "nothing"], "no experiment 'nothing'"),
        (["--language-model", "--only", "chains"], "no experiment 'chains'"),
    ],
)
def test_what_would_be_ignored_is_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(APP, arguments)
    assert result.exit_code == 2
    assert said in result.output.replace("\n", " ").replace("│", "")
