"""Two processes take the steps of one, say the same, and stop together."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import two_ranks

from calibrant.training import Runtime

pytestmark = pytest.mark.slow
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> dict:
    """What two gloo processes computed, all cases in one launch."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [*TORCHRUN, str(Path(__file__).with_name("two_ranks.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "two.pt", weights_only=True)


@pytest.mark.parametrize("name", [*two_ranks.CASES, *two_ranks.RECIPES])
def test_two_processes_equal_one(together, name):
    check_equal(together[name], two_ranks.computed(name, Runtime("cpu")))


@pytest.mark.parametrize("name", two_ranks.DENSE)
def test_two_processes_with_unequal_numbers_of_pixels_equal_one(together, name):
    check_equal(together["dense"][name], two_ranks.dense(name, Runtime("cpu")))


def check_equal(two: dict, one: dict) -> None:
    for key in ("weights", "multipliers", "logits"):
        torch.testing.assert_close(two[key], one[key], rtol=0, atol=1e-10)
    for first, second in zip(two["rows"], one["rows"], strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-8)


def test_a_loss_that_is_not_finite_in_one_process_stops_all(together):
    assert together["diverged"] == [True, True]


def test_gradients_are_means_and_buffers_those_of_the_first(together):
    for found in together["reduced"]:
        assert torch.equal(found["shared"], torch.tensor([1.5, 1.5]))
        # The second process alone uses it.
        assert torch.equal(found["sometimes"], torch.tensor([0.5, 0.5]))
        assert found["never"] is None
        assert found["frozen"] is None
        # Inputs of the first process are (0, 2) and (0, 4), and the momentum is 0.1.
        torch.testing.assert_close(found["norm.running_mean"], torch.tensor([0.0, 0.3]))
        assert int(found["norm.num_batches_tracked"]) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_thread_of_the_process_group_is_left_after_close(together):
    before, after = together["threads"]
    assert before
    assert not after
