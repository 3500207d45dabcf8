"""Intervals, comparisons and calibrated references, all by resampling."""
