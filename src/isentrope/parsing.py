"""JSON and TOML that somebody else wrote: what cannot be read is a ValueError with a short reason, and nothing else.

Parsers have errors of their own for nesting that is too deep, and quote what they were given.
"""

import json
import tomllib
from typing import Any

SHOWN = 200  # characters of a parser's reason


def json_value(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError, also for text that is no UTF-8 and for too deep a nesting.

    >>> json_value(b'{"step": 1}')
    {'step': 1}
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(_brief(error)) from error


def toml_table(text: str) -> dict[str, Any]:
    """The table of a TOML text. Raises ValueError.

    >>> toml_table("step = 1")
    {'step': 1}
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(_brief(error)) from error


def _brief(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:SHOWN]
