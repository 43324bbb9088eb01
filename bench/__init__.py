"""Measure collectives, native and hand-written: sweep, rows, pictures and reports."""

__version__ = "0.1.0"
