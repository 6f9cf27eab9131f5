"""What this package tests itself with, shipped so that you can test your own producers and consumers the same way."""

from __future__ import annotations

from cosmodrome.testing.clock import FakeClock

__all__ = ["FakeClock"]
