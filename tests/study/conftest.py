"""What the tests of studies share."""

import pytest
import torch

from calibrant.study import runner
from calibrant.study.worker import work


@pytest.fixture
def alone(monkeypatch):
    """Run cells in this process, with one thread: starting workers takes seconds."""

    class Here(runner.LocalExecutor):
        def poll(self) -> bool:
            work(self.runs.folder, owner="here", allow_code=self.allow_code)
            return False

    monkeypatch.setattr(runner, "LocalExecutor", Here)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
