"""Intervals, comparisons and consistency resampling."""
