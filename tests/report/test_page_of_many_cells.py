"""The page of a large study stays small and is soon written."""

import time

import pytest
from saved_studies import many_cells

from calibrant.report.study_page import study_page


@pytest.mark.slow
def test_the_page_of_sixty_cells_is_small_and_soon_there(tmp_path, as_a_user_runs_it):
    folder = many_cells(tmp_path, methods=20, seeds=(0, 1, 2))
    start = time.process_time()
    made = study_page(folder)
    # About three seconds on one core of 2024: ten times that on any machine of today.
    assert time.process_time() - start < 30
    assert made.stat().st_size < 3_000_000
