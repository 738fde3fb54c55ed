"""Text of tokens: the pieces joined are the text, with every kind of tokenizer."""

import json
from pathlib import Path

import pytest

from isentrope.record import RunFolder
from isentrope.report.data import RunData
from isentrope.report.pieces import find_tokenizer, pieces

from . import synthetic

TEXTS = [
    "plain words, and more",
    "caf\u00e9 \u2192 \u4f60\u597d \U0001f600!",
    " leading and  double ",
    "\n\ttabs\n",
    "",
]


class Bytes:
    """A tokenizer of single bytes: every character outside ASCII is spread over several tokens."""

    def decode(self, token_ids, **_):
        return bytes(token_ids).decode("utf-8", "replace")


class Words:
    """A tokenizer that, like sentencepiece, drops the space in front of what it decodes first."""

    vocabulary = ("_Hello", "_wor", "ld", "_!")

    def decode(self, token_ids, **_):
        return "".join(self.vocabulary[i] for i in token_ids).replace("_", " ").removeprefix(" ")


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_of_bytes_joined_are_the_text(text):
    ids = list(text.encode())
    found = pieces(Bytes(), ids)
    assert len(found) == len(ids)
    assert "".join(found) == text


def test_a_character_stands_with_its_last_byte():
    assert pieces(Bytes(), list("a\u00e9b".encode())) == ["a", "", "\u00e9", "b"]


def test_bytes_that_never_become_a_character_are_shown():
    assert pieces(Bytes(), [0xE4, 0xBD]) == ["", "\ufffd"]
    broken = pieces(Bytes(), [*[0xFF] * 20, *b"end"])
    assert len(broken) == 23
    assert "".join(broken).endswith("end")


def test_spaces_between_words_are_kept():
    assert pieces(Words(), [0, 1, 2, 3]) == ["Hello", " wor", "ld", " !"]


def test_without_a_tokenizer_tokens_are_their_ids():
    assert pieces(None, [5, 7]) == ["#5", "#7"]


def test_the_last_checkpoint_goes_before_the_model_of_the_recipe(tmp_path):
    folder = RunFolder(tmp_path)
    synthetic.save_tokenizer(folder, ["x", "y"])
    tokenizer, source = find_tokenizer(RunData("a", tmp_path, recipe={"model": {"name": "embedded"}}))
    assert source == "checkpoint-40"
    assert pieces(tokenizer, [1, 0]) == ["y", "x"]


def test_the_embedded_model_brings_its_tokenizer(tmp_path):
    tokenizer, source = find_tokenizer(RunData("a", tmp_path, recipe={"model": {"name": "embedded"}}))
    assert source == "embedded model"
    assert "".join(pieces(tokenizer, tokenizer.encode("1+2=3", add_special_tokens=False))) == "1+2=3"


@pytest.mark.parametrize("recipe", [{}, {"model": {"name": "nowhere/at-all"}}, {"model": {"name": 3}}, {"model": "x"}])
def test_a_tokenizer_that_is_nowhere_is_said_and_not_looked_for_on_the_network(tmp_path, recipe):
    tokenizer, reason = find_tokenizer(RunData("a", tmp_path, recipe=recipe))
    assert tokenizer is None
    assert reason.startswith("token ids in place of text")


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "evil.py").write_text(f"open({str(tmp_path / 'hacked')!r}, 'w')\nclass T: pass\n")
    (model / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.T", None]}}))
    (model / "config.json").write_text(json.dumps({"auto_map": {"AutoConfig": "evil.T"}, "model_type": "evil"}))
    tokenizer, _ = find_tokenizer(RunData("a", tmp_path, recipe={"model": {"name": str(model)}}))
    assert tokenizer is None
    assert not (tmp_path / "hacked").exists()


def test_broken_files_of_a_checkpoint_fall_back_to_ids(tmp_path):
    folder = RunFolder(tmp_path)
    synthetic.save_tokenizer(folder, ["x"])
    (Path(folder.last_checkpoint()) / "tokenizer.json").write_text("{")
    tokenizer, reason = find_tokenizer(RunData("a", tmp_path))
    assert tokenizer is None
    assert "checkpoint-40" in reason
