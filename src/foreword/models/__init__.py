"""Models: sizes, weights and a forward pass. Files are read here and trusted nowhere."""
