"""What a caller may ask of the cache: lifetimes, breakpoints, a provider's own rules, and why something missed."""
