"""A small server that speaks the protocol of AppWorld's environment server (appworld 0.1.3), over a toy world.

One world at a time; `initialize` opens another. Code is a line: "set NAME VALUE" changes the world, "sleep SECONDS"
waits, "get NAME" prints. A task is done if the world is {"done": its id} in the end. Like the original, an operation on
another task than the active one is an internal error, and a body without a field it needs is refused with 422.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NEEDED = {"initialize": ["task_id"], "execute": ["task_id", "code"], "evaluate": ["task_id"], "close": ["task_id"]}


class Handler(BaseHTTPRequestHandler):
    server: Any

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        if self.path == "/":
            self.answer(200, {"message": "Welcome to AppWorld Server! "})
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        method = self.path.strip("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((method, body))
        missing = [name for name in NEEDED.get(method, []) if name not in body]
        if method not in NEEDED:
            self.answer(404, {"detail": "Not Found"})
        elif missing:
            self.answer(422, {"detail": [{"loc": ["body", name], "msg": "field required"} for name in missing]})
        elif method != "initialize" and self.server.task_id != body["task_id"]:
            self.answer(500, None)
        else:
            self.answer(200, {"output": getattr(self, method)(body)})

    def answer(self, status: int, content: Any) -> None:
        data = b"Internal Server Error" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # the client has given up waiting
            self.wfile.write(data)

    def initialize(self, body: dict[str, Any]) -> dict[str, Any]:
        self.server.task_id, self.server.world = body["task_id"], {}
        person = {"first_name": "Ada", "last_name": "Ng", "email": "ada@example.com", "phone_number": "5550100"}
        text = f"Set done to {body['task_id']}."
        return {
            "task_id": body["task_id"],
            "instruction": text,
            "supervisor": person,
            "datetime": "2023-05-18T12:00:00",
        }

    def execute(self, body: dict[str, Any]) -> str:
        verb, *words = body["code"].split()
        if verb == "sleep":
            time.sleep(float(words[0]))
        if verb == "set":
            self.server.world[words[0]] = words[1]
        if verb not in ("set", "get", "sleep"):
            return f"Execution failed. Traceback:\nNameError: {verb}"
        return self.server.world.get(words[0], "None") if verb == "get" else "Execution successful."

    def evaluate(self, body: dict[str, Any]) -> dict[str, Any]:
        world, task_id = self.server.world, self.server.task_id
        tests = {"done is set": world.get("done") == task_id, "nothing else is": set(world) <= {"done"}}
        passes, failures = ([{"requirement": n} for n, ok in tests.items() if ok is wanted] for wanted in (True, False))
        return {"success": all(tests.values()), "difficulty": 1, "num_tests": 2, "passes": passes, "failures": failures}

    def close(self, body: dict[str, Any]) -> None:
        self.server.task_id = None


@contextmanager
def serving(count: int = 1) -> Iterator[list[Any]]:
    """Servers on free ports, each with `url`, `calls`, `task_id` and `world`."""
    servers: list[Any] = []
    for _ in range(count):
        server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.calls, server.task_id, server.world = [], None, {}
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
    try:
        yield servers
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
