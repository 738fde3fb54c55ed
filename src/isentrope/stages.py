"""What the stages of a run must be like: of its tasks, of whole rollout batches, as long together as the run."""

from collections.abc import Sequence

from isentrope.complaints import suggestion


def check(stages: Sequence[tuple[Sequence[str], int]], known: Sequence[str], updates: int, steps: int) -> None:
    """ValueError for stages, each with the names of its tasks and its steps, that do not fit a run.

    known: the run's tasks. updates: on each rollout batch. steps: of the run.

    >>> check([(["countdown"], 8), (["digitsum"], 16)], ["countdown", "digitsum"], updates=8, steps=24)
    """
    for tasks, length in stages:
        for name in tasks:
            if name not in known:
                raise ValueError(f"[[stage]] names the task {name!r}{suggestion(name, known)}")
            if tasks.count(name) > 1:
                raise ValueError(f"[[stage]] names the task {name!r} twice")
        if length % updates:
            raise ValueError(
                f"a stage of {length} steps ends within a rollout batch of {updates} updates (minibatches * passes);"
                " make it a multiple"
            )
    whole = sum(length for _, length in stages)
    if whole != steps:
        raise ValueError(
            f"the stages have {whole} steps in all, [trainer] steps is {steps}; make them equal, a stage's with"
            " --set stage.0.steps=N"
        )
