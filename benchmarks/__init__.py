"""Measurements: each file states its question, its bound and how to run it."""
