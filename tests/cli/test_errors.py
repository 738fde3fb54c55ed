"""Errors reach the user as one line and an exit status."""

import pytest
import typer

from isentrope.cli._errors import RunFailed, failing, in_one_line
from isentrope.errors import IsentropeError


def _outcome(capsys, error, **options):
    def verb(debug=False):
        raise error

    with pytest.raises(typer.Exit) as caught:
        in_one_line(verb)(**options)
    return caught.value.exit_code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (IsentropeError("no such\n  task"), 2, "isentrope: no such task\n"),
        (RunFailed("the run stopped"), 1, "isentrope: the run stopped\n"),
        (KeyboardInterrupt(), 130, "isentrope: interrupted\n"),
        (
            KeyError("x"),
            1,
            "isentrope: unexpected KeyError: 'x' (--debug shows where; this may be a fault of isentrope)\n",
        ),
    ],
)
def test_each_kind_of_error_has_its_status_and_one_line(capsys, error, status, text):
    assert _outcome(capsys, error) == (status, text)


def test_debug_lets_the_error_through():
    def verb(debug=False):
        raise KeyError("x")

    with pytest.raises(KeyError):
        in_one_line(verb)(debug=True)


def test_an_exit_keeps_its_status():
    def verb():
        raise typer.Exit(3)

    with pytest.raises(typer.Exit) as caught:
        in_one_line(verb)()
    assert caught.value.exit_code == 3


def test_a_run_that_breaks_leaves_its_traceback(tmp_path):
    with (
        pytest.raises(RunFailed, match=r"the run stopped: reward is NaN \(traceback in .*error\.txt\)"),
        failing(tmp_path / "error.txt"),
    ):
        raise ValueError("reward is NaN")
    assert "ValueError: reward is NaN" in (tmp_path / "error.txt").read_text()


def test_where_the_traceback_cannot_be_kept_the_message_still_comes(tmp_path):
    with (
        pytest.raises(RunFailed, match="the run stopped: RuntimeError: boom"),
        failing(tmp_path / "none" / "error.txt"),
    ):
        raise RuntimeError("boom")
