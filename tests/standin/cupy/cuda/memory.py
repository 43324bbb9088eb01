"""Errors of memory."""

from .._machine import OutOfMemoryError

__all__ = ["OutOfMemoryError"]
