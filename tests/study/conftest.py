"""What the tests of studies share."""

import pytest
import torch

from calibrant.study import runner
from calibrant.study.worker import work


@pytest.fixture
def alone(monkeypatch):
    """Run cells in this process, with one thread: starting workers takes seconds."""

    class Here(runner.Crew):
        def busy(self, study) -> bool:
            work(self.folder, owner="here")
            return False

    monkeypatch.setattr(runner, "Crew", Here)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
