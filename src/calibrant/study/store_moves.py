"""What may happen to a cell, as SQL: each function is part of a transaction of the store."""

import sqlite3

_TAKE = """
UPDATE cells SET status = 'running', attempt = attempt + 1, tries = tries + 1,
    owner = :owner, expires = :expires, reason = '', seconds = NULL
WHERE id = (SELECT id FROM cells WHERE status = 'pending' ORDER BY position LIMIT 1)
RETURNING id, config, attempt
"""
_BEGIN = "INSERT INTO attempts (id, attempt, owner, started) VALUES (?, ?, ?, ?)"
_SILENT = """
SELECT id, attempt, owner FROM cells WHERE status = 'running' AND expires <= ? ORDER BY position
"""
# The fence of the next three: who has an older attempt, or one that has ended, changes nothing.
_EXTEND = "UPDATE cells SET expires = ? WHERE id = ? AND attempt = ? AND status = 'running'"
_TRIES = "SELECT tries FROM cells WHERE id = ? AND attempt = ? AND status = 'running'"
_LEAVE = """
UPDATE cells SET status = :status, reason = :reason, seconds = :seconds, expires = 0,
    tries = tries - :back, owner = CASE :status WHEN 'pending' THEN '' ELSE owner END
WHERE id = :id AND attempt = :attempt AND status = 'running'
"""
_END = """
UPDATE attempts SET ended = :now, outcome = :outcome, reason = :reason, seconds = :seconds
WHERE id = :id AND attempt = :attempt
"""
RETRY = """
UPDATE cells SET status = 'pending', tries = 0, owner = '', seconds = NULL WHERE id = ?
"""

# Id and attempt.
Where = tuple[str, int]


def take(
    handle: sqlite3.Connection, now: float, owner: str, lease: float
) -> tuple[str, str, int] | None:
    """Id, settings and attempt of the first pending cell, which now runs; None if there is none."""
    taken = handle.execute(_TAKE, {"owner": owner, "expires": now + lease}).fetchall()
    if not taken:
        return None
    ((id, text, attempt),) = taken
    handle.execute(_BEGIN, (id, attempt, owner, now))
    return id, text, attempt


def drop_silent(handle: sqlite3.Connection, now: float, max_attempts: int) -> bool:
    """Whether a cell is pending again because its lease ran out; ones that may not be end.

    Only the first, since the other owners may just be slow: they keep theirs until it is wanted.
    """
    for id, attempt, owner in handle.execute(_SILENT, (now,)).fetchall():
        reason = f"no sign of life from {owner} within its lease"
        if fall(handle, now, (id, attempt), "lost", reason, max_attempts) == "pending":
            return True
    return False


def extend(handle: sqlite3.Connection, expires: float, where: Where) -> bool:
    """Move the end of a lease, if the attempt is the one that runs."""
    return handle.execute(_EXTEND, (expires, *where)).rowcount == 1


def fall(
    handle: sqlite3.Connection,
    now: float,
    where: Where,
    outcome: str,
    reason: str,
    max_attempts: int,
) -> str | None:
    """Status of a cell after its attempt came to nothing; None if that is not the one that runs."""
    for (tries,) in handle.execute(_TRIES, where).fetchall():
        status = "failed" if tries >= max_attempts else "pending"
        leave(handle, now, where, status, outcome, reason)
        return status
    return None


def leave(
    handle: sqlite3.Connection,
    now: float,
    where: Where,
    status: str,
    outcome: str,
    reason: str = "",
    seconds: float | None = None,
    back: int = 0,
) -> bool:
    """End an attempt, if it is the one that runs; `back` of it do not count."""
    values = {"id": where[0], "attempt": where[1], "status": status, "outcome": outcome}
    values |= {"reason": reason, "seconds": seconds, "back": back, "now": now}
    if handle.execute(_LEAVE, values).rowcount != 1:
        return False
    handle.execute(_END, values)
    return True
