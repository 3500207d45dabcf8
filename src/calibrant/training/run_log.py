"""What a run sends to its loggers, and when."""

import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.training.folder import read_json, write_json
from calibrant.training.loggers import RunLogger, explained, open_logger

# The id of a run in the stores that it is logged to, in its folder.
LOG = "log.json"


@dataclass
class _Target:
    logger: RunLogger
    kind: str
    sent: int = 0


@dataclass
class RunLog:
    """The loggers of a run, in its first process; in the others there are none.

    A store that does not answer ends no training: there is a warning, and what it has missed is
    sent after the next epoch.
    """

    targets: list[_Target] = field(default_factory=list)

    def open(
        self,
        given: Sequence[str | RunLogger],
        *,
        name: str,
        folder: Path | None,
        settings: Mapping[str, Any],
    ) -> None:
        """Open loggers, of which those in a store continue the run of this folder."""
        id = _id_of(folder) if given else ""
        for each in given:
            kind = each.partition(":")[0] if isinstance(each, str) else type(each).__name__
            logger = open_logger(each, name, id) if isinstance(each, str) else each
            self.targets.append(_Target(logger, kind))
            with explained(kind):
                logger.log_settings(settings)

    def send(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send the numbers of the rows that are new; `epoch` is their step."""
        for target in self.targets:
            try:
                with explained(target.kind):
                    for row in rows[target.sent :]:
                        target.logger.log_metrics(_numbers(row), row["epoch"])
                        target.sent += 1
            except ConnectionError as error:
                missing = len(rows) - target.sent
                warnings.warn(f"{error}; {missing} epochs are not there yet", stacklevel=2)

    def close(self) -> None:
        """Close all loggers."""
        for target in self.targets:
            try:
                with explained(target.kind):
                    target.logger.close()
            except ConnectionError as error:
                warnings.warn(str(error), stacklevel=2)


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Metrics that are numbers: lists with one for each class stay in the history."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if name != "epoch"}


def _id_of(folder: Path | None) -> str:
    """Id of the run, which is new with its folder."""
    found = None if folder is None else read_json(folder / LOG)
    id = str(found["id"]) if found else secrets.token_hex(4)
    if folder is not None and found is None:
        write_json(folder / LOG, {"id": id})
    return id
