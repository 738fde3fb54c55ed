"""The other engines' packages lie in a folder of their own: $ISENTROPE_ENGINES, or `other-engines` of the venv."""

import importlib
import importlib.machinery
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
    "flash_attn",
    "flash_attn.bert_padding",
    "flash_attn.utils",
    "flash_attn.utils.distributed",
    "vllm",
)


class _Unused(types.ModuleType):
    """A module that is only imported: any name in it is None."""

    __path__: list[str] = []  # noqa: RUF012  (what makes it a package)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def load(name: str) -> Any:
    """A module of another engine; skips where its packages are not installed."""
    if not FOLDER.is_dir():
        pytest.skip(f"no {FOLDER}: make engines installs SkyRL and OpenRLHF there", allow_module_level=True)
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
        if name not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is None:
            sys.modules[name] = stub = _Unused(name)
            stub.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    typing.TypedDict = typing_extensions.TypedDict
    try:
        yield
    finally:
        typing.TypedDict = plain
