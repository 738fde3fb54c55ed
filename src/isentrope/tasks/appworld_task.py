"""AppWorld as a task of a recipe: which of its tasks to train on, and the servers that play and judge them."""

import os
from dataclasses import dataclass, field
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks.appworld import Factory, Server, read_task_ids, rows, scenario_of
from isentrope.tasks.base import Example, Score, Split, check_request, draw, generator, unscored


@dataclass(frozen=True)
class AppWorld:
    """Tasks of AppWorld, acted out and judged on running servers, see `isentrope.tasks.appworld`.

    ids, held_out_ids: files of task ids, as `appworld download data` makes them (data/datasets/train.txt, dev.txt).
    url: of the servers, without the port. port: of the first one; the others follow. servers: how many each process
    has, one for each rollout that is under way at once in it. The process of local rank r takes the r-th such range.
    timeout: seconds to wait for a server. partial: reward the share of a task's tests that pass, not success alone.
    settings: further arguments of AppWorld's `initialize`, such as max_interactions.
    answer of an example: the task's id. A text cannot be judged: the world is.
    """

    ids: str = ""
    held_out_ids: str = ""
    url: str = "http://localhost"
    port: int = 8000
    servers: int = 64
    timeout: float = 150.0
    partial: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    name: str = "appworld"

    def __post_init__(self) -> None:
        if self.servers < 1 or not 0 < self.port < 65_536:
            raise ValueError(
                f"AppWorld has {self.servers} servers from port {self.port} on; give at least 1, and a port"
            )

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` tasks of the split in random order.

        Raises IsentropeError where no file of ids is named, or it is not there.
        """
        check_request(self.name, split, count)
        path, option = (self.ids, "ids") if split == "train" else (self.held_out_ids, "held_out_ids")
        if not path:
            raise IsentropeError(
                f"task {self.name} needs a file of task ids for the split {split!r}: set {option} to one of AppWorld's"
                " data/datasets/*.txt (docs/agents.md says how to get them)"
            )
        pool = [self._example(row) for row in rows(read_task_ids(path))]
        return draw(self.name, pool, split, count, generator(self.name, split, seed))

    def _example(self, row: dict[str, Any]) -> Example:
        return Example(row["prompt"], row["task_id"], self.name)

    def score(self, completion: str, example: Example) -> Score:
        """Unscored, whatever the text: only the server knows the state of the world."""
        return unscored("judged by AppWorld's server, from the state of its world")

    def validate(self) -> None:
        """Raise IsentropeError if the splits share a scenario, or a server of the first process is not there."""
        splits = [{scenario_of(i) for i in read_task_ids(path)} for path in (self.ids, self.held_out_ids) if path]
        if len(splits) == 2 and splits[0] & splits[1]:
            raise IsentropeError(f"task {self.name} has scenarios in both splits: {min(splits[0] & splits[1])}")
        for url in self.urls(0):
            Server(url, self.timeout).ping()

    def urls(self, rank: int) -> list[str]:
        """The servers of a process by its local rank."""
        first = self.port + rank * self.servers
        return [f"{self.url}:{port}" for port in range(first, first + self.servers)]

    def environment_factory(self) -> Factory:
        """What TRL makes its environments with in this process."""
        urls = self.urls(int(os.environ.get("LOCAL_RANK", "0")))
        return Factory(urls, self.timeout, self.partial, self.settings)
