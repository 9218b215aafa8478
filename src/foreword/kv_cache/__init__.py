"""Which block holds which token's K and V: ids and counts, never bytes. Standard library only."""
