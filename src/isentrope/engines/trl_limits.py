"""What a rollout must not do silently: take for ever, outgrow the model's context, or sample from no distribution."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from isentrope.engines.trl_batch import CompletionError, RewardError
from isentrope.errors import IsentropeError

WAKE = "SIGUSR2"  # not SIGALRM, by which verifiers set time-outs of their own


@contextmanager
def time_limit(seconds: float | None, names: Sequence[str]) -> Iterator[None]:
    """RewardError in the block once it has taken `seconds`; None is no limit.

    The error names the reward functions and the line at work. It comes between two steps of the interpreter or out of a
    call that waits, not out of native code that never returns. Only in the main thread, and where the system has
    SIGUSR2; elsewhere there is no limit.
    """
    number = getattr(signal, WAKE, None)
    if seconds is None or number is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(_number: int, frame: FrameType | None) -> None:
        where = f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        raise RewardError(
            f"the reward functions {', '.join(names)} have not returned for {seconds:g} seconds{where}; mend what"
            " hangs, or allow them more with reward_time_limit"
        )

    main = threading.main_thread().ident
    assert main is not None
    previous = signal.signal(number, give_up)
    watch = threading.Timer(seconds, signal.pthread_kill, (main, number))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        watch.join()  # or its signal might come after the handler has gone
        signal.signal(number, previous)


def check_time_limit(seconds: float | None) -> None:
    """ValueError for a limit that is not above 0."""
    if seconds is not None and not seconds > 0:
        raise ValueError(f"reward_time_limit must be a number of seconds above 0, or None; found {seconds!r}")


def refuse_long(model: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Raise CompletionError for a prompt that leaves no room for a completion in the model's context.

    Positions that a model never saw in training give it no error, only nonsense.
    """
    context = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    row, longest = max(enumerate(map(len, prompts)), key=lambda pair: pair[1], default=(0, 0))
    if context is not None and longest + max_new_tokens > context:
        raise CompletionError(
            f"the prompt of row {row} has {longest} tokens: with max_completion_length = {max_new_tokens} it exceeds"
            f" the model's context of {context}; drop long prompts from the data, or lower max_completion_length"
        )


@contextmanager
def naming_bad_logits() -> Iterator[None]:
    """IsentropeError in place of torch's message on probabilities that are none."""
    try:
        yield
    except RuntimeError as error:
        if "probability tensor contains" not in str(error):
            raise
        raise IsentropeError(
            "the model's logits are not finite, so nothing can be sampled: its weights hold NaN or infinity, or its"
            " number format overflows. Go back to the last checkpoint with a lower learning rate, or load it in float32"
        ) from error
