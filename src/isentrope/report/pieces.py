"""Text of tokens: what each token of a completion adds to it, with the run's own tokenizer where it is at hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from isentrope.record import RunFolder
from isentrope.report.data import RunData

PARTIAL = "\ufffd"  # what a decoder puts where bytes of a character are missing
MAX_PARTIAL = 8  # tokens; no character takes more, so a longer one is no text


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    def decode(self, token_ids: Any, **options: Any) -> str: ...


def find_tokenizer(run: RunData) -> tuple[Tokenizer | None, str]:
    """The tokenizer of a run, and where it is from; (None, why not) where there is none. Nothing is downloaded.

    Looked for in the run's last checkpoint, then in the model of its recipe. No code of a model's own is run.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return None, "token ids in place of text: transformers is not installed"
    tried = []
    for label, source in _sources(run):
        try:
            return AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False), label
        except Exception as error:  # whatever is wrong with a tokenizer's files, the ids can still be shown
            tried.append(f"{label}: {type(error).__name__}")
    reason = "; ".join(tried) or "the run has no checkpoint, and its recipe names no model"
    return None, f"token ids in place of text, for want of a tokenizer ({reason})"


def _sources(run: RunData) -> Iterable[tuple[str, str]]:
    checkpoint = RunFolder(run.path).last_checkpoint()
    if checkpoint is not None:
        yield checkpoint.name, str(checkpoint)
    model = run.setting("model", "name")
    if not isinstance(model, str) or not model:
        return
    if model == "embedded":
        yield "embedded model", str(resources.files("isentrope").joinpath("embedded"))
    elif model == "smollm2":
        from isentrope.models import cache_folder

        yield from (("smollm2", str(folder)) for folder in sorted(cache_folder().glob("smollm2-*"))[-1:])
    else:
        yield model, str(Path(model).expanduser()) if Path(model).expanduser().is_dir() else model


def pieces(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text, so that the pieces joined are the text; "#id" without a tokenizer.

    A character whose bytes are spread over several tokens stands with the last of them, and "" with the others. Bytes
    that never become a character are shown as the decoder shows them.
    """
    if tokenizer is None:
        return [f"#{token}" for token in ids]
    found: list[str] = []
    context = start = 0  # text of ids[context:start] is known; a token's text depends on the one before (spaces)
    for end in range(1, len(ids) + 1):
        known, text = _decode(tokenizer, ids[context:start]), _decode(tokenizer, ids[context:end])
        if text.endswith(PARTIAL) and end < len(ids) and end - start < MAX_PARTIAL:
            found.append("")
            continue
        found.append(text[len(known) :] if text.startswith(known) else _decode(tokenizer, ids[start:end]))
        context, start = start, end
    return found


def _decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    if not ids:
        return ""
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
