"""Tasks: prompts with verifiable answers, and what a trainer needs of them.

task = tasks.get("countdown")                        # or "my_file.py:my_task"
rows = tasks.dataset_rows(task, "train", 1000, seed=0)
reward = tasks.reward_function(task)                 # for TRL's reward_funcs
mix = tasks.get_mix("countdown=2,digitsum=1")        # stands wherever a task does
"""

from isentrope.tasks.addition import Addition
from isentrope.tasks.base import NO_ANSWER, Example, Outcome, Prompt, Score, Split, Task, check, judge, unscored
from isentrope.tasks.countdown import Countdown
from isentrope.tasks.digitsum import DigitSum
from isentrope.tasks.gsm8k import Gsm8k
from isentrope.tasks.registry import Mix, get, get_mix, names
from isentrope.tasks.rows import dataset_rows, reward_function
from isentrope.tasks.scoring import compute_score
from isentrope.tasks.words import ArithmeticWords, Larger

__all__ = [
    "Addition",
    "ArithmeticWords",
    "Countdown",
    "DigitSum",
    "Example",
    "Gsm8k",
    "Larger",
    "Mix",
    "NO_ANSWER",
    "Outcome",
    "Prompt",
    "Score",
    "Split",
    "Task",
    "check",
    "compute_score",
    "dataset_rows",
    "get",
    "get_mix",
    "judge",
    "names",
    "reward_function",
    "unscored",
]
