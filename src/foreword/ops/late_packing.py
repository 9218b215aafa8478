"""Packing for a backend that has no thread for it."""

from collections.abc import Sequence

from foreword.ops.backend import Backend, NotFiniteError, PackedMatrix
from foreword.ops.quantise import is_finite
from foreword.ops.raw_tensor import MatrixPart


class LatePacking:
    """`Packing` that begins when it is asked for the result."""

    def __init__(self, backend: Backend, matrices: Sequence[Sequence[MatrixPart]]) -> None:
        self._backend = backend
        self._wanted = matrices

    def matrices(self) -> list[PackedMatrix]:
        """See `Packing.matrices`."""
        for tensor in (part.tensor for parts in self._wanted for part in parts):
            if not is_finite(tensor):
                raise NotFiniteError(tensor.name)
        return [self._backend.pack_matrix(parts) for parts in self._wanted]
