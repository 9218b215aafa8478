"""From a path to a model that runs."""

from dataclasses import replace
from pathlib import Path

from foreword.core.errors import InvalidRequestError
from foreword.models.base import Model
from foreword.models.files import ModelFiles, open_model_files, weights_digest
from foreword.models.llama import Llama
from foreword.models.weights import WeightDtype, read_weights
from foreword.ops.backend import Backend

_MAX_ROTARY_BYTES = 1 << 30

__all__ = ["ModelFiles", "WeightDtype", "load_model", "open_model_files", "weights_digest"]


def load_model(
    path: str | Path | ModelFiles,
    backend: Backend,
    *,
    weight_dtype: WeightDtype = "auto",
    max_model_len: int | None = None,
) -> Model:
    """Load a model; `path` is what `open_model_files` takes, or what it gave, which is then left open.

    The model's `config.max_position` is what it can be run at: what its files say, at most `max_model_len`, and no more
    than a rotary table of 1 GiB holds.

    Raises:
        ModelNotFoundError: nothing there that could be a model.
        ModelFormatError: a file is malformed, or the model is of a kind not supported; names the file and the field.
        InvalidRequestError: no such `weight_dtype`, or `max_model_len` is beyond the model's positions.
    """
    if not isinstance(path, ModelFiles):
        with open_model_files(path) as files:
            return load_model(files, backend, weight_dtype=weight_dtype, max_model_len=max_model_len)
    config, notes = path.config, path.notes
    longest = min(config.max_position, max(1, _MAX_ROTARY_BYTES // (4 * config.head_dim)))
    if longest < config.max_position:
        notes = (*notes, f"context limited to {longest} tokens, as many as a rotary table of 1 GiB holds")
    num_positions = longest if max_model_len is None else max_model_len
    if isinstance(num_positions, bool) or not isinstance(num_positions, int) or not 1 <= num_positions <= longest:
        raise InvalidRequestError("max_model_len", f"an integer from 1 to {longest}", num_positions)
    weights = read_weights(path, backend, weight_dtype, num_positions)
    return Llama(replace(config, max_position=num_positions), weights, backend, notes=notes)
