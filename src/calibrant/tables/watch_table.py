"""New rows of a watched table: windows that are complete, late rows, labels that arrived."""

from dataclasses import replace

from calibrant.advice import located
from calibrant.tables.examples import invalid_text
from calibrant.tables.increments import (
    Increment,
    add_increment,
    count_rows,
    dropping,
    new_rows,
    opened,
    read_rows,
    schema_of,
    watched_columns,
)
from calibrant.tables.sources import engine_errors
from calibrant.tables.watch_options import Event, WatchOptions
from calibrant.tables.watch_state import WatchState

# Windows before the newest in which late rows are looked for.
LATE_WINDOWS = 60
CHANGED = "rows were changed or removed: metrics replaced, the e-process not updated"


def new_windows(options: WatchOptions, state: WatchState) -> tuple[WatchState, list[Event]]:
    """The state after all new rows of a table: one query that counts, and one that sums.

    A count of rows decides which windows are read; the sums decide what is new in them. So rows
    that arrive between the queries are counted now or in the next step, and never twice.
    """
    time, newest = str(options.time), max(state.windows, default=None)
    try:
        with engine_errors(options.name), opened(options.source, options.time) as table:
            columns = state.columns or watched_columns(table, options)
            if columns.outcome not in schema_of(table, columns, time):
                raise ValueError(f"no column {columns.outcome!r} in the table")
            since = None if newest is None else newest - LATE_WINDOWS
            counted, without = count_rows(table, columns, time, options.every, since)
            if without and not options.drop_invalid:
                raise dropping(f"{without:,} rows have no time")
            last = max(counted, default=0)
            todo = [
                number
                for number, seen in counted.items()
                if (
                    seen != state.windows[number].seen
                    if number in state.windows
                    else number < last or options.include_last
                )
            ]
            if not todo:
                return state, []
            state, found, invalid = read_rows(table, options, state, windows=todo)
    except (ValueError, TypeError) as error:
        if str(error).startswith(options.name):
            raise
        raise located(options.name, error) from error
    events = []
    for number in todo:
        each, late = found.get(number, Increment()), newest is not None and number < newest
        title, known = state.name_of(number), number in state.windows
        if known:
            state, said = _grown(state, number, each, late=late, level=options.level)
        else:
            state = add_increment(state, number, title, each, late=late, level=options.level)
            said = f"{each.rows:,} {'late ' if late else ''}rows"
        window = replace(state.windows[number], seen=counted[number])
        state = replace(state, windows={**state.windows, number: window})
        if said:
            values = {"window": title, "rows": each.rows}
            events.append(Event("late" if late or known else "counted", f"{title}: {said}", values))
    if invalid:
        text = f"{sum(invalid.values()):,} invalid rows left out ({invalid_text(invalid)})"
        events.append(Event("invalid", text, {"invalid": invalid}))
    return state, events


def _grown(
    state: WatchState, number: int, now: Increment, *, late: bool, level: float
) -> tuple[WatchState, str]:
    """The state after a window was read again, and what has changed in it."""
    old = state.windows[number]
    increment = new_rows(old.sums, now.labelled)
    added = now.rows - old.labelled_rows - old.unlabelled_rows
    labels = now.labelled_rows - old.labelled_rows
    window = replace(
        old,
        sums=now.labelled,
        unlabelled=now.unlabelled,
        late=old.late + (max(added, 0) if late else 0),
        metrics={} if now.labelled is None else old.metrics,
    )
    state = state.with_window(number, window, increment=increment, level=level)
    if added < 0 or (increment is None and (old.sums or now.labelled) is not None):
        return state, CHANGED
    if added:
        return state, f"{added:,} {'late ' if late else ''}rows added"
    return state, f"{labels:,} labels added" if labels else ""
