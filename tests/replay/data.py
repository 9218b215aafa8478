"""Where the public traces lie, found before a test's own environment takes the place of the real one."""

import os
from pathlib import Path

import pytest

from tests.profile import DEEP

DATA = Path(os.environ.get("FOREWORD_DATA") or Path(__file__).parents[3] / "shared" / "data")
CONVERSATION = DATA / "mooncake" / "conversation_trace.jsonl"
SYNTHETIC = DATA / "mooncake" / "synthetic_trace.jsonl"
AGENTIC = DATA / "kv-cache-tester" / "agentic_traces_compact.jsonl.gz"
AIRLINE = DATA / "tau-bench" / "gpt4o_airline_trajectories.jsonl.gz"

needs_data = pytest.mark.skipif(
    not all(path.is_file() for path in (CONVERSATION, SYNTHETIC, AGENTIC, AIRLINE)),
    reason=f"{DATA} has not all public traces; FOREWORD_DATA names their folder",
)
in_deep_runs = pytest.mark.skipif(not DEEP, reason="takes minutes: only with HYPOTHESIS_PROFILE=deep")
