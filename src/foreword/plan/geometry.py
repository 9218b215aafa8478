"""What a model stores of a token, whatever its kind of attention."""

from collections import Counter

from msgspec import Struct, field

from foreword.core.errors import InvalidRequestError
from foreword.core.types import ceil_div


class LayerKV(Struct, frozen=True, kw_only=True):
    """One layer's share of the cache: elements of K and of V a token, and how many tokens are kept.

    A layer of latent attention (MLA) stores one compressed vector a token, counted as `k`, and no `v`.
    """

    k: int
    v: int
    heads: int  # vectors that `k` is made of, and `v` too where there is one
    window: int | None = None  # None: every token stays

    def blocks(self, tokens: int, block_size: int) -> int:
        """Blocks that one sequence of `tokens` stored tokens takes.

        A window slides within blocks, so it may begin in the midst of one: it takes a block more than its length.
        """
        whole = ceil_div(tokens, block_size)
        return whole if self.window is None else min(whole, ceil_div(self.window - 1, block_size) + 1)

    def kept(self, tokens: int) -> int:
        """Tokens of which this layer still holds K and V after `tokens`."""
        return tokens if self.window is None else min(tokens, self.window)


class StoredAs(Struct, frozen=True):
    """Bytes of one element, and of what a head's vector has beside its elements: the scale of codes."""

    element: int
    scale: int = 0

    def token(self, layer: LayerKV) -> int:
        """Bytes of one token in one layer."""
        vectors = layer.heads * (2 if layer.v else 1)
        return (layer.k + layer.v) * self.element + vectors * self.scale

    def vectors(self, count: int, width: int) -> int:
        """Bytes of so many vectors."""
        return count * (width * self.element + self.scale)


class Geometry(Struct, frozen=True, kw_only=True):
    """Everything of a model that its memory depends on.

    Raises:
        InvalidRequestError: no layer stores anything, or a size is out of range.
    """

    name: str
    layers: tuple[LayerKV, ...]
    num_heads: int
    num_kv_heads: int  # the most of any layer
    head_dim: int  # of a query
    value_dim: int  # of a value head, which latent attention makes smaller
    is_latent: bool = False
    max_position: int | None = None
    weight_bytes: int | None = None  # as the files hold them
    num_parameters: int | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_kv_heads", "head_dim", "value_dim"):
            value = getattr(self, name)
            if not 0 < value < 2**31:
                raise InvalidRequestError(name, "an integer from 1 to 2147483647", value)
        if not 0 < len(self.layers) <= 10_000:
            raise InvalidRequestError("layers", "1 to 10000 layers that keep K and V", len(self.layers))

    @property
    def attention(self) -> str:
        """The usual word for how heads share K and V, and `windowed` or `mixed` where tokens leave."""
        if self.is_latent:
            return "MLA"
        kinds = {1: "MQA", self.num_heads: "MHA"}
        shared = kinds.get(self.num_kv_heads, "GQA") if self.num_heads > 1 else "MHA"
        windowed = sum(layer.window is not None for layer in self.layers)
        return shared if not windowed else f"{shared}, {'windowed' if windowed == len(self.layers) else 'mixed'}"

    def token_bytes(self, stored: StoredAs) -> int:
        """Bytes of K and V that one token adds over all layers, while every window still has room."""
        return sum(stored.token(layer) for layer in self.layers)

    def unshared_bytes(self, stored: StoredAs) -> int:
        """The same, had every query head its own K and V: multi-head attention without latent compression."""
        count = len(self.layers) * self.num_heads
        return stored.vectors(count, self.head_dim) + stored.vectors(count, self.value_dim)

    def query_bytes(self, stored: StoredAs) -> int:
        """What storing Q too would add a token. Nobody does: a later token never asks for it."""
        return stored.vectors(len(self.layers) * self.num_heads, self.head_dim)

    def kept_bytes(self, stored: StoredAs, tokens: int) -> int:
        """Bytes that are still needed after `tokens`, to the token."""
        return sum(stored.token(layer) * layer.kept(tokens) for layer in self.layers)

    def block_bytes(self, stored: StoredAs, tokens: int, block_size: int, shared: int = 0) -> int:
        """Bytes that one sequence takes in blocks, beside `shared` leading blocks which others hold already.

        Layers with a window share none: which of their blocks are still held depends on who came last.
        """
        return sum(
            stored.token(layer)
            * block_size
            * (layer.blocks(tokens, block_size) - (shared if layer.window is None else 0))
            for layer in self.layers
        )

    def shared_bytes(self, stored: StoredAs, block_size: int, shared: int) -> int:
        """Bytes of `shared` leading blocks, held once for everybody."""
        return sum(stored.token(layer) * block_size * shared for layer in self.layers if layer.window is None)

    def describe(self) -> str:
        """`30 layers, 9 heads, 3 of K and V, 64 wide: GQA`."""
        windows = Counter(layer.window for layer in self.layers if layer.window is not None)
        kept = "".join(f"; {count} layers keep {window:,} tokens" for window, count in windows.items())
        if self.is_latent:
            heads = f"{self.num_heads} heads over one latent vector of {self.layers[0].k}"
        else:
            heads = f"{self.num_heads} heads, {self.num_kv_heads} of K and V, {self.head_dim} wide"
        return f"{len(self.layers)} layers, {heads}: {self.attention}{kept}"


def uniform(*, name: str, layers: int, heads: int, kv_heads: int, head_dim: int) -> Geometry:
    """The geometry of equal layers, from four numbers.

    Raises:
        InvalidRequestError: a number is out of range, or `kv_heads` does not divide `heads`.
    """
    for field_name, value, most in (("layers", layers, 10_000), ("heads", heads, 2**20), ("head_dim", head_dim, 2**20)):
        if not 0 < value <= most:
            raise InvalidRequestError(field_name, f"an integer from 1 to {most}", value)
    if not 0 < kv_heads <= heads or heads % kv_heads:
        raise InvalidRequestError("kv_heads", f"a divisor of heads ({heads})", kv_heads)
    return Geometry(
        name=name,
        layers=(LayerKV(k=kv_heads * head_dim, v=kv_heads * head_dim, heads=kv_heads),) * layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=head_dim,
    )
