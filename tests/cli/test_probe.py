"""`isentrope probe`."""

import json
from pathlib import Path

import torch
from typer.testing import CliRunner

from isentrope.cli import app
from isentrope.token_dump import TokenWriter

FAST = ["--count", "4", "--tokens", "8", "--format", "float32", "--format", "bfloat16"]


def test_probe_prints_a_row_a_format_and_advice(tmp_path: Path) -> None:
    picture = tmp_path / "formats.png"
    found = CliRunner().invoke(app, ["probe", "embedded", *FAST, "--plot", str(picture)])
    assert found.exit_code == 0, found.output
    assert "bfloat16" in found.stdout
    assert "clip band at learning rate 0" in found.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_probe_as_json_is_the_same_for_the_same_seed() -> None:
    runs = [CliRunner().invoke(app, ["probe", "embedded", *FAST, "--json"]) for _ in range(2)]
    first, second = (json.loads(run.stdout) for run in runs)
    assert first == second
    assert [form["name"] for form in first["formats"]] == ["float32", "bfloat16"]
    assert first["num_tokens"] > 0


def test_prompts_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("1,2,3,4>24:\n\n5,6,7,8>30:\n", encoding="utf-8")
    found = CliRunner().invoke(app, ["probe", "embedded", *FAST, "--prompts", str(file), "--json"])
    assert found.exit_code == 0, found.output
    assert 0 < json.loads(found.stdout)["num_tokens"] <= 16


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "none.txt"
    empty.write_text("\n", encoding="utf-8")
    for arguments, reason in (
        (["--format", "int3"], "there is no format 'int3'"),
        (["--prompts", str(empty)], "holds no prompt"),
        (["--prompts", str(tmp_path / "missing.txt")], "cannot read prompts"),
    ):
        found = CliRunner().invoke(app, ["probe", "embedded", *arguments])
        assert found.exit_code == 2
        assert reason in found.stderr
        assert len(found.stderr.strip().splitlines()) == 1


def test_a_runs_sampler_is_set_against_its_trainer(tmp_path: Path) -> None:
    old = -torch.rand(3, 4) - 0.1
    columns = {
        "row": torch.arange(3),
        "group": torch.arange(3),
        "token_id": torch.ones(3, 4, dtype=torch.long),
        "mask": torch.ones(3, 4, dtype=torch.bool),
    }
    columns |= dict.fromkeys(("logp", "old_logp", "entropy", "advantage", "weight"), old)
    writer = TokenWriter(tmp_path / "tokens")
    writer(1, columns | {"rollout_logp": old - 0.5})
    writer.close()
    found = CliRunner().invoke(app, ["probe", "embedded", *FAST, "--sampler", str(tmp_path), "--json"])
    assert found.exit_code == 0, found.output
    sampler = json.loads(found.stdout)["sampler"]
    assert sampler["num_tokens"] == 12
    assert abs(sampler["bias"] - 0.5) < 1e-5
    assert sampler["above"] == 1.0
    shown = CliRunner().invoke(app, ["probe", "embedded", *FAST, "--sampler", str(tmp_path)])
    assert "sampler against trainer, 12 tokens" in shown.stdout


def test_a_run_without_a_dump_has_no_sampler_to_compare(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["probe", "embedded", *FAST, "--sampler", str(tmp_path)])
    assert found.exit_code == 2
    assert "holds no token dump" in found.stderr
