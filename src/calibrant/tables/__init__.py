"""Calibration of prediction tables where they live: Ibis expressions, summed by the engine."""

from calibrant.tables.audit import audit, audit_source
from calibrant.tables.bootstrap import bootstrap
from calibrant.tables.clusters import Clusters
from calibrant.tables.columns import Columns, find_columns
from calibrant.tables.measures import bootstrapped, calibration_test, measured
from calibrant.tables.scan import diagnose, query, scan, without_invalid
from calibrant.tables.search import FoundSlice, find_slices
from calibrant.tables.series import Series, Window, series_of, window_key
from calibrant.tables.slices import Slice, Slices, audit_slices
from calibrant.tables.sources import open_table
from calibrant.tables.table_audit import TableAudit
from calibrant.tables.table_sums import TableSums
from calibrant.tables.watch import Watcher
from calibrant.tables.watch_options import WatchOptions

__all__ = [
    "Clusters",
    "Columns",
    "FoundSlice",
    "Series",
    "Slice",
    "Slices",
    "TableAudit",
    "TableSums",
    "WatchOptions",
    "Watcher",
    "Window",
    "audit",
    "audit_slices",
    "audit_source",
    "bootstrap",
    "bootstrapped",
    "calibration_test",
    "diagnose",
    "find_columns",
    "find_slices",
    "measured",
    "open_table",
    "query",
    "scan",
    "series_of",
    "window_key",
    "without_invalid",
]
