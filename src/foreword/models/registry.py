"""From a path to a model that runs."""

from pathlib import Path

from msgspec.structs import replace

from foreword.core.config import ModelConfig
from foreword.core.errors import InvalidRequestError
from foreword.models.base import Model
from foreword.models.files import ModelFiles, open_model_files, weights_digest
from foreword.models.llama import Llama
from foreword.models.weights import PendingWeights, WeightDtype
from foreword.ops.backend import Backend

__all__ = ["ModelFiles", "PendingModel", "WeightDtype", "load_model", "open_model_files", "weights_digest"]


def load_model(
    path: str | Path | ModelFiles,
    backend: Backend,
    *,
    weight_dtype: WeightDtype = "auto",
    max_model_len: int | None = None,
) -> Model:
    """Load a model; `path` is what `open_model_files` takes, or what it gave, which is then left open.

    `max_model_len` lowers the model's `config.max_position`.

    Raises:
        ModelNotFoundError: nothing there that could be a model.
        ModelFormatError: a file is malformed, or the model is of a kind not supported; names the file and the field.
        InvalidRequestError: no such `weight_dtype`, or `max_model_len` is no number of positions the model has.
    """
    if not isinstance(path, ModelFiles):
        with open_model_files(path) as files:
            return load_model(files, backend, weight_dtype=weight_dtype, max_model_len=max_model_len)
    return PendingModel(path, backend, weight_dtype=weight_dtype, max_model_len=max_model_len).finish()


class PendingModel:
    """A model whose weights are being packed, from files that stay open until `finish`. Raises as `load_model` does."""

    def __init__(
        self,
        files: ModelFiles,
        backend: Backend,
        *,
        weight_dtype: WeightDtype = "auto",
        max_model_len: int | None = None,
    ) -> None:
        self._config = _limited(files.config, max_model_len)
        self._backend = backend
        self._notes = files.notes
        self._weights = PendingWeights(files, backend, weight_dtype)

    def finish(self) -> Model:
        """The model.

        Raises:
            ModelFormatError: a matrix holds a value that is no finite number.
        """
        return Llama(self._config, self._weights.finish(), self._backend, notes=self._notes)


def _limited(config: ModelConfig, max_model_len: int | None) -> ModelConfig:
    if max_model_len is not None:
        limit = config.max_position
        if isinstance(max_model_len, bool) or not isinstance(max_model_len, int) or not 1 <= max_model_len <= limit:
            raise InvalidRequestError("max_model_len", f"an integer from 1 to {limit}", max_model_len)
        config = replace(config, max_position=max_model_len)
    return config
