"""Owns the bytes: turns a step's decision into flat arrays, K/V writes, logits and tokens."""
