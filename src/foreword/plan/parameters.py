"""How many parameters a model of a known family has, so that its weights can be planned before they are downloaded."""

from typing import Protocol

GATED = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "phi3")
"""Families whose every matrix is known here: attention, a gated feed-forward (or several, with a router), two norms."""
_TIED_BY_DEFAULT = ("gemma",)


class Lookup(Protocol):
    """A field under the first of these names that is there."""

    def __call__(self, names: tuple[str, ...], *, least: int = 1) -> int | None:
        """None where no name is."""


def count_parameters(
    model_type: str, field: Lookup, sizes: tuple[int, int, int, int], *, tied: bool | None
) -> int | None:
    """Parameters of the model; None where the family's matrices are not known here, or a size is missing.

    `sizes` are layers, heads, heads of K and V, and their width. Routers of experts count, buffers do not.
    """
    layers, heads, kv_heads, head_dim = sizes
    hidden, inner = field(("hidden_size",)), field(("intermediate_size",))
    vocab = field(("vocab_size",))
    if model_type not in GATED or hidden is None or inner is None or vocab is None:
        return None
    experts = field(("num_local_experts", "num_experts")) or 1
    if model_type == "qwen3_moe":
        inner = field(("moe_intermediate_size",)) or inner
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    if model_type == "qwen2":
        attention += (heads + 2 * kv_heads) * head_dim  # biases of q, k, v
    if model_type.startswith("qwen3"):
        attention += 2 * head_dim  # norms of q and k
    feed_forward = 3 * hidden * inner * experts + (hidden * experts if experts > 1 else 0)
    is_tied = model_type in _TIED_BY_DEFAULT if tied is None else tied
    return layers * (attention + feed_forward + 2 * hidden) + vocab * hidden * (1 if is_tied else 2) + hidden
