"""The llama family: llama, mistral, qwen2, qwen3. They differ in biases, in norms of q and k, and in rotary scaling.

Letters: T tokens of the step, H query heads, J KV heads, D head dimension, E hidden size, I intermediate size, V words.
"""

import numpy as np

from foreword.core.config import ModelConfig
from foreword.models.rope import RotaryTable
from foreword.models.workspace import Workspace
from foreword.ops.backend import (
    F32,
    I32,
    AttentionBatch,
    Backend,
    DecoderSizes,
    DecoderWeights,
    HeadOutputs,
    KVArray,
    LayerCaches,
    LayerWeights,
    greedy_batch,
)

# From about here on the kernels take so long that calls to them no longer show; an interrupt then gets in between two.
_ONE_CALL_TOKENS = 256


class LlamaWeights(DecoderWeights, frozen=True, eq=False):
    """All weights of a model, and what tells its positions."""

    rotary: RotaryTable

    @property
    def num_bytes(self) -> int:
        """Memory of all of it, a tied embedding counted once."""
        held = {id(part): part for part in (self.embedding, self.head)}
        for layer in self.layers:
            held |= {id(part): part for part in (layer.qkv, layer.output, layer.gate_up, layer.down)}
        vectors = [self.final_norm]
        for layer in self.layers:
            fields = (getattr(layer, name) for name in LayerWeights.__struct_fields__)
            vectors += [value for value in fields if isinstance(value, np.ndarray)]
        matrix_bytes = sum(matrix.num_bytes for matrix in held.values())
        return matrix_bytes + sum(vector.nbytes for vector in vectors) + self.rotary.num_bytes


class Llama:
    """A model of the llama family on one backend. Implements `models.base.Model`."""

    def __init__(
        self, config: ModelConfig, weights: LlamaWeights, backend: Backend, *, notes: tuple[str, ...] = ()
    ) -> None:
        self.config = config
        self.weights = weights
        self.notes = notes
        self._backend = backend
        self._scale = config.head_dim**-0.5
        sizes = DecoderSizes(config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps, self._scale)
        self._decoder = backend.decoder(weights, sizes)

    @property
    def num_bytes(self) -> int:
        """See `Model.num_bytes`."""
        return self.weights.num_bytes

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
        """See `Model.forward`."""
        cos_sin = self.weights.rotary.first(int(batch.positions.max()) + 1)
        if self._decoder is not None and len(token_ids) <= _ONE_CALL_TOKENS:
            return self._decoder.forward(token_ids, batch, cos_sin, caches, workspace, rows, head)
        hidden = self.forward_by_kernels(token_ids, batch, cos_sin, caches, workspace, rows)
        if head is not None:
            self._fill(head, hidden)
        return hidden

    def forward_by_kernels(
        self,
        token_ids: I32,
        batch: AttentionBatch,
        cos_sin: F32,
        caches: LayerCaches,
        workspace: Workspace,
        rows: I32 | None,
    ) -> F32:
        """The layers, kernel by kernel: what a decoder of the backend must equal, bit for bit."""
        hidden = workspace.hidden[: len(token_ids)]  # [T, E], the residual stream
        self._backend.embed(self.weights.embedding, token_ids, hidden)
        last = len(self.weights.layers) - 1
        for index, layer in enumerate(self.weights.layers):
            caches_of_layer = caches.k_cache(index), caches.v_cache(index)
            attended = self._attend(layer, hidden, batch, cos_sin, caches_of_layer, workspace)
            if index == last and rows is not None:
                hidden, attended = _pick(rows, hidden, attended, workspace)
            self._backend.linear(attended, layer.output, hidden, bias=layer.output_bias, accumulate=True)
            self._feed_forward(layer, hidden, workspace.gate_up[: len(hidden)])
        return hidden

    def normalised(self, hidden: F32) -> F32:
        """See `Model.normalised`."""
        out = np.empty_like(hidden)
        self._backend.rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps, out)
        return out

    def logits(self, hidden: F32, out: F32 | None = None) -> F32:
        """See `Model.logits`."""
        if out is None:
            out = np.empty((len(hidden), self.config.vocab_size), np.float32)
        weights = self.weights
        self._backend.norm_linear(hidden, weights.final_norm, self.config.rms_norm_eps, weights.head, out)
        return out

    def _fill(self, head: HeadOutputs, hidden: F32) -> None:
        logits = self.logits(hidden, head.logits)
        if head.best is not None:
            words = np.ascontiguousarray(logits[:, : head.num_words])
            head.best[:] = self._backend.sample(words, greedy_batch(len(words)))

    def _attend(
        self,
        layer: LayerWeights,
        hidden: F32,
        batch: AttentionBatch,
        cos_sin: F32,
        caches: tuple[KVArray, KVArray],
        workspace: Workspace,
    ) -> F32:
        """Project, rotate and store K and V of the whole step, then attend: `[T, H * D]`."""
        backend, eps = self._backend, self.config.rms_norm_eps
        qkv = workspace.qkv[: len(hidden)]  # [T, (H + 2J) * D]
        attended = workspace.attention[: len(hidden)]  # [T, H * D]
        backend.norm_linear(hidden, layer.attention_norm, eps, layer.qkv, qkv, bias=layer.qkv_bias)
        backend.rope_store_kv(qkv, batch, cos_sin, *caches, q_norm=layer.q_norm, k_norm=layer.k_norm, eps=eps)
        backend.paged_attention(qkv, batch, *caches, self._scale, attended)
        return attended

    def _feed_forward(self, layer: LayerWeights, hidden: F32, gate_up: F32) -> None:
        """Add `down(silu(gate) * up)` to the residual stream; `gate_up [T, 2I]` is scratch."""
        backend, eps = self._backend, self.config.rms_norm_eps
        backend.norm_linear(hidden, layer.mlp_norm, eps, layer.gate_up, gate_up, bias=layer.gate_up_bias)
        backend.swiglu_linear(gate_up, layer.down, hidden, bias=layer.down_bias, accumulate=True)


def _pick(rows: I32, hidden: F32, attended: F32, workspace: Workspace) -> tuple[F32, F32]:
    """Rows that need logits, copied together; K and V of the others are written, nothing else of them is wanted."""
    picked_hidden = workspace.last_hidden[: len(rows)]
    picked_attended = workspace.last_attention[: len(rows)]
    np.take(hidden, rows, axis=0, out=picked_hidden)
    np.take(attended, rows, axis=0, out=picked_attended)
    return picked_hidden, picked_attended
