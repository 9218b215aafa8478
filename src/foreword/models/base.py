"""What the runner needs of a model, and what a model needs of the runner's memory."""

from typing import Protocol

from foreword.core.config import ModelConfig
from foreword.models.workspace import Workspace
from foreword.ops.backend import F32, I32, AttentionBatch, HeadOutputs, LayerCaches


class Model(Protocol):
    """Sizes, weights and a forward pass."""

    @property
    def config(self) -> ModelConfig:
        """Sizes and constants; it can be run at positions below `max_position`."""

    @property
    def num_bytes(self) -> int:
        """Memory of the weights and the rotary table."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of how the files were read, a line each; usually nothing."""

    def forward(
        self,
        token_ids: I32,
        batch: AttentionBatch,
        caches: LayerCaches,
        workspace: Workspace,
        *,
        rows: I32 | None = None,
        head: HeadOutputs | None = None,
    ) -> F32:
        """Run the scheduled tokens through all layers, writing their K and V, and fill `head`, where it is given.

        Shapes   `token_ids [T]`, `rows [R]` ascending positions in the step. Returns the hidden states before the final
                 norm, `[T, hidden]` or, where `rows` is given, `[R, hidden]` of those rows alone, which saves most of
                 the last layer. A view of the workspace, valid until its next use.
        """

    def normalised(self, hidden: F32) -> F32:
        """Hidden states `[R, hidden]` after the final norm, of which logits are made."""

    def logits(self, hidden: F32, out: F32 | None = None) -> F32:
        """Logits `[R, vocab]` of hidden states `[R, hidden]`; written to `out` where given."""
