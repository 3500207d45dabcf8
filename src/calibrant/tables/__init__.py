"""Calibration of prediction tables where they live: Ibis expressions, summed by the engine."""

from calibrant.tables.audit import TableAudit, audit
from calibrant.tables.columns import Columns, find_columns
from calibrant.tables.measures import calibration_test, measured
from calibrant.tables.scan import query, scan
from calibrant.tables.series import Series, Window
from calibrant.tables.slices import Slice, Slices
from calibrant.tables.sources import open_table
from calibrant.tables.table_sums import TableSums

__all__ = [
    "Columns",
    "Series",
    "Slice",
    "Slices",
    "TableAudit",
    "TableSums",
    "Window",
    "audit",
    "calibration_test",
    "find_columns",
    "measured",
    "open_table",
    "query",
    "scan",
]
