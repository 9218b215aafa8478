"""Offline use: `LLM`, its options and what it gives back."""

from foreword.llm.llm import LLM
from foreword.llm.loading import EngineOptions, LoadSummary
from foreword.llm.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    RequestOutput,
    TextDelta,
    TokenLogprob,
)

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchSequence",
    "CompletionOutput",
    "EngineOptions",
    "LoadSummary",
    "RequestOutput",
    "TextDelta",
    "TokenLogprob",
]
