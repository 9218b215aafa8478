"""Who computes which tokens in the next step. Integers only: no clock, no randomness, no bytes."""
