"""Text of others is read, or refused with a ValueError that is short."""

import pytest

from isentrope.parsing import json_value, toml_table

DEEP = 100_000


@pytest.mark.parametrize("text", ["", "{", "[" * DEEP, '{"a":' * DEEP, "9" * 5000 + "x", b"\xff", "[1,]"])
def test_bad_json_is_a_short_value_error(text):
    with pytest.raises(ValueError) as caught:
        json_value(text)
    assert 0 < len(str(caught.value)) <= 200


@pytest.mark.parametrize("text", ["a", "a = " + "[" * DEEP, "a = " + "9" * 5000, "a = 1\na = 2", "a = {" * 2000])
def test_bad_toml_is_a_short_value_error(text):
    with pytest.raises(ValueError) as caught:
        toml_table(text)
    assert 0 < len(str(caught.value)) <= 200
