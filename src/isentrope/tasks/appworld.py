"""AppWorld itself as an environment for TRL, through the HTTP server that its package brings along.

AppWorld (Trivedi et al., arXiv:2407.18901) has nine apps with 457 APIs, 750 tasks in scenarios of three variants, and
judges an agent by the state of the apps' databases. Its package wants pydantic below 2, so it lives in an environment
of its own and is reached by `appworld serve environment`, whose protocol is that of appworld 0.1.3. A server holds one
world at a time: as many rollouts as are under way at once need as many servers.

    factory = Factory([f"http://localhost:{port}" for port in range(8000, 8064)])
    trainer = ObjectiveTrainer(model, train_dataset=Dataset.from_list(rows(ids)), environment_factory=factory, ...)

The model's chat template must have tools; its one tool is `execute`, which runs Python that calls the apps' APIs. What
the server answers is masked out of every statistic. docs/agents.md says how to get AppWorld and its data.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError

MOST_SHOWN = 300  # characters of a server's answer that an error repeats
INSTRUCTION = (
    "You act for a person in a world of apps, by Python code that you hand to the tool `execute`. What the code prints "
    "is shown to you; variables stay. apis.api_docs.show_app_descriptions(), .show_api_descriptions(app_name=...) and "
    ".show_api_doc(app_name=..., api_name=...) say how to use an app, apis.supervisor what the person lets you know. "
    "When the task is done, call apis.supervisor.complete_task(), with answer=... if it asks for one."
)


class AppWorldError(IsentropeError, RuntimeError):
    """An AppWorld server that cannot be reached, does not answer in time, or refuses."""


@dataclass(frozen=True)
class Server:
    """One running `appworld serve environment`.

    url: such as "http://localhost:8000". timeout: seconds to wait for an answer; the server's own limit of a piece of
    code is 100 s, so that a longer one here lets it report that itself.
    """

    url: str
    timeout: float = 150.0

    def __post_init__(self) -> None:
        if urllib.parse.urlsplit(self.url).scheme not in ("http", "https"):
            raise AppWorldError(f"AppWorld server {self.url!r} is not a URL of http or https")
        if self.timeout <= 0:
            raise AppWorldError(f"AppWorld server {self.url}: the time-out is {self.timeout}; it must be above 0 s")

    def ping(self) -> None:
        """Raise AppWorldError unless something at the URL answers like AppWorld's server."""
        self._ask("GET", "", None)

    def call(self, method: str, **arguments: Any) -> Any:
        """What the server puts out for a method of the world: initialize, execute, evaluate, close, task_completed, ...

        Raises AppWorldError for a server that is not there, is too slow, or answers with an error.
        """
        answer = self._ask("POST", method, arguments)
        if "output" not in answer:
            raise AppWorldError(
                f"{self.url}/{method} answered without `output`: {_shown(answer)}; is it AppWorld's server?"
            )
        return answer["output"]

    def _ask(self, verb: str, method: str, arguments: dict[str, Any] | None) -> dict[str, Any]:
        address = f"{self.url.rstrip('/')}/{method}"
        body = None if arguments is None else json.dumps(arguments).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise AppWorldError(f"{address} answered {error.code}: {_shown(text)}") from error
        except TimeoutError as error:
            raise AppWorldError(f"{address} did not answer within {self.timeout:g} s; raise the time-out") from error
        except (OSError, ValueError) as error:  # no server, a broken connection, or no JSON
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise AppWorldError(
                    f"{address} did not answer within {self.timeout:g} s; raise the time-out"
                ) from error
            raise AppWorldError(
                f"{address}: {reason}; start a server there: appworld serve environment --port PORT"
            ) from error
        if not isinstance(found, dict):
            raise AppWorldError(f"{address} answered {_shown(found)}; is it AppWorld's server?")
        return found


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


