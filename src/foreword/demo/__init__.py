"""The claims of the foundations, each beside what was just measured."""
