"""`calibrant report --serve`: serves the studies of a folder on this machine, live."""

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
TIMEOUT = 10.0
# Largest number of open connections, and of those that the system queues.
MAX_CONNECTIONS, QUEUE = 256, 1024
# A page is cached for this many times what rendering it took: training needs the cores.
CACHE_FACTOR = 20


@dataclass(frozen=True)
class CachedPage:
    """A page, the version of the study that it shows, and when it expires."""

    version: str
    text: str
    expires: float


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
        self.pages: dict[Path, CachedPage] = {}
        self.lock = threading.Lock()
        self.places = threading.Semaphore(MAX_CONNECTIONS)
        # Connections without a request yet, the oldest first, and when each was opened.
        self.waiting: dict[Any, float] = {}
        self.lock_of_waiting = threading.Lock()
        super().__init__((ADDRESS, port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; if all are busy, close the oldest connection without a request."""
        if not self.places.acquire(blocking=False):
            self._drop(older_than=-math.inf, count=1)
            self.places.acquire()
        with self.lock_of_waiting:
            self.waiting[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then free the place of this connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.mark_received(request)
            self.places.release()

    def mark_received(self, request: Any) -> None:
        """Remove a connection whose request has arrived from those without one."""
        with self.lock_of_waiting:
            self.waiting.pop(request, None)

    def service_actions(self) -> None:
        """Close connections without a request after the timeout; called twice a second."""
        self._drop(older_than=TIMEOUT)

    def _drop(self, *, older_than: float, count: int = MAX_CONNECTIONS) -> None:
        with self.lock_of_waiting:
            begun = time.monotonic() - older_than
            late = [each for each, since in self.waiting.items() if since < begun]
            for request in late[:count]:
                # Its thread reads an end, and ends.
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)
                del self.waiting[request]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients may disconnect, and errors are sent to them."""

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{ADDRESS}:{self.server_port}/"

    @cached_property
    def hosts(self) -> tuple[str, str]:
        """Accepted values of the Host header; others may be a DNS rebinding attack."""
        return f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"

    def studies(self) -> dict[str, Path]:
        """Folders of studies by their names in URLs."""
        return {path.name: path for path in _studies(self.folder)}

    def page(self, folder: Path) -> CachedPage:
        """The page of a study, rendered again if it has expired and the study has changed."""
        with self.lock:
            last, now = self.pages.get(folder), time.monotonic()
            if last is not None and now < last.expires:
                return last
            version = _version(folder)
            if last is None or last.version != version:
                text = page(read_snapshot(folder), scripts=web_file("live.js"), connects=True)
                done = time.monotonic()
                last = CachedPage(version, text, expires=done + CACHE_FACTOR * (done - now))
                self.pages[folder] = last
            return last


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: Server
    timeout = TIMEOUT
    server_version, sys_version = "calibrant", ""

    def do_GET(self) -> None:
        """Answer with a page, or with its version."""
        self.server.mark_received(self.connection)
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
                self._send(HTTPStatus.OK, "text/plain", self.server.page(studies[parts[0]]).version)
            else:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is no such study")
        except ConnectionError:
            # The client has disconnected.
            return
        except Exception as error:
            # One damaged study must not hide the others.
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
        """Print nothing: the page is requested every other second."""


def _studies(folder: Path) -> Iterator[Path]:
    """The folder itself if it is a study, else the studies in it."""
    where = folder.resolve()
    found = [where / STUDY] if (where / STUDY).exists() else sorted(where.glob(f"*/{STUDY}"))
    yield from (path.parent for path in found)


def _version(folder: Path) -> str:
    """Changes with the page: when a run starts or ends, or an epoch ends."""
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
