"""Offline use: `LLM`, its options and what it gives back."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {
    "LLM": "foreword.llm.llm",
    "EngineOptions": "foreword.llm.loading",
    "LoadSummary": "foreword.llm.loading",
    "RerankSettings": "foreword.text.rerank_prompt",
}


def __getattr__(name: str) -> object:
    # Names are looked up on first use, so that the server, which loads models by `llm.loading`, waits for no `LLM`.
    if name not in __all__:
        raise AttributeError(f"module 'foreword.llm' has no attribute '{name}'")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES.get(name, "foreword.llm.outputs")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
