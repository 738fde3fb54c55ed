"""Sort three digits: a task of your own. Nothing to inherit, nothing to register.

    isentrope train --task examples/tasks/sort_digits.py:sort_digits
    isentrope eval embedded --tasks examples/tasks/sort_digits.py:sort_digits

For verl, the same name goes into the column data_source, and isentrope.tasks.compute_score scores it.
"""

import re
from itertools import product

from isentrope import tasks
from isentrope.tasks.base import draw, generator, is_held_out


class SortDigits:
    """Prompt "sort 382:", completion "238". Nothing may follow."""

    name = "sort_digits"

    def examples(self, split, count, seed):
        triples = ("".join(digits) for digits in product("0123456789", repeat=3))
        pool = [text for text in triples if is_held_out(self.name, text) == (split == "test")]
        drawn = draw(self.name, pool, split, count, generator(self.name, split, seed))
        return [tasks.Example(f"sort {d}:", "".join(sorted(d)), self.name, ("".join(sorted(d)),)) for d in drawn]

    def score(self, completion, example):
        if not re.fullmatch("[0-9]{3}", completion):
            return tasks.NO_ANSWER
        return tasks.judge(completion == example.answer, completion)

    def validate(self):
        tasks.check(
            self, lambda example: (example.answer + " ", example.answer * 2, f"{(int(example.answer) + 1) % 1000:03}")
        )


sort_digits = SortDigits()
