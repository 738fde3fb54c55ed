"""AppWorld over HTTP, against a server that speaks the same protocol."""

import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from isentrope.tasks.appworld import (
    AppWorldError,
    Environment,
    Factory,
    Result,
    Server,
    read_task_ids,
    rows,
    scenario_of,
)
from isentrope.tasks.scenarios import goal_completion

from .appworld_server import serving


@pytest.fixture
def server():
    with serving() as (one,):
        yield one


def test_an_episode_opens_acts_and_is_judged_by_the_world(server):
    environment = Environment(Server(server.url), max_interactions=40)
    shown = environment.reset(task_id="82e2fac_1", task="appworld", prompt="...")
    assert "Their task: Set done to 82e2fac_1." in shown
    assert "Ada Ng, ada@example.com, 5550100" in shown
    assert environment.get_reward() == 0.0
    assert environment.execute("get done") == "None"
    assert environment.execute("set done 82e2fac_1") == "Execution successful."
    assert environment.execute("boom").startswith("Execution failed. Traceback:")
    assert environment.get_reward() == 1.0
    environment.execute("set other 1")  # nothing else may change
    assert environment.get_reward() == 0.0
    assert server.calls[0] == ("initialize", {"task_id": "82e2fac_1", "max_interactions": 40})
    assert server.calls[1] == ("evaluate", {"task_id": "82e2fac_1", "suppress_errors": True, "report": False})


def test_a_part_of_the_tests_is_rewarded_only_where_asked(server):
    environment = Environment(Server(server.url), partial=True)
    environment.reset(task_id="a_1")
    assert environment.get_reward() == 0.5  # nothing else is set
    environment.reset(task_id="a_2")
    environment.execute("set done a_2")
    assert environment.get_reward() == 1.0


def test_a_server_that_is_not_there_says_how_to_start_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(AppWorldError, match=r"refused.*; start a server there: appworld serve environment --port PORT"):
        Environment(Server(url))


def test_a_slow_server_is_not_waited_for_and_ends_the_episode(server):
    environment = Environment(Server(server.url, timeout=0.3))
    environment.reset(task_id="a_1")
    with pytest.raises(AppWorldError, match=r"/execute did not answer within 0.3 s; raise the time-out"):
        environment.execute("sleep 2")
    for again in (lambda: environment.execute("get done"), environment.get_reward):
        with pytest.raises(AppWorldError, match="did not answer within"):  # a tool's error alone would go unnoticed
            again()
    environment.reset(task_id="a_2")
    assert environment.execute("get done") == "None"


def test_what_the_server_refuses_is_repeated(server):
    other = Environment(Server(server.url))
    other.reset(task_id="a_1")
    Server(server.url).call("initialize", task_id="b_1")  # somebody else takes the server's one world
    with pytest.raises(AppWorldError, match=r"/execute answered 500: Internal Server Error"):
        other.execute("get done")
    with pytest.raises(AppWorldError, match=r"/execute answered 422: .*field required"):
        Server(server.url).call("execute", task_id="b_1")
    with pytest.raises(AppWorldError, match=r"/fly answered 404"):
        Server(server.url).call("fly")


@pytest.mark.parametrize(
    ("answer", "message"),
    [("[1]", r"answered \[1\]; is it"), ("<html>", "Expecting value"), ("{}", "without `output`: {}")],
)
def test_another_kind_of_server_is_told_apart(answer, message):
    class Other(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *args):
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        Thread(target=other.handle_request, daemon=True).start()
        with pytest.raises(AppWorldError, match=message):
            Server(f"http://127.0.0.1:{other.server_address[1]}").call("evaluate", task_id="a_1")


def test_every_environment_has_a_server_of_its_own(server):
    with serving(1) as (second,):
        make = Factory([server.url, second.url], settings={"experiment_name": "mine"})
        one, two = make(), make()
        one.reset(task_id="a_1")
        two.reset(task_id="a_2")
        one.execute("set done a_1")
        assert (one.get_reward(), two.get_reward()) == (1.0, 0.0)
        assert second.calls[0] == ("initialize", {"task_id": "a_2", "experiment_name": "mine"})
        with pytest.raises(AppWorldError, match="all 2 AppWorld servers are taken"):
            make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Server("localhost:8000"), "is not a URL of http or https"),
        (lambda: Server("http://localhost:8000", timeout=0), "the time-out is 0"),
        (lambda: Factory([]), "one or more different servers"),
        (lambda: Factory(["http://a", "http://a"]), "one or more different servers"),
        (lambda: Result.of({"success": True}), "lacks 'passes'"),
        (lambda: Result.of("fine"), "AppWorld's evaluation is fine"),
        (lambda: read_task_ids("/nowhere/train.txt"), "appworld download data"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(AppWorldError, match=message):
        make()


def test_task_ids_make_rows_and_scenarios(tmp_path):
    (tmp_path / "dev.txt").write_text("a_1\na_2:tag\n\nb_1\n")
    ids = read_task_ids(tmp_path / "dev.txt")
    assert ids == ["a_1", "a_2", "b_1"]
    made = rows(ids)
    assert [row["task_id"] for row in made] == ids
    assert {row["task"] for row in made} == {"appworld"}
    assert "execute" in made[0]["prompt"][0]["content"]
    found = goal_completion([scenario_of(one) for one in ids], [1, 0, 1], 1)
    assert (found.scenarios, found.scenario_goal_completion) == (2, 0.5)
