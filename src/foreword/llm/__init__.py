"""Offline use: `LLM`, its options and what it gives back."""

from foreword.llm.llm import LLM
from foreword.llm.loading import EngineOptions, LoadSummary
from foreword.llm.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    EmbeddingOutput,
    RequestOutput,
    RerankOutput,
    RerankResult,
    ScoreOutput,
    TextDelta,
    TokenLogprob,
)
from foreword.text.rerank_prompt import RerankSettings

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchSequence",
    "CompletionOutput",
    "EmbeddingOutput",
    "EngineOptions",
    "LoadSummary",
    "RequestOutput",
    "RerankOutput",
    "RerankResult",
    "RerankSettings",
    "ScoreOutput",
    "TextDelta",
    "TokenLogprob",
]
