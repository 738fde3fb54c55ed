"""What the checkpoints of all engines have in common: a controllers' state belongs to the objective that made it."""

from isentrope.errors import IsentropeError
from isentrope.objective import Objective


class CheckpointError(IsentropeError, ValueError):
    """A checkpoint that this run cannot continue from."""


def check_state(folder: str, state: dict[str, float], objective: Objective) -> None:
    """A state may have more numbers than `init` gives (a target, say), but none of another controller."""
    paths = tuple(f"{path}." for path in objective.controllers())
    stray = [key for key in state if not key.startswith(paths)] if paths else list(state)
    missing = [key for key in objective.init() if key not in state]
    if stray or missing:
        raise CheckpointError(
            f"{folder} holds the state of another objective: it has {sorted(state) or 'no controllers'}, this one has "
            f"controllers at {', '.join(objective.controllers()) or 'no place'}. Resume with the same objective, or "
            "start a new run from its weights"
        )
