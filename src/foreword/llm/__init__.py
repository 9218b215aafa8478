"""Offline use: `LLM`, its options and what it gives back."""

from foreword.llm.llm import LLM
from foreword.llm.loading import EngineOptions, LoadSummary
from foreword.llm.outputs import CompletionOutput, RequestOutput, TextDelta, TokenLogprob

__all__ = ["LLM", "CompletionOutput", "EngineOptions", "LoadSummary", "RequestOutput", "TextDelta", "TokenLogprob"]
