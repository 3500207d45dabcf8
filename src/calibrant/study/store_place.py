"""Where a store may be: on a local disk, writable, and with the journal that works there."""

import os
import re
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath

from calibrant.files.faults import fault
from calibrant.study.store_cells import damaged

SCHEMA_VERSION = 1
# Tells our files from other SQLite files: "cali" in ASCII.
APPLICATION = 0x63616C69
MOUNTS = Path("/proc/self/mountinfo")

# File systems that other machines may write at the same time.
NETWORK = {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "davfs"}
NETWORK |= {"lustre", "gpfs", "beegfs", "ceph", "glusterfs", "pvfs2", "orangefs", "panfs"}
NETWORK |= {"wekafs", "ocfs2", "gfs2", "acfs"}
# The same, by programs of users (FUSE): the part of the type after `fuse.`.
NETWORK_PROGRAMS = {"sshfs", "s3fs", "rclone", "gcsfuse", "goofys", "juicefs", "mfs", "moosefs"}
NETWORK_PROGRAMS |= {"glusterfs", "ceph", "davfs2", "curlftpfs", "smbnetfs", "blobfuse", "nfs"}
NETWORK_PROGRAMS |= {"blobfuse2", "mount-s3", "mountpoint-s3", "hdfs", "fuse_dfs", "seaweedfs"}

_SCHEMA = """
BEGIN;
CREATE TABLE cells (
    id TEXT PRIMARY KEY,
    position INTEGER NOT NULL UNIQUE,
    config TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'running', 'done', 'diverged', 'failed')),
    -- The fence: only ever grows.
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    -- Attempts that count towards giving up.
    tries INTEGER NOT NULL DEFAULT 0 CHECK (tries BETWEEN 0 AND attempt),
    owner TEXT NOT NULL DEFAULT '',
    -- End of the lease while running, else 0.
    expires REAL NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '',
    seconds REAL
) WITHOUT ROWID;
CREATE INDEX by_status ON cells (status, position);
CREATE TABLE attempts (
    id TEXT NOT NULL REFERENCES cells (id),
    attempt INTEGER NOT NULL,
    owner TEXT NOT NULL,
    started REAL NOT NULL,
    ended REAL,
    outcome TEXT NOT NULL DEFAULT 'running',
    reason TEXT NOT NULL DEFAULT '',
    seconds REAL,
    PRIMARY KEY (id, attempt)
) WITHOUT ROWID;
PRAGMA application_id = 1667329129;
PRAGMA user_version = 1;
COMMIT;
"""


def check_place(folder: Path, *, create: bool) -> None:
    """Refuse a folder in which a store would fail, or lose cells."""
    for each in (folder, *folder.parents):
        if each.exists() and not each.is_dir():
            raise NotADirectoryError(
                f"{each} is a file, but a study needs a folder: choose another"
            )
    kind = network_file_system(folder)
    if kind is not None:
        raise ValueError(
            f"{folder} is on a network file system ({kind}), where locks do not hold: choose a "
            "folder on a local disk; for several machines give --dask ADDRESS"
        )
    if create:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot make the folder of the study ({error.strerror})", str(folder)
            ) from error
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} is not writable: change its permissions or choose another")


def network_file_system(folder: Path) -> str | None:
    """Type and mount point of the network file system that the folder is on; None if local."""
    if not MOUNTS.exists():
        return None
    real = PurePosixPath(os.path.realpath(folder))
    found, depth = None, 0
    for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        if not after:
            continue
        kind, source = after.split(" ")[:2]
        # Spaces and the like are written in octal.
        point = PurePosixPath(re.sub(r"\\([0-7]{3})", _character, before.split(" ")[4]))
        # Of two mounts at one point, the later one covers the earlier.
        if real.is_relative_to(point) and len(point.parts) >= depth:
            depth = len(point.parts)
            found = f"{kind} at {point}" if _over_a_network(kind, source) else None
    return found


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))


def _over_a_network(kind: str, source: str) -> bool:
    if kind in NETWORK:
        return True
    fuse, _, program = kind.partition(".")
    remote = source.startswith("//") or ":" in source
    return fuse == "fuse" and (program in NETWORK_PROGRAMS or remote)


def create_store(path: Path) -> None:
    """Make an empty store, seen whole or not at all; one that is there already stays."""
    wal = wal_works(path.parent)
    with _draft(path.parent) as draft:
        with closing(sqlite3.connect(draft, isolation_level=None)) as handle:
            if wal:
                handle.execute("PRAGMA journal_mode = WAL").fetchall()
            handle.executescript(_SCHEMA)
        fault(path, "drafted")
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        except OSError:
            _take_name(draft, path)


def _take_name(draft: Path, path: Path) -> None:
    """Without hard links: who makes the empty file may replace it, the others wait for that."""
    with suppress(FileExistsError):
        open(path, "xb").close()
        os.replace(draft, path)


def wait_for_creation(path: Path) -> None:
    """Give another process the moment it needs between the two steps of `_take_name`."""
    for _ in range(50):
        if path.stat().st_size:
            return
        time.sleep(0.02)


def wal_works(folder: Path) -> bool:
    """Whether SQLite can keep a write-ahead log here; tried out, since it may only say so.

    Without one, readers and writers wait for each other, which is slower and as safe.
    """
    try:
        with (
            _draft(folder) as draft,
            closing(sqlite3.connect(draft, isolation_level=None)) as writer,
            closing(sqlite3.connect(draft, isolation_level=None)) as reader,
        ):
            mode = writer.execute("PRAGMA journal_mode = WAL").fetchall()
            writer.execute("CREATE TABLE probe AS SELECT 7 AS value")
            seen = reader.execute("SELECT value FROM probe").fetchall()
            return mode == [("wal",)] and seen == [(7,)]
    except sqlite3.Error:
        return False


def check_file(handle: sqlite3.Connection, path: Path) -> None:
    """Refuse files that are not ours, are too new, or are damaged."""
    if handle.execute("PRAGMA application_id").fetchall() != [(APPLICATION,)]:
        raise ValueError(f"{path} is no store of a study, or damaged: choose another folder")
    ((version,),) = handle.execute("PRAGMA user_version").fetchall()
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"{path} has version {version}, but this calibrant reads version {SCHEMA_VERSION}: "
            "update calibrant, or choose another folder"
        )
    problems = handle.execute("PRAGMA integrity_check(1)").fetchall()
    if problems != [("ok",)]:
        raise damaged(path, str(problems[0][0]).splitlines()[-1])
    # Positions have no gaps, and no cell is ever removed.
    query = "SELECT COUNT(*), MAX(position) + 1 FROM cells"
    ((cells, positions),) = handle.execute(query).fetchall()
    if cells != (positions or 0):
        raise damaged(path, f"{positions} cells were added, {cells} are left")


@contextmanager
def _draft(folder: Path) -> Iterator[Path]:
    """Name for a database that is gone in the end, with all that SQLite puts beside it."""
    draft = folder / f".{secrets.token_hex(8)}.tmp.{os.getpid()}"
    try:
        yield draft
    finally:
        for end in ("", "-wal", "-shm", "-journal"):
            Path(f"{draft}{end}").unlink(missing_ok=True)
