"""The other engines' packages lie in a folder of their own: $ISENTROPE_ENGINES, or `other-engines` of the venv."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
import typing
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typing_extensions

FOLDER = Path(os.environ.get("ISENTROPE_ENGINES", Path(sys.prefix) / "other-engines"))
# What OpenRLHF imports at the head of its modules and none of the functions here touches.
STUBS = (
    "deepspeed",
    "deepspeed.ops.adam",
    "deepspeed.runtime.zero.offload_config",
    "deepspeed.runtime.zero.partition_parameters",
    "flash_attn.bert_padding",
    "flash_attn.utils.distributed",
    "vllm.inputs",
    "vllm.utils",
)
ABSENT = {name.partition(".")[0] for name in STUBS if importlib.util.find_spec(name.partition(".")[0]) is None}


class _Unused(types.ModuleType):
    """A module that is only imported: any name in it is None."""

    __path__: list[str] = []  # noqa: RUF012  (what makes it a package)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _stub(name: str) -> None:
    if name not in sys.modules:
        sys.modules[name] = module = _Unused(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)


def load(name: str) -> Any:
    """A module of another engine; skips where its packages are not installed."""
    if not FOLDER.is_dir():
        pytest.skip(f"no {FOLDER}: make verl installs SkyRL and OpenRLHF there", allow_module_level=True)
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    pytest.importorskip("ray", reason="SkyRL and OpenRLHF import Ray")
    with importable(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@contextmanager
def importable() -> Iterator[None]:
    """SkyRL 0.3 writes typing.TypedDict, which pydantic refuses before Python 3.12; OpenRLHF imports GPU packages."""
    plain = typing.TypedDict
    for name in STUBS:
        parts = name.split(".") if name.partition(".")[0] in ABSENT else []
        for i in range(1, len(parts) + 1):
            _stub(".".join(parts[:i]))
    typing.TypedDict = typing_extensions.TypedDict
    try:
        yield
    finally:
        typing.TypedDict = plain
