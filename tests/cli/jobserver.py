"""A job server as Ray's dashboard is one, which runs nothing: a test says how jobs end."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JOB = re.compile(r"/api/jobs/([^/]+)(/logs)?")


class JobServer:
    """What came in, and what is answered."""

    def __init__(self) -> None:
        self.address = ""
        self.jobs: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.state: dict[str, Any] = {"status": "RUNNING"}
        self.logs = ""
        self.refuses = 0
        """The status of an answer to whoever submits, in place of a job."""
        self.on_submit: Callable[[dict[str, Any]], None] = lambda job: None

    def ends(self, status: str, *, exit_code: int | None = None, logs: str = "", message: str = "") -> None:
        """Let every job be over."""
        self.state = {"status": status, "driver_exit_code": exit_code, "message": message}
        self.logs = logs


@contextmanager
def job_server() -> Iterator[JobServer]:
    """Serve on a free port of this machine."""
    served = JobServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            found = JOB.fullmatch(self.path)
            if self.path == "/api/version":
                self._answer({"version": "4", "ray_version": "2.50.0", "ray_commit": "x", "session_name": "s"})
            elif found and found[2]:
                self._answer({"logs": served.logs})
            elif found:
                about = {"type": "SUBMISSION", "submission_id": found[1], "entrypoint": "x", "job_id": None}
                self._answer({**about, **served.state})
            else:
                self._answer({}, 404 if "packages" not in self.path else 200)

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self._answer({})

        def do_POST(self) -> None:
            job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.jobs.append(job)
            served.on_submit(job)
            if served.refuses:
                self._answer({"error": "no"}, served.refuses)
            else:
                self._answer({"job_id": job["submission_id"], "submission_id": job["submission_id"]})

        def _answer(self, record: dict[str, Any], status: int = 200) -> None:
            body = json.dumps(record).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
