"""The run folder: written whole, read back equal, and clear about what cannot be read or written."""

import json
import math
import os
from pathlib import Path

import pytest
import torch

from isentrope import record
from isentrope.errors import IsentropeError
from isentrope.record import RunFolder

INF = math.inf


def test_json_reads_back_equal_and_is_strict_json(tmp_path):
    value = {"a": [1, 2.5, INF, -INF], "b": {"c": None, "d": "text"}}
    record.write_json(tmp_path / "x.json", value)
    assert record.read_json(tmp_path / "x.json") == value
    json.loads((tmp_path / "x.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_nan_survives_json(tmp_path):
    record.write_json(tmp_path / "x.json", [math.nan])
    assert math.isnan(record.read_json(tmp_path / "x.json")[0])


def test_a_failing_write_leaves_the_old_file_and_no_temporary(tmp_path):
    path = tmp_path / "x.json"
    record.write_json(path, 1)
    with pytest.raises(TypeError):
        record.write_json(path, {1, 2})
    assert record.read_json(path) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_has_the_usual_permissions(tmp_path):
    record.write_text(tmp_path / "ours", "")
    (tmp_path / "usual").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_path_that_cannot_be_written_is_named_with_advice(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(IsentropeError, match=r"cannot write .*file.x\.json: File exists.*--out"):
        record.write_text(tmp_path / "file" / "x.json", "")


def test_a_full_disk_is_one_clear_line():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this system")
    with pytest.raises(IsentropeError, match="cannot write /dev/full: No space left on device"):
        record.append_metrics(Path("/dev/full"), 1, {})


def test_reading_what_is_missing_or_no_json_names_the_file(tmp_path):
    with pytest.raises(IsentropeError, match=r"cannot read .*none\.json: No such file"):
        record.read_json(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(IsentropeError, match=r"bad\.json is not JSON"):
        record.read_json(tmp_path / "bad.json")


def test_reading_is_bounded(tmp_path, monkeypatch):
    record.write_json(tmp_path / "x.json", "a" * 100)
    monkeypatch.setattr(record, "MAX_JSON_BYTES", 50)
    with pytest.raises(IsentropeError, match="more than 50 bytes"):
        record.read_json(tmp_path / "x.json")
    monkeypatch.setattr(record, "MAX_LINE_BYTES", 50)
    (tmp_path / "m.jsonl").write_text("x" * 100 + "\n")
    with pytest.raises(IsentropeError, match="line 1 is longer than 50 bytes"):
        record.read_metrics(tmp_path / "m.jsonl")


def test_versions_hold_what_a_rerun_needs():
    found = record.versions(seed=7)
    assert found["seed"] == 7
    assert found["torch"].startswith(torch.__version__.split("+")[0])
    assert {"isentrope", "python", "transformers", "trl", "platform", "started"} <= set(found)


def test_a_new_folder_is_made_and_an_empty_one_taken(tmp_path):
    assert RunFolder.create(tmp_path / "a" / "b").path.is_dir()
    assert RunFolder.create(tmp_path / "a" / "b").path.is_dir()


def test_a_folder_with_anything_in_it_is_refused_with_advice(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(IsentropeError, match="is not empty; continue the run in it with --resume, choose another"):
        RunFolder.create(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(IsentropeError, match=r"cannot write .*file.run"):
        RunFolder.create(tmp_path / "file" / "run")


def test_what_a_killed_process_left_before_its_first_file_does_not_fill_a_folder(tmp_path):
    for name in (".lock", ".writable", ".recipe-ab12_cd3.toml"):
        (tmp_path / name).touch()
    assert RunFolder.create(tmp_path).path == tmp_path


def test_resuming_needs_a_run_and_starts_over_without_a_complete_checkpoint(tmp_path):
    with pytest.raises(IsentropeError, match="holds no run to resume"):
        RunFolder.resume(tmp_path)
    (tmp_path / "recipe.toml").touch()
    (tmp_path / "checkpoints" / "checkpoint-5").mkdir(parents=True)
    assert RunFolder.resume(tmp_path).last_checkpoint() is None
    record.finish_checkpoint(tmp_path / "checkpoints" / "checkpoint-5")
    assert RunFolder.resume(tmp_path).last_checkpoint() == tmp_path / "checkpoints" / "checkpoint-5"


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    with record.locked(tmp_path):
        with pytest.raises(IsentropeError, match="another process is at work in"), record.locked(tmp_path):
            pytest.fail("two writers")
        assert list(tmp_path.iterdir()), "the one that was refused must not lift the lock"
    assert not list(tmp_path.iterdir())
    with record.locked(tmp_path):
        pass


def test_the_last_checkpoint_is_the_highest_complete_one(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (9, 10, 11):
        (folder.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
    for step in (9, 10):
        record.finish_checkpoint(folder.checkpoints / f"checkpoint-{step}")
    assert folder.last_checkpoint() == folder.checkpoints / "checkpoint-10"
    record.rewind(folder, 10)
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["checkpoint-10", "checkpoint-9"]
    record.prune_checkpoints(folder.checkpoints, keep=1)
    assert [path.name for path in folder.checkpoints.iterdir()] == ["checkpoint-10"]


def test_half_a_deleted_checkpoint_is_none(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    for step in (9, 10):
        (folder.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
        record.finish_checkpoint(folder.checkpoints / f"checkpoint-{step}")
    monkeypatch.setattr(record.shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        record.prune_checkpoints(folder.checkpoints, keep=1)
    assert not (folder.checkpoints / "checkpoint-9" / record.COMPLETE).exists()
    assert folder.last_checkpoint() == folder.checkpoints / "checkpoint-10"


def test_rewinding_leaves_what_was_there_at_the_step(tmp_path):
    folder = RunFolder(tmp_path)
    for step in range(1, 6):
        record.append_metrics(folder.metrics, step, {"reward": 0.5})
    folder.tokens.mkdir()
    for name in (
        "step-000003.parquet",
        "step-000004.parquet",
        "step-000004.rank1.parquet",
        ".step-000005-ab12cd34.parquet",
    ):
        (folder.tokens / name).touch()
    (tmp_path / ".summary-ab12cd34.json").touch()
    record.rewind(folder, 3)
    assert [line["step"] for line in record.read_metrics(folder.metrics)] == [1, 2, 3]
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["metrics.jsonl", "step-000003.parquet"]


def test_metrics_read_back_in_order(tmp_path):
    path = tmp_path / "metrics.jsonl"
    record.append_metrics(path, 1, {"reward": 0.5, "name": "left out", "kl": None})
    record.append_metrics(path, 2, {"reward": math.inf})
    first, second = record.read_metrics(path)
    assert first["step"] == 1
    assert first["reward"] == 0.5
    assert first["kl"] is None
    assert "name" not in first
    assert second["reward"] == INF
    assert second["time"] >= first["time"] > 1.7e9


def test_a_line_cut_by_a_kill_is_no_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    record.append_metrics(path, 1, {"reward": 0.5})
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole + whole[:length])
        assert [line["step"] for line in record.read_metrics(path)] == [1]


def test_truncating_drops_later_steps_and_a_half_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2, 3):
        record.append_metrics(path, step, {"reward": float(step)})
    path.write_bytes(path.read_bytes() + b'{"step": 4')
    assert record.truncate_metrics(path, 2) == 2
    record.append_metrics(path, 3, {"reward": 30.0})
    assert [(line["step"], line["reward"]) for line in record.read_metrics(path)] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert record.truncate_metrics(tmp_path / "none", 2) == 0


@pytest.mark.parametrize(
    ("text", "message"), [("{]", "line 2 is not JSON"), ('{"a": 1}', "under 'step'"), ("3", "under 'step'")]
)
def test_a_line_that_is_no_metrics_line_is_named(tmp_path, text, message):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + text + "\n")
    with pytest.raises(IsentropeError, match=message):
        record.read_metrics(path)
