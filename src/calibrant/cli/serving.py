"""`calibrant report --serve`: the studies of a folder on a page of this machine, growing live."""

import contextlib
import hashlib
import math
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from calibrant.cli.snapshot import read_snapshot
from calibrant.report.rendering import render, web_file
from calibrant.report.study_page import page
from calibrant.study.folder import STUDY, saved_runs

ADDRESS = "127.0.0.1"
# Seconds in which a client must send its request and take the answer.
PATIENCE = 10.0
# Connections at a time, and those that the system holds for us until then.
MOST, QUEUE = 256, 1024
# A page is made anew only after this many times what making it took: training needs the cores.
REST = 20


@dataclass(frozen=True)
class Made:
    """A page, what it was made from, and until when it will do."""

    version: str
    text: str
    until: float


class Server(ThreadingHTTPServer):
    """Reads studies and writes nothing; answers this machine only.

    Args:
        folder: a study, or a folder of studies.
        port: 0 picks a free port.
    """

    daemon_threads = True
    request_queue_size = QUEUE

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.made: dict[Path, Made] = {}
        self.lock = threading.Lock()
        self.places = threading.Semaphore(MOST)
        # Connections whose request has not come yet, the oldest first, and since when.
        self.waiting: dict[Any, float] = {}
        self.lock_of_waiting = threading.Lock()
        super().__init__((ADDRESS, port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; if too many are busy, the longest wait for a request is ended."""
        if not self.places.acquire(blocking=False):
            self._drop(older_than=-math.inf, most=1)
            self.places.acquire()
        with self.lock_of_waiting:
            self.waiting[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then let the next one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.came(request)
            self.places.release()

    def came(self, request: Any) -> None:
        """The request of a client has come: it is not waited for any longer."""
        with self.lock_of_waiting:
            self.waiting.pop(request, None)

    def service_actions(self) -> None:
        """Twice a second: drop those who take too long to say what they want."""
        self._drop(older_than=PATIENCE)

    def _drop(self, *, older_than: float, most: int = MOST) -> None:
        with self.lock_of_waiting:
            begun = time.monotonic() - older_than
            late = [each for each, since in self.waiting.items() if since < begun]
            for request in late[:most]:
                # Its thread reads an end, and ends.
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)
                del self.waiting[request]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients go away as they like, and what we do wrong they are told."""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{ADDRESS}:{self.server_port}/"

    @cached_property
    def hosts(self) -> tuple[str, str]:
        """Names that requests must come by: a page elsewhere may have a name that leads here."""
        return f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"

    def studies(self) -> dict[str, Path]:
        """Folders of studies by their names in addresses."""
        return {path.name: path for path in _studies(self.folder)}

    def page(self, folder: Path) -> Made:
        """The page of a study: the last one as long as it will do and what it shows is there."""
        with self.lock:
            last, now = self.made.get(folder), time.monotonic()
            if last is not None and now < last.until:
                return last
            version = _version(folder)
            if last is None or last.version != version:
                text = page(read_snapshot(folder), scripts=web_file("live.js"), connects=True)
                done = time.monotonic()
                last = Made(version, text, until=done + REST * (done - now))
                self.made[folder] = last
            return last


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: Server
    timeout = PATIENCE
    server_version, sys_version = "calibrant", ""

    def do_GET(self) -> None:
        """Answer with a page, or with what says whether it has changed."""
        self.server.came(self.connection)
        if self.headers.get("Host", "") not in self.server.hosts:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "only by 127.0.0.1 or localhost")
            return
        parts = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
        try:
            studies = self.server.studies()
            if parts == [""]:
                self._send(HTTPStatus.OK, "text/html", _index(self.server, studies))
            elif len(parts) == 1 and parts[0] in studies:
                self._send(HTTPStatus.OK, "text/html", self.server.page(studies[parts[0]]).text)
            elif parts[1:] == ["version"] and parts[0] in studies:
                made = self.server.page(studies[parts[0]])
                self._send(HTTPStatus.OK, "text/plain", made.version)
            else:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is no such study")
        except ConnectionError:
            # Whoever asked has gone.
            return
        except Exception as error:
            # Whatever is wrong with one study, the others are still to be seen.
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))

    def do_HEAD(self) -> None:
        """Answer without the body."""
        self.do_GET()

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the page is asked for every other second."""


def _studies(folder: Path) -> Iterator[Path]:
    """The folder itself if it is a study, else the studies in it."""
    where = folder.resolve()
    found = [where / STUDY] if (where / STUDY).exists() else sorted(where.glob(f"*/{STUDY}"))
    yield from (path.parent for path in found)


def _version(folder: Path) -> str:
    """Changes when the page would: a cell ends or begins, or an epoch does."""
    digest = hashlib.sha256()
    runs = saved_runs(folder)
    for state in runs.states():
        history = runs.folder_of(state.id) / "history.jsonl"
        size = history.stat().st_size if history.exists() else 0
        digest.update(f"{state.id} {state.status} {size}\n".encode())
    return digest.hexdigest()


def _index(server: Server, folders: dict[str, Path]) -> str:
    studies = []
    for name, folder in folders.items():
        try:
            counts = saved_runs(folder).counts()
        except (OSError, ValueError) as error:
            numbers: tuple[object, ...] = (f"cannot be read: {error}", "", "")
        else:
            bad = counts["failed"] + counts["diverged"]
            numbers = (f"{counts['done']} of {sum(counts.values())}", counts["running"], bad)
        studies.append({"name": name, "address": quote(name, safe=""), "numbers": numbers})
    return render(
        "index.html",
        name="Studies",
        where=server.folder.resolve().name,
        caption=counted(len(studies)),
        studies=studies,
    )


def counted(number: int) -> str:
    """How many studies there are, in words."""
    return f"{number} stud{'y' if number == 1 else 'ies'}"
