"""The store of a study: who runs which cell, so that none runs twice at once or is lost."""

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from calibrant.study.store_cells import (
    ENDS,
    STATUSES,
    Attempt,
    CellState,
    Claim,
    canonical,
    cell_id,
    check_span,
    id_of,
    stored_config,
)
from calibrant.study.store_connection import Connection, in_one_line, plain
from calibrant.study.store_moves import (
    RETRY,
    drop_silent,
    extend,
    fall,
    leave,
    take,
)
from calibrant.study.store_place import (
    check_file,
    check_place,
    create_store,
    wait_for_creation,
)

__all__ = ["ENDS", "STATUSES", "Attempt", "CellState", "Claim", "Store", "cell_id"]

NAME = "store.sqlite"


class Store:
    """Cells of a study in one SQLite file that many processes of one machine share.

    A cell is pending, then running by its owner until its lease runs out, then done, diverged or
    failed. Each claim raises the attempt number of its cell. A worker that was thought dead and
    comes back has an old number, and what it says is refused: so no cell ends twice.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Store.open(folder) as store:
        ...     ids = store.add([{"method": "focal", "seed": seed} for seed in range(3)])
        ...     claim = store.claim("worker 1", lease=60.0)
        ...     _ = store.finish(claim, "done", seconds=12.5)
        ...     store.counts()
        {'pending': 2, 'running': 0, 'done': 1, 'diverged': 0, 'failed': 0}
    """

    def __init__(
        self, folder: Path, connection: Connection, max_attempts: int, clock: Callable[[], float]
    ) -> None:
        self.folder = folder
        self._connection, self._max_attempts, self._clock = connection, max_attempts, clock

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        create: bool = True,
        max_attempts: int = 3,
        clock: Callable[[], float] = time.time,
    ) -> "Store":
        """Open the store of a study.

        Args:
            folder: of the study, on a local disk.
            create: make folder and store if there are none.
            max_attempts: how often a cell whose worker dies or falls silent is tried.
            clock: seconds, the same for all who share the store.

        Raises:
            FileNotFoundError: there is no store, and none shall be made.
            ValueError: it is damaged, of a newer version, or on a network file system.
            OSError: the folder is a file, not writable, or the disk is full.
        """
        if sqlite3.sqlite_version_info < (3, 35):
            raise ImportError(f"studies need SQLite 3.35 or newer, got {sqlite3.sqlite_version}")
        if max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, got {max_attempts}")
        where = Path(folder)
        path = where / NAME
        check_place(where, create=create)
        if not path.exists():
            if not create:
                raise FileNotFoundError(f"no study in {where}: there is no {NAME}")
            try:
                create_store(path)
            except sqlite3.Error as error:
                raise in_one_line(path, error) from error
        wait_for_creation(path)
        connection = Connection(path)
        try:
            connection.read(lambda handle: check_file(handle, path))
        except BaseException:
            connection.close()
            raise
        return cls(where, connection, max_attempts, clock)

    def close(self) -> None:
        """Close the file; claims stay."""
        self._connection.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def add(self, cells: Sequence[Mapping[str, Any]]) -> list[str]:
        """Ids of these cells, after those which are new have been put behind all others."""
        texts = [canonical(each) for each in cells]
        first: dict[str, int] = {}
        for place, text in enumerate(texts):
            if first.setdefault(text, place) != place:
                raise ValueError(
                    f"cells must differ, but number {place} is number {first[text]} again: {text}"
                )
        ids = [id_of(text) for text in texts]

        def work(handle: sqlite3.Connection) -> None:
            known = {id for (id,) in handle.execute("SELECT id FROM cells")}
            new = [(id, text) for id, text in zip(ids, texts, strict=True) if id not in known]
            handle.executemany(
                "INSERT INTO cells (id, position, config) VALUES (?, ?, ?)",
                [(id, len(known) + place, text) for place, (id, text) in enumerate(new)],
            )

        self._connection.write(work)
        return ids

    def claim(self, owner: str, *, lease: float) -> Claim | None:
        """The next cell to run: pending, or else one whose owner fell silent; None if none is left.

        None does not mean that all are done: others may be running.
        """
        check_span("lease", lease)
        owner = plain(owner)

        def work(handle: sqlite3.Connection) -> Claim | None:
            # Read once the lock is held: to wait for it may take longer than a lease.
            now = self._clock()
            taken = take(handle, now, owner, lease)
            if taken is None and drop_silent(handle, now, self._max_attempts):
                taken = take(handle, now, owner, lease)
            if taken is None:
                return None
            id, text, attempt = taken
            config = stored_config(self._connection.path, id, text)
            return Claim(id, config, attempt, owner, self.folder_of(id))

        return self._connection.write(work)

    def heartbeat(self, claim: Claim, *, lease: float) -> bool:
        """A sign of life: the lease starts anew. False if the cell is no longer the claim's."""
        check_span("lease", lease)

        where = (claim.id, claim.attempt)
        return self._connection.write(lambda handle: extend(handle, self._clock() + lease, where))

    def finish(
        self, claim: Claim, status: str, *, reason: str = "", seconds: float | None = None
    ) -> bool:
        """End a cell as done, diverged or failed. False, and no change, if the claim is stale."""
        if status not in ENDS:
            raise ValueError(f"a cell ends as {', '.join(ENDS)}, got {status!r}")
        if seconds is not None:
            check_span("seconds", seconds, zero=True)
        where, why = (claim.id, claim.attempt), plain(reason)
        return self._connection.write(
            lambda handle: leave(handle, self._clock(), where, status, status, why, seconds)
        )

    def release(self, claim: Claim) -> bool:
        """Give a cell back; this attempt does not count. False if the claim is stale."""
        where = (claim.id, claim.attempt)
        return self._connection.write(
            lambda handle: leave(handle, self._clock(), where, "pending", "released", back=1)
        )

    def crash(self, claim: Claim | tuple[str, int], reason: str) -> bool:
        """Record that a worker died: another may try, until the attempts are used up.

        Args:
            claim: the worker's, or (id, attempt) as in `cells`.
            reason: what is known, such as "killed by signal 9, perhaps out of memory".

        Returns:
            False, and no change, if the claim is stale.
        """
        where = (claim.id, claim.attempt) if isinstance(claim, Claim) else claim
        why = plain(reason)
        return self._connection.write(
            lambda handle: (
                fall(handle, self._clock(), where, "crashed", why, self._max_attempts) is not None
            )
        )

    def retry(self, ids: Iterable[str] | None = None) -> list[str]:
        """Ids of failed and diverged cells that are pending again; all of them if none are given.

        Given by their ids, cells that are done may be put back, too. They have all their attempts
        again. What is in their folders stays.
        """
        wanted = None if ids is None else list(ids)

        def work(handle: sqlite3.Connection) -> list[str]:
            found = dict(handle.execute("SELECT id, status FROM cells ORDER BY position"))
            again = wanted
            if again is None:
                again = [id for id, status in found.items() if status in ("failed", "diverged")]
            for id in again:
                if found.get(id) not in ENDS:
                    raise ValueError(
                        f"only cells that have ended can be retried, but cell {id!r} is "
                        f"{found.get(id, 'not in this study')}"
                    )
            handle.executemany(RETRY, [(id,) for id in again])
            return again

        return self._connection.write(work)

    def counts(self) -> dict[str, int]:
        """How many cells have each status."""
        query = "SELECT status, COUNT(*) FROM cells GROUP BY status"
        found = dict(self._connection.read(lambda handle: handle.execute(query).fetchall()))
        return {status: found.get(status, 0) for status in STATUSES}

    def cells(self) -> list[CellState]:
        """All cells, in the order of the study."""
        query = """
            SELECT id, config, status, attempt, owner, reason, seconds, position
            FROM cells ORDER BY position
        """
        rows = self._connection.read(lambda handle: handle.execute(query).fetchall())
        path = self._connection.path
        return [CellState(id, stored_config(path, id, text), *rest) for id, text, *rest in rows]

    def attempts(self, id: str) -> list[Attempt]:
        """All attempts at a cell, the first one first."""
        query = """
            SELECT attempt, owner, started, ended, outcome, reason, seconds
            FROM attempts WHERE id = ? ORDER BY attempt
        """
        rows = self._connection.read(lambda handle: handle.execute(query, (id,)).fetchall())
        return [Attempt(*row) for row in rows]

    def folder_of(self, id: str) -> Path:
        """Where the files of a cell go."""
        return self.folder / "cells" / id
