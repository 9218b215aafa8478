"""Which Hypothesis profile a run has, for tests that do more in a deep one."""

import os

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