class Environment:
    """One world on one server, as TRL's `environment_factory` wants it: `reset`, the tool `execute`, `get_reward`.

    settings: further arguments of AppWorld's `initialize`. partial: reward the share of AppWorld's tests that pass, and
    not success alone.
    """

    def __init__(self, server: Server, partial: bool = False, **settings: Any) -> None:
        server.ping()
        self._server, self._partial, self._settings = server, partial, settings
        self._task_id = ""
        self._failure: AppWorldError | None = None

    def reset(self, task_id: str, **_: Any) -> str:
        """Open the world of a task; the person's request and who they are, to be appended to the prompt.

        task_id: a column of the data set, such as "82e2fac_1". Other columns are not its concern.
        """
        self._task_id, self._failure = task_id, None
        found = self._server.call("initialize", task_id=task_id, **self._settings)
        person = found["supervisor"]
        return (
            f"\n\nThe person is {person['first_name']} {person['last_name']}, {person['email']}, "
            f"{person['phone_number']}. It is {found['datetime']}. Their task: {found['instruction']}"
        )

    def execute(self, code: str) -> str:
        """Run Python code in the world of apps and return what it prints, or its error.

        Args:
            code: The code, which calls the apps as apis.<app>.<api>(...).
        """
        if self._failure is not None:
            raise self._failure
        try:
            return str(self._server.call("execute", task_id=self._task_id, code=code))
        except AppWorldError as error:
            self._failure = error  # the caller would hand it to the policy as a tool's output and go on
            raise

    def get_reward(self) -> float:
        """1 for a task whose every test passes, else 0 (or the share that passes, where `partial`).

        Raises AppWorldError, also for a server that failed earlier in the episode: that is no fault of the policy.
        """
        if self._failure is not None:
            raise self._failure
        result = Result.of(self._server.call("evaluate", task_id=self._task_id, suppress_errors=True, report=False))
        return result.share if self._partial else float(result.success)


@dataclass(frozen=True)
class Result:
    """AppWorld's verdict on a world: how many of its tests pass, and whether all do."""

    success: bool
    passed: int
    tests: int

    @classmethod
    def of(cls, output: Any) -> "Result":
        """Of what the server's `evaluate` puts out; AppWorldError for anything else."""
        try:
            return cls(bool(output["success"]), len(output["passes"]), int(output["num_tests"]))
        except (KeyError, TypeError) as error:
            raise AppWorldError(f"AppWorld's evaluation is {_shown(output)}, which lacks {error}") from error

    @property
    def share(self) -> float:
        """Share of the tests that pass; 0 without any."""
        return self.passed / self.tests if self.tests else 0.0


@dataclass
class Factory:
    """Makes an environment on the next server each time it is called: TRL's `environment_factory`.

    urls: of servers, one for each rollout that is under way at once in this process (TRL: the batch size of a device
    times steps_per_generation, or that of an evaluation if it is larger). With several processes each needs its own.
    timeout, partial: see `Server`, `Environment`. settings: further arguments of AppWorld's `initialize`, such as
    experiment_name or max_interactions.
    """

    urls: Sequence[str]
    timeout: float = 150.0
    partial: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.urls or len(set(self.urls)) < len(self.urls):
            raise AppWorldError(f"AppWorld needs one or more different servers, got {list(self.urls)}")
        self._left: Iterator[str] = iter(self.urls)

    def __call__(self) -> Environment:
        """The next environment. AppWorldError where there are no more servers, or this one is not there."""
        url = next(self._left, None)
        if url is None:
            raise AppWorldError(
                f"all {len(self.urls)} AppWorld servers are taken, and a server holds one world: start as many as "
                "rollouts are under way at once, or make the batch smaller"
            )
        return Environment(Server(url, self.timeout), self.partial, **self.settings)


def rows(task_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Rows for `datasets.Dataset.from_list`: a chat prompt, to which `reset` appends the task, and the task's id."""
    prompt = [{"role": "user", "content": INSTRUCTION}]
    return [{"prompt": prompt, "task": "appworld", "task_id": task_id} for task_id in task_ids]


def read_task_ids(path: str | Path) -> list[str]:
    """The task ids of one of AppWorld's data sets: data/datasets/train.txt, dev.txt, test_normal.txt, ..."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise AppWorldError(f"{path}: {error.strerror}; `appworld download data` makes data/datasets/*.txt") from error
    return [line.split(":")[0].strip() for line in lines if line.strip()]


def scenario_of(task_id: str) -> str:
    """The scenario that a task is a variant of, for `scenarios.goal_completion`.

    >>> scenario_of("82e2fac_1")
    '82e2fac'
    """
    return task_id.partition("_")[0]
