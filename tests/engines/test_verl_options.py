"""What of the verl engine works where verl is not installed: a dry run asks what could not be honoured."""

import importlib
import importlib.util

import pytest

from isentrope import presets
from isentrope.engines.verl_keys import ConfigError, lookup, objective_of, objective_source
from isentrope.engines.verl_options import check, refusals
from isentrope.errors import IsentropeError

pytestmark = pytest.mark.engine


def config(objective: str = "gepo", **sections: object) -> dict[str, object]:
    trainer = {"v1": {"trainer_mode": "isentrope", "isentrope": {"objective": objective}}}
    return {"trainer": trainer, "algorithm": {"adv_estimator": "isentrope"}} | sections


@pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed here")
def test_the_engine_itself_says_what_to_install():
    with pytest.raises(ImportError, match=r"needs verl 0.9, which wants an environment of its own.*isentrope\[verl\]"):
        importlib.import_module("isentrope.engines.verl")


def test_a_configuration_is_judged_without_verl():
    assert objective_of(config()) == presets.gepo
    assert refusals(config(), presets.gepo) == []
    check(config(), presets.gepo)
    clipped = config(actor_rollout_ref={"actor": {"clip_ratio_high": 0.28, "entropy_coeff": 0.01}})
    assert len(refusals(clipped, presets.gepo)) == 2
    with pytest.raises(ConfigError, match=r"(?s)cannot be honoured.*clip_ratio_high=0.28.*entropy_coeff=0.01"):
        check(clipped, presets.gepo)


def test_a_wrong_name_lists_what_is_near():
    with pytest.raises(IsentropeError, match="there is no objective 'gepi'; did you mean 'gepo'"):
        objective_of(config("gepi"))
    with pytest.raises(ConfigError, match="no objective is named"):
        objective_source({})


def test_a_dotted_path_is_looked_up_through_any_mapping():
    assert lookup({"a": {"b": 1}}, "a.b") == 1
    assert lookup({"a": None}, "a.b", 2) == 2
    assert lookup({}, "a.b") is None
