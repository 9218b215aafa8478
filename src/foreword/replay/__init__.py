"""Replaying recorded traffic through the prefix cache, without a model: what would hit, under which policy and size.

It lies beside `bench`: measurements as functions, with no terminal in them.
"""
