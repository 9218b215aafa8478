"""foreword: an LLM inference engine for plain CPUs that never reads the same opening twice."""

from importlib.metadata import version

from foreword.core.errors import (
    CapacityError,
    ForewordError,
    InvalidRequestError,
    InvariantError,
    ModelFormatError,
    ModelNotFoundError,
)
from foreword.core.sampling_params import SamplingParams
from foreword.llm import LLM, CompletionOutput, EngineOptions, RequestOutput, TextDelta

__version__ = version("foreword")

__all__ = [
    "LLM",
    "CapacityError",
    "CompletionOutput",
    "EngineOptions",
    "ForewordError",
    "InvalidRequestError",
    "InvariantError",
    "ModelFormatError",
    "ModelNotFoundError",
    "RequestOutput",
    "SamplingParams",
    "TextDelta",
    "__version__",
]
