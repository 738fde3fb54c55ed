"""The progress display: what it takes from the logs, and how it looks with and without a terminal."""

import io
import math

import pytest
from rich.console import Console

from isentrope.cli._display import LineDisplay, LiveDisplay, Progress, Tracker, duration, line


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def _logs(**more):
    return {"entropy/current_exact": 0.5, "clip/low": 0.01, "clip/high": 0.02} | more


def test_what_a_step_does_not_log_keeps_its_last_value():
    tracker = Tracker(10)
    tracker.update(1, _logs(reward=0.25))
    progress = tracker.update(2, _logs(**{"entropy/current_exact": 0.4}))
    assert (progress.reward, progress.entropy, progress.entropy_start) == (0.25, 0.4, 0.5)
    assert (progress.clip_low, progress.clip_high) == (0.01, 0.02)


def test_clip_shares_are_means_over_the_updates_of_a_rollout_batch():
    tracker = Tracker(10, window=2)
    shares = [
        tracker.update(step, {"clip/low": x, "clip/high": 0.0}).clip_low for step, x in enumerate((0.0, 0.4, 0.2))
    ]
    assert shares == [0.0, 0.2, pytest.approx(0.3)]


def test_a_resumed_run_shows_where_it_started_and_what_stood_last():
    clock = Clock()
    tracker = Tracker(steps=4, first_step=2, num_tokens=2000, clock=clock)
    tracker.recall([(1, _logs(reward=0.25, num_tokens=2000)), (2, {"entropy/current_exact": 0.4})])
    clock.now += 10
    progress = tracker.update(3, {"entropy/current_exact": 0.3})
    assert (progress.entropy_start, progress.entropy, progress.reward) == (0.5, 0.3, 0.25)
    assert progress.seconds_left == 10
    assert math.isnan(progress.tokens_per_second), "this process has not counted any yet"


def test_what_was_never_logged_is_nan():
    progress = Tracker(10).update(1, {})
    assert all(
        math.isnan(x) for x in (progress.reward, progress.entropy, progress.clip_low, progress.tokens_per_second)
    )


def test_time_left_and_speed_are_over_the_run_so_far():
    clock = Clock()
    tracker = Tracker(steps=14, first_step=4, num_tokens=2000, clock=clock)
    clock.now += 20
    progress = tracker.update(8, _logs(num_tokens=7000))
    assert progress.seconds_left == 20 / 4 * 6
    assert progress.tokens_per_second == 250


def test_controllers_and_their_target_come_from_the_logged_state():
    state = {"controller/surrogate.high.value": 0.3, "controller/surrogate.high.target": 0.45}
    progress = Tracker(10).update(1, _logs(**state))
    assert progress.controllers == {"surrogate.high": 0.3}
    assert progress.entropy_target == 0.45
    assert "entropy target 0.450" in line(progress)
    assert "surrogate.high 0.300" in line(progress)


def test_a_run_without_a_controller_shows_no_target():
    text = line(Tracker(10).update(1, _logs(reward=0.5)))
    assert (
        text
        == "step 1/10  reward 0.500  entropy 0.500 (start 0.500)  clipped low/high 1.0%/2.0%  tokens/s -  left 0:00"
    )


def test_lines_come_first_last_and_by_interval():
    out, clock = io.StringIO(), Clock()
    display = LineDisplay(Console(file=out), interval=5.0, clock=clock)
    display.start()
    for step in range(1, 13):
        display.show(Progress(step=step, steps=12))
        clock.now += 1.0
    display.stop()
    assert [text.split()[1] for text in out.getvalue().splitlines()] == ["1/12", "6/12", "11/12", "12/12"]


def test_the_panel_in_a_terminal_shows_every_field_and_the_notes():
    out = io.StringIO()
    display = LiveDisplay(Console(file=out, force_terminal=True, width=100))
    display.start()
    display.show(Tracker(10).update(3, _logs(reward=0.5, **{"controller/surrogate.high.value": 0.3})))
    display.note("a note [not markup]")
    display.stop()
    text = out.getvalue()
    for expected in ("step 3/10", "reward", "entropy", "start 0.500", "clipped", "1.0%", "surrogate.high", "left"):
        assert expected in text
    assert "a note [not markup]" in text


def test_durations_read_as_minutes_or_hours():
    assert [duration(x) for x in (0.0, 59.6, 3599.0, 3600.0, math.nan)] == ["0:00", "1:00", "59:59", "1 h 00 min", "-"]
