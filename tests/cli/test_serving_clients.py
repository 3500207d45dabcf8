"""The server of `calibrant report --serve` and clients that are many, slow or gone."""

import http.client
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from calibrant.cli import serving
from calibrant.cli.serving import Handler, Server


@contextmanager
def serving_from(folder, poll_interval=0.02):
    with Server(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(poll_interval,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def served(tmp_path):
    """A server without studies, which is what all this does not depend on."""
    with serving_from(tmp_path) as server:
        yield server


def connected(server):
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=60)


def status(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


def nobody_waits(server):
    deadline = time.monotonic() + 30
    while server.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_hundred_clients_at_once_are_all_answered(served):
    with ThreadPoolExecutor(200) as clients:
        assert set(clients.map(lambda _: status(served), range(200))) == {200}


def test_the_system_holds_many_clients_until_they_are_accepted(tmp_path):
    # Nobody accepts here: with a queue of five, most of these would wait.
    with Server(tmp_path, 0) as server:
        sockets = [connected(server) for _ in range(200)]
        for each in sockets:
            each.close()


def test_a_client_that_sends_its_request_too_slowly_is_dropped(served, monkeypatch):
    monkeypatch.setattr(serving, "TIMEOUT", 0.3)
    with connected(served) as slow:
        begun = time.monotonic()
        closed = b"not yet"
        # A byte now and then: the time that counts is that of the whole request.
        while closed and time.monotonic() - begun < 30:
            try:
                slow.sendall(b"G")
                slow.settimeout(0.05)
                closed = slow.recv(1)
            except TimeoutError:
                continue
            except OSError:
                closed = b""
        assert closed == b""
    nobody_waits(served)


def test_a_silent_client_is_dropped(served, monkeypatch):
    monkeypatch.setattr(serving, "TIMEOUT", 0.2)
    with connected(served) as silent:
        assert silent.recv(1) == b""


def test_slow_clients_do_not_keep_others_out(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(serving, "TIMEOUT", 1e6)
    with serving_from(tmp_path, 0.5) as server:
        slow = [connected(server) for _ in range(20)]
        assert [status(server) for _ in range(5)] == [200] * 5
        assert len(server.waiting) <= 4
        for each in slow:
            each.close()


def test_a_client_that_never_reads_its_answer_is_dropped(tmp_path, monkeypatch):
    assert Handler.timeout == serving.TIMEOUT
    monkeypatch.setattr(Handler, "timeout", 0.2)
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 1)
    # More than the buffers of the system hold.
    monkeypatch.setattr(serving, "_index", lambda *_: "x" * 50_000_000)
    with serving_from(tmp_path, 0.5) as server, connected(server) as lazy:
        lazy.sendall(f"GET / HTTP/1.1\r\nHost: localhost:{server.server_port}\r\n\r\n".encode())
        assert lazy.recv(1) == b"H"
        assert status(server) == 200


def test_clients_that_disconnect_are_not_logged(served, capfd):
    for sent in (b"", b"GET", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"):
        each = connected(served)
        each.sendall(sent)
        # Closing with linger zero resets the connection.
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        each.close()
    assert status(served) == 200
    nobody_waits(served)
    assert capfd.readouterr() == ("", "")
