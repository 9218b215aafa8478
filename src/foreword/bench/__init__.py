"""Measurements over `LLM`: functions from a model to numbers, with no terminal.

They lie below `cli` because the command line is only one of those who ask: comparisons with other engines, tests and
demonstrations need the same rows measured the same way.
"""
