"""The prefix index and its retention policies."""
