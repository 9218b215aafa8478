"""Strings: tokenizers, chat templates, incremental detokenisation, stop strings. The only layer that sees text."""
