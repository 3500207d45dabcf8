"""Shared by all tests: fixed seeds, one thread, and where the real data are."""

import os
from pathlib import Path

# One thread unless told otherwise, here and in processes that tests start: tensors are small, and
# two workers with two threads each would mostly wait for each other on two cores. Libraries read
# these when they are loaded.
THREADS = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(THREADS))

import jaxtyping  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

from calibrant.data_folder import data_folder  # noqa: E402

torch.set_num_threads(THREADS)

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def as_a_user_runs_it():
    """Switch off the shape checks of the tests, so that our own messages are what is seen."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder of real logits; tests that need it are skipped where it is absent."""
    folder = data_folder()
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set CALIBRANT_DATA to its folder")
    return folder
