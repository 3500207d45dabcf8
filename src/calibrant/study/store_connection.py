"""One SQLite connection for each process: whole transactions, patience, errors in one line."""

import os
import random
import shutil
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from calibrant.files.faults import fault
from calibrant.study.store_cells import damaged

# Seconds that SQLite waits for other processes, and how often we let it.
TIMEOUT, TRIES = 30.0, 5
BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
REFUSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)

Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], Result]


class Connection:
    """A database that threads of a process may share, and that survives its forks.

    SQLite keeps a table of the locks of its process. A fork copies the table but not the locks, so
    a child that inherits an open database believes that it has locks which it has not. Hence the
    database is closed before each fork, and opened again by whoever uses it next.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._closed = False
        # Held while the handle is used, and over a fork.
        self.lock = threading.RLock()
        with _FORKING:
            _LIVE.add(self)

    def read(self, work: Work[Result]) -> Result:
        """Result of one query."""
        return self._patiently(work)

    def write(self, work: Work[Result]) -> Result:
        """Result of work that happens as a whole or not at all, while nobody else writes.

        It may be called again after it has been undone, so it must have no other effects.
        """

        def whole(handle: sqlite3.Connection) -> Result:
            if handle.in_transaction:
                raise RuntimeError(
                    f"{self.path} is being written: do not use it in signal handlers"
                )
            # The write lock from the start: what is read here still holds when it is written.
            handle.execute("BEGIN IMMEDIATE")
            try:
                fault(self.path, "before")
                result = work(handle)
                fault(self.path, "inside")
                handle.execute("COMMIT")
            except BaseException:
                if handle.in_transaction:
                    handle.execute("ROLLBACK")
                raise
            fault(self.path, "after")
            return result

        return self._patiently(whole)

    def close(self) -> None:
        """Close for good."""
        with self.lock:
            self._closed = True
            self.disconnect()

    def disconnect(self) -> None:
        """Close until the next use."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _patiently(self, work: Work[Result]) -> Result:
        self._check_process()
        with self.lock:
            for left in reversed(range(TRIES)):
                try:
                    return work(self._connected())
                except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
                    raise  # Ours, not the file's.
                except sqlite3.Error as error:
                    if not left or _code(error) not in BUSY:
                        raise in_one_line(self.path, error) from error
                time.sleep(random.uniform(0.01, 0.1))  # noqa: S311
        raise AssertionError  # Not reached: the last try returns or raises.

    def _connected(self) -> sqlite3.Connection:
        if self._closed:
            raise ValueError(f"{self.path} was closed: open the store again")
        if self._handle is None:
            # Never made here: an empty file would pass for a study without cells. And never read
            # as a plain file: closing that would drop the locks that this process has on it.
            self._handle = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=TIMEOUT,
                isolation_level=None,
                check_same_thread=False,
            )
            # On the disk before we say that a cell is done.
            self._handle.execute("PRAGMA synchronous = FULL")
        return self._handle

    def _check_process(self) -> None:
        """Refuse a handle of another process: only a fork behind Python's back can bring one."""
        if self._process != os.getpid():
            if self._handle is not None:
                raise RuntimeError(
                    f"{self.path} was opened by process {self._process} before a fork that Python "
                    "did not see: fork with os.fork or multiprocessing, or open the store later"
                )
            self._process = os.getpid()


def in_one_line(path: Path, error: sqlite3.Error) -> Exception:
    """The same error for a user: what happened to which file, and what to do."""
    code = _code(error)
    if code in BUSY:
        return TimeoutError(
            f"{path} is locked for {TIMEOUT * TRIES:.0f} s: a process that was stopped while it "
            "wrote may hold it; end that one and run the same command again"
        )
    if code == sqlite3.SQLITE_FULL or _extended(error) == sqlite3.SQLITE_IOERR_WRITE:
        # Imported here, since it brings torch.
        from calibrant.training.checkpoint import DiskFullError

        free = shutil.disk_usage(path.parent).free
        return DiskFullError(
            f"cannot write {path}: at least 4,096 bytes needed, {free:,} free ({error}); make room "
            "and run the same command again"
        )
    if code in REFUSED or not path.exists():
        return PermissionError(
            f"cannot open {path} ({error}): file and folder must be there, readable and writable"
        )
    if code == sqlite3.SQLITE_IOERR:
        return OSError(f"cannot read or write {path} ({error}): see whether the disk works")
    return damaged(path, error)


def _extended(error: sqlite3.Error) -> int:
    # Absent where Python itself complains, not SQLite.
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR))


def _code(error: sqlite3.Error) -> int:
    return _extended(error) & 0xFF


def plain(text: str) -> str:
    """Text that SQLite takes: half characters, as in broken file names, become question marks."""
    return text.encode(errors="replace").decode()


_LIVE: "weakref.WeakSet[Connection]" = weakref.WeakSet()
_held: list[Connection] = []
# Held over a fork, and while a connection is made.
_FORKING = threading.Lock()


def _before_fork() -> None:
    _FORKING.acquire()
    for each in list(_LIVE):
        each.lock.acquire()
        _held.append(each)
        each.disconnect()


def _after_fork() -> None:
    while _held:
        _held.pop().lock.release()
    _FORKING.release()


# Not on Windows, which has no forks.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
