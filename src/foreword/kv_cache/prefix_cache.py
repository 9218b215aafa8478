"""What any index of prefixes must do, and the index that finds nothing.

An index maps token prefixes to blocks that hold their K and V. It owns no block: it publishes blocks in the pool,
which keeps their content until the index withdraws them. Laws every implementation keeps:

- a match is decided by comparing tokens, never by a hash alone;
- a published block is immutable; a block somebody holds is never withdrawn by `evict`;
- descendants go before ancestors, so that every stored prefix stays reachable from its first token;
- one physical block for each stored whole-block prefix: a second copy is folded into the first.
"""

from array import array
from collections.abc import Iterable, Mapping
from typing import NewType, Protocol

from msgspec import Struct, field

from foreword.core.types import BlockId, TokenId
from foreword.kv_cache.explain import MissCause, MissReport

BlockHash = NewType("BlockHash", bytes)

TOKEN_BYTES = 4


def pack_tokens(token_ids: Iterable[int]) -> bytes:
    """Token ids as native int32: comparing two runs is then one memory comparison.

    Raises:
        OverflowError: an id does not fit in 32 bits.
    """
    return array("i", token_ids).tobytes()


class TokenPath(Struct, eq=False):
    """A sequence's known tokens, as an index reads them. Only grows."""

    namespace: bytes
    tenant: bytes = b""  # whose share of the index this path's blocks count towards
    packed: bytearray = field(default_factory=bytearray)  # int32 a token
    hashes: list[BlockHash] = field(default_factory=list)  # chained, one a whole block, made on demand
    root: bytes = b""  # the engine's identity, from which the chain starts
    base: int = 0  # leading tokens that are published: the namespace's own prefixes begin behind them
    base_blocks: "array[int]" = field(default_factory=lambda: array("i"))  # theirs

    @property
    def num_tokens(self) -> int:
        """Tokens packed so far."""
        return len(self.packed) // TOKEN_BYTES

    def extend(self, token_ids: list[TokenId]) -> None:
        """Take the tokens of `token_ids` that are not packed yet. Cost: O(new tokens)."""
        if len(token_ids) > self.num_tokens:
            self.packed += pack_tokens(token_ids[self.num_tokens :])


class PrefixMatch(Struct, frozen=True):
    """The longest usable stored prefix of a path.

        tokens   0 ............. whole blocks ............ | rows of `partial` | to be computed
        blocks   blocks[0] ... blocks[-1]                  | copied before use | fresh

    `partial` is the block that holds the last `num_tokens % block_size` tokens, when that is not zero. It is only
    ever read from: the reader copies it, and rows behind the match are never visible.
    """

    num_tokens: int = 0
    blocks: "array[int]" = field(default_factory=lambda: array("i"))
    partial: BlockId | None = None

    def whole_blocks(self, block_size: int) -> "PrefixMatch":
        """The match without its partial block, for when there is no room for the copy."""
        return PrefixMatch(len(self.blocks) * block_size, self.blocks)


class Insertion(Struct, frozen=True):
    """What an insertion found and did.

    `num_known` leading tokens were findable before, `num_stored` are now. `replaced` lists `(index, block)`: at block
    `index` of the path the index already had another physical block with the same content, which the holder should
    use instead of its own.
    """

    num_known: int
    num_stored: int
    replaced: tuple[tuple[int, BlockId], ...] = ()


class PrefixCache(Protocol):
    """An index of prefixes over one pool. Time is logical, passed in, and never decreases."""

    def match(self, path: TokenPath, limit: int) -> PrefixMatch:
        """Longest stored prefix of the first `limit` tokens of `path`. Changes nothing."""
        ...

    def touch(self, path: TokenPath, num_tokens: int, now: int) -> None:
        """A match of `num_tokens` tokens is used, and its blocks are held: keep what it covers longer."""
        ...

    def insert(self, path: TokenPath, num_tokens: int, blocks: "array[int]", now: int) -> Insertion:
        """Make the first `num_tokens` tokens of `path` findable; `blocks` hold their K and V.

        A last block that is not full may be given only by its sole holder, who will not write to it again.
        """
        ...

    def released(self, path: TokenPath, num_tokens: int) -> None:
        """A holder of the first `num_tokens` tokens of `path` has let go of its blocks."""
        ...

    def advance(self, now: int) -> None:
        """It is `now`: lifetimes that have passed end."""
        ...

    def retain(self, path: TokenPath, num_tokens: int, priority: int, lifetime: int) -> int:
        """Keep a stored prefix before those of lower priority, for `lifetime` from now and from each use of it.

        Soft: within a budget of blocks, and never against a holder. Returns how many leading tokens are kept.
        """
        ...

    def share(self, quotas: Mapping[bytes, int]) -> None:
        """Let a tenant's findable blocks take so many at most, from the next one stored."""
        ...

    def evict(self, count: int) -> int:
        """Withdraw up to `count` cached blocks, least worth keeping first; returns how many were withdrawn."""
        ...

    def explain(self, path: TokenPath, limit: int) -> MissReport:
        """Where and why the first `limit` tokens of `path` part from what is stored. Changes nothing."""
        ...

    def reset(self) -> None:
        """Forget everything; held blocks become plain blocks of their holders."""
        ...

    def check_invariants(self) -> None:
        """Raise InvariantError unless the structure is sound. Cost: O(everything)."""
        ...


class NoPrefixCache:
    """Finds nothing, keeps nothing: prefix caching switched off, as an implementation and not as a flag."""

    def match(self, path: TokenPath, limit: int) -> PrefixMatch:
        """Nothing is ever found."""
        return PrefixMatch()

    def touch(self, path: TokenPath, num_tokens: int, now: int) -> None:
        """Nothing to keep longer."""

    def insert(self, path: TokenPath, num_tokens: int, blocks: "array[int]", now: int) -> Insertion:
        """Nothing becomes findable, so everything counts as known already."""
        return Insertion(num_tokens, num_tokens)

    def released(self, path: TokenPath, num_tokens: int) -> None:
        """Nothing to do."""

    def advance(self, now: int) -> None:
        """Nothing has a lifetime."""

    def retain(self, path: TokenPath, num_tokens: int, priority: int, lifetime: int) -> int:
        """Nothing is kept."""
        return 0

    def share(self, quotas: Mapping[bytes, int]) -> None:
        """Nothing to share."""

    def evict(self, count: int) -> int:
        """Nothing is cached, so nothing can go."""
        return 0

    def explain(self, path: TokenPath, limit: int) -> MissReport:
        """The settings ask no cache."""
        return MissReport(0, MissCause.BYPASSED)

    def reset(self) -> None:
        """Nothing to forget."""

    def check_invariants(self) -> None:
        """Always sound."""
