"""The file: whole or not at all, under 8 MB, and what the command says."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from isentrope import report
from isentrope.cli import app
from isentrope.errors import IsentropeError
from isentrope.report.data import Curve, RunData
from isentrope.token_dump import TokenWriter

from . import synthetic


def test_the_command_writes_the_file_and_says_where(two_runs, tmp_path):
    out = tmp_path / "deep" / "page.html"
    result = CliRunner().invoke(app, ["report", *map(str, two_runs), "-o", str(out)])
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{out} (0.2 MB, 2 runs)\n"
    assert out.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


def test_without_an_option_the_file_is_report_html_here(two_runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["report", str(two_runs[0])])
    assert result.stdout == "report.html (0.1 MB, 1 run)\n"
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "there is no none"),
        (["RUN", "RUN"], "is named twice"),
        (["RUN", "-o", "."], "is a folder; name a file with -o"),
        (["RUN", "-o", "/dev/null/x.html"], "cannot write"),
    ],
)
def test_bad_input_is_one_line_and_status_2(two_runs, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    given = [str(two_runs[0]) if argument == "RUN" else argument for argument in arguments]
    result = CliRunner().invoke(app, ["report", *given])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line


def test_a_run_that_cannot_be_read_leaves_the_old_page(tmp_path):
    path = synthetic.write_run(tmp_path / "mine", steps=2, dumped=())
    out = tmp_path / "report.html"
    report.write([path], out)
    before = out.read_bytes()
    (path / "metrics.jsonl").write_text("no json\n")
    with pytest.raises(IsentropeError):
        report.write([path], out)
    assert out.read_bytes() == before


def long_runs(folder, count, steps, rows):
    """Runs of many steps and curves, with a large dump each."""
    generator = torch.Generator().manual_seed(0)
    for i in range(count):
        values = tuple(torch.rand(steps, generator=generator).tolist())
        curve = Curve(tuple(map(float, range(1, steps + 1))), values)
        names = ["reward", "entropy", "clip/low", "clip/high", "kl_old", "grad_norm", "completions/mean_length"]
        names += [f"{kind}/task {k}" for kind in ("reward", "entropy/current_exact") for k in range(8)]
        writer = TokenWriter(folder / str(i))
        for step in (10, 20):
            shape = (rows, 100)
            numbers = {
                name: torch.randn(shape, generator=generator) for name in ("logp", "old_logp", "entropy", "weight")
            }
            ids = torch.randint(50_000, shape, generator=generator)
            row = torch.arange(rows)
            mask = torch.ones(shape, dtype=torch.bool)
            writer(step, numbers | {"mask": mask, "token_id": ids, "row": row, "group": row // 8})
        writer.close()
        yield RunData(
            f"run {i}", Path(str(i)), curves=dict.fromkeys(names, curve), tokens=folder / str(i), dumped=(10, 20)
        )


def test_long_runs_with_large_dumps_stay_under_8_mb(tmp_path):
    runs = list(long_runs(tmp_path, count=8, steps=5000, rows=300))
    size = len(report.build(runs).encode())
    assert 1e6 < size <= report.MAX_BYTES == 8_000_000


def test_what_does_not_fit_is_cut_until_it_does(tmp_path):
    runs = list(long_runs(tmp_path, count=2, steps=1000, rows=20))
    whole = len(report.build(runs).encode())
    assert len(report.build(runs, limit=whole - 1).encode()) < whole / 1.5
    with pytest.raises(IsentropeError, match="does not fit into 1000 bytes"):
        report.build(runs, limit=1000)


def test_no_run_is_refused():
    with pytest.raises(IsentropeError, match="no run"):
        report.build([])
