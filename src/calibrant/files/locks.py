"""File locks that are released when the process ends."""

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

# Seconds between two attempts to acquire a lock, and for which `is_locked` may hold one.
PAUSE, GLANCE = 0.01, 0.2


class BusyError(ValueError):
    """Another process holds the lock."""


def open_regular(path: Path, *, append: bool) -> FileIO:
    """Open a regular file to append to it, creating it if needed, or to read it.

    Links and pipes are refused: another user may own what they lead to, and a pipe could block.
    """
    flags = os.O_APPEND | os.O_WRONLY | os.O_CREAT if append else os.O_RDONLY
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
    return FileIO(descriptor, "ab" if append else "rb")


class FileLock:
    """An advisory lock of the kernel (flock) on an open file.

    It belongs to the open file: a suspended process keeps it, a dead one releases it at once.
    Threads exclude each other as processes do. A forked child shares the lock; a new process
    does not.

    Args:
        path: path of the lock file.
        create: create the file if it does not exist; if False the file is only read, which works
            in read-only folders.

    Raises:
        FileNotFoundError: the file does not exist, and `create` is False.
        ValueError: it is not a regular file.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self._handle = open_regular(path, append=create)

    def acquire(self, *, shared: bool = False, seconds: float = 0.0) -> bool:
        """Acquire the lock, exclusive or shared; return whether that succeeded.

        A lock that is already held is converted, during which another process may acquire it.
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
        """Release the lock; the file is not removed, since that would allow two locks."""
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
    """Refuse systems without file locks."""
    if fcntl is None:
        raise OSError("studies need file locks (flock), which Windows lacks: use WSL")
