"""Measurements through a server."""
