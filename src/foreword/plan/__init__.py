"""Memory planning: how much K and V, how many users, what fits."""
