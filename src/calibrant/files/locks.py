"""Locks on files that end with the process that holds them, however it ends."""

import errno
import os
import stat
import time
from io import FileIO
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Seconds between two tries to get a lock, and for which a process that only looks may hold one.
PAUSE, GLANCE = 0.01, 0.2


class BusyError(ValueError):
    """Another process holds the lock."""


class FileLock:
    """An advisory lock of the kernel (flock) on an open file.

    It belongs to the open file: a suspended process keeps it, a dead one loses it at once, clocks
    and process numbers play no part. Threads exclude each other as processes do. A child that is
    forked while the lock is held shares it; one that is started anew does not.

    Args:
        path: of the lock file.
        create: make the file if there is none; without it the file is only read, which works in
            folders that are read-only.

    Raises:
        FileNotFoundError: there is no such file, and none is made.
        ValueError: it is no regular file.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        # Neither a link nor a pipe, which may be anybody's; opening a pipe must not wait.
        flags = os.O_APPEND | os.O_WRONLY | os.O_CREAT if create else os.O_RDONLY
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        refusal = ValueError(f"{path} must be a regular file: remove it and run the command again")
        try:
            descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise refusal from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise refusal
        self._handle = FileIO(descriptor, "ab" if create else "rb")

    def acquire(self, *, shared: bool = False, seconds: float = 0.0) -> bool:
        """Take the lock, alone or together with others who share it; whether it was free.

        A lock that is held already is converted: it may be lost to another process in between.
        """
        if fcntl is None:
            return True
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(self._handle, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(PAUSE)
            else:
                return True

    def close(self) -> None:
        """Let the lock go; the file stays, since to remove it would let two hold "the" lock."""
        self._handle.close()

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_locked(path: Path) -> bool:
    """Whether a process holds the exclusive lock of this file; nothing is written."""
    try:
        with FileLock(path, create=False) as lock:
            return not lock.acquire(shared=True)
    except FileNotFoundError:
        return False


def check_locks() -> None:
    """Refuse systems without such locks."""
    if fcntl is None:
        raise OSError("studies need file locks (flock), which Windows lacks: use WSL")
