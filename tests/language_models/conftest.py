import json
from pathlib import Path

import pytest

# Logs that lm-evaluation-harness 0.4.13 wrote with its `dummy` model for tasks of our own.
HARNESS_LOGS = Path(__file__).parent / "harness_logs"


@pytest.fixture
def harness_log():
    """The log of one of these tasks."""

    def find(task):
        (path,) = HARNESS_LOGS.glob(f"samples_tiny_{task}_*.jsonl")
        return path

    return find


@pytest.fixture
def write_lines(tmp_path):
    """Write objects as JSON lines; returns the path."""

    def write(records, name="log.jsonl"):
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(each)}\n" for each in records))
        return path

    return write
