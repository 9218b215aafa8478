"""foreword: an LLM inference engine for plain CPUs that never reads the same opening twice."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foreword.core.errors import (
        CapacityError,
        ConstraintError,
        ForewordError,
        InvalidRequestError,
        InvariantError,
        ModelFormatError,
        ModelNotFoundError,
    )
    from foreword.core.sampling_params import BeamSearchParams, SamplingParams
    from foreword.core.structured_output import StructuredOutput
    from foreword.llm import (
        LLM,
        BeamSearchOutput,
        CompletionOutput,
        EmbeddingOutput,
        EngineOptions,
        RequestOutput,
        RerankOutput,
        RerankSettings,
        ScoreOutput,
        TextDelta,
    )

    __version__: str

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "CapacityError",
    "CompletionOutput",
    "ConstraintError",
    "EmbeddingOutput",
    "EngineOptions",
    "ForewordError",
    "InvalidRequestError",
    "InvariantError",
    "ModelFormatError",
    "ModelNotFoundError",
    "RequestOutput",
    "RerankOutput",
    "RerankSettings",
    "SamplingParams",
    "ScoreOutput",
    "StructuredOutput",
    "TextDelta",
    "__version__",
]

_ERRORS = frozenset(name for name in __all__ if name.endswith("Error"))


def __getattr__(name: str) -> object:
    # Names are looked up on first use, so that `foreword --help` does not wait for NumPy and the tokenizer library.
    if name not in __all__:
        raise AttributeError(f"module 'foreword' has no attribute '{name}'")
    from importlib import import_module
    from importlib.metadata import version

    if name == "__version__":
        return version("foreword")
    if name in _ERRORS:
        home = "foreword.core.errors"
    elif name == "StructuredOutput":
        home = "foreword.core.structured_output"
    else:
        home = "foreword.core.sampling_params" if name.endswith("Params") else "foreword.llm"
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
