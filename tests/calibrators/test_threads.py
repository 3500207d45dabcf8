"""Fits in several threads: the results are those of one, and process settings are restored."""

import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, select
from calibrant.calibrators.blas_threads import one_thread_each
from calibrant.scoped_warnings import warn, without_warnings

THREADS = 8
# The first four select, in step with each other; the others fit.
FITTED = ("matrix", "dirichlet", "structured_matrix", "focal_structured_vector")


def examples(n=400, k=4):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(n, k)) * 4
    return Predictions(logits, (logits / 2 + generator.gumbel(size=(n, k))).argmax(1))


def blas_threads():
    found = threadpool_info()
    return {each["filepath"]: each["num_threads"] for each in found if each["user_api"] == "blas"}


@pytest.mark.slow
def test_eight_threads_give_the_results_of_one_and_restore_process_settings():
    data, probe = examples(), torch.randn(20, 4, dtype=torch.float64)
    # All four are inside `select` at once, and leave in any order.
    together = threading.Barrier(4)

    def work(job, wait):
        if job < 4:
            names = ["temperature", "structured_vector", "irm"]
            return select(data, candidates=names, folds=2, resamples=50, progress=wait).best(probe)
        return CALIBRATORS[FITTED[job - 4]].fit(data)(probe)

    expected = [work(job, None) for job in range(THREADS)]
    # Loads what torch loads late, which adds filters of its own.
    torch.testing.assert_close(expected, expected)
    before, filters = blas_threads(), list(warnings.filters)
    for _ in range(2):
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(work, range(THREADS), [lambda: together.wait(60)] * THREADS))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        assert warnings.filters == filters
        assert blas_threads() == before


def the_last_fit_restores_the_threads_of_blas():
    before = blas_threads()
    assert set(before.values()) == {min(2, os.cpu_count())}
    entered, leave = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def fit(number):
        with one_thread_each():
            entered[number].set()
            assert leave[number].wait(60)

    with ThreadPoolExecutor(2) as pool:
        jobs = []
        for number in range(2):
            jobs.append(pool.submit(fit, number))
            assert entered[number].wait(60)
        assert set(blas_threads().values()) == {1}
        leave[0].set()
        jobs[0].result()
        assert set(blas_threads().values()) == {1}
        leave[1].set()
        jobs[1].result()
    assert blas_threads() == before
    with pytest.raises(KeyError), one_thread_each():
        raise KeyError
    assert blas_threads() == before


def test_the_last_fit_restores_the_threads_of_blas_in_any_order():
    # In a process of its own, since BLAS reads its number of threads when it is loaded.
    code = "import test_threads; test_threads.the_last_fit_restores_the_threads_of_blas()"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr


def test_files_read_in_threads_leave_the_warning_filters_alone(tmp_path):
    examples(50).save(tmp_path / "p.npz")
    # Loads what is imported late, which may add filters of its own.
    Predictions.load(tmp_path / "p.npz")
    filters, interval = list(warnings.filters), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda _: Predictions.load(tmp_path / "p.npz"), range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert warnings.filters == filters


def test_warnings_are_silenced_in_one_thread_alone():
    with without_warnings():
        warn("not to be seen")
        with ThreadPoolExecutor(1) as pool, pytest.warns(UserWarning, match="seen elsewhere"):
            pool.submit(warn, "seen elsewhere").result()
    with pytest.warns(UserWarning, match="seen again"):
        warn("seen again")


def test_warnings_of_a_metric_are_given_once_for_an_interval():
    with pytest.warns(UserWarning, match="5 examples in 15 bins") as caught:
        metrics.interval(metrics.ece, examples(5), resamples=20)
    assert len(caught) == 1
