"""Measure a generator service: arrivals, shapes, what was brought together, and where the time went."""
