"""The command line: the only layer that reads arguments and the environment."""
