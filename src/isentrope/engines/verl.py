"""verl 0.9: any objective in a job of `verl.trainer.main_ppo`, by configuration alone. docs/verl.md is the manual.

```console
$ python -m verl.trainer.main_ppo ... trainer.v1.trainer_mode=isentrope +trainer.v1.isentrope.objective=ce_gppo
```

verl imports this module in every process of a job, through the entry-point group `verl.plugins`. It registers:

| in verl's registry of | names | what |
| --- | --- | --- |
| trainers | `isentrope`, `isentrope_colocate_async`, `isentrope_separate_async` | `verl_trainer`: verl's trainers with `prepare` on the driver and the objective's loss in the workers |
| policy losses | `isentrope`, `isentrope/NAME` | `verl_hook`: the loss alone, in verl's own trainers |
| advantage estimators | `isentrope`, `isentrope/NAME` | `verl_hook`: the advantage alone, in verl's own trainers |

Registration waits for the module of verl that holds the registry, so an agent loop or a sampler pays nothing for it.
verl hides the exception of a plug-in that fails to load: it is logged here, and whoever then names `isentrope` gets
verl's error about an unknown name.

`PolicyLossConfig` adds the key `objective` to verl's `actor.policy_loss`; `refusals` says what a configuration asks for
that cannot be honoured; `state_of` reads the controllers' state from a checkpoint of verl's.
"""  # noqa: E501  (the table)

import importlib.util
import logging
from functools import partial
from types import ModuleType
from typing import Any

if importlib.util.find_spec("verl") is None:
    raise ImportError(
        "isentrope.engines.verl needs verl 0.9, which wants an environment of its own (its transformers are not TRL's):"
        " pip install isentrope[verl]"
    )

try:
    from wrapt import register_post_import_hook

    from isentrope import spec
    from isentrope.engines.verl_options import refusals
    from isentrope.engines.verl_state import state_of
except Exception:
    logging.getLogger(__name__).exception("isentrope's plug-in for verl cannot be loaded; verl will not know its names")
    raise  # verl hides it at DEBUG and goes on

NAME = "isentrope"

__all__ = ["NAME", "IsentropeTrainer", "PolicyLossConfig", "refusals", "state_of"]  # noqa: F822  (see __getattr__)

_ELSEWHERE = {
    "PolicyLossConfig": "verl_policy_loss",
    "IsentropeTrainer": "verl_trainer",
    "IsentropeColocateAsync": "verl_trainer",
    "IsentropeSeparateAsync": "verl_trainer",
}


def __getattr__(name: str) -> Any:
    """Classes that subclass verl's, made when they are asked for: verl is half imported while this module runs."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"isentrope.engines.{_ELSEWHERE[name]}"), name)


def _register_losses(core_algos: ModuleType) -> None:
    from isentrope.engines import verl_hook

    for name in ("", *spec.objective_names()):
        registered = f"{NAME}/{name}" if name else NAME
        core_algos.register_policy_loss(registered)(partial(verl_hook.policy_loss, name=name))
        core_algos.register_adv_est(registered)(partial(verl_hook.advantages, name=name))


def _register_trainers(trainers: ModuleType) -> None:
    from isentrope.engines import verl_trainer

    for name, trainer in verl_trainer.TRAINERS.items():
        trainers.register_trainer(name)(trainer)


register_post_import_hook(_register_losses, "verl.trainer.ppo.core_algos")
register_post_import_hook(_register_trainers, "verl.trainer.ppo.v1")
