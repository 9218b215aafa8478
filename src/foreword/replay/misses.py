"""Why each prompt of a log would have missed: an index without a model, asked before it is told."""

from foreword.core.config import CacheConfig, PrefixCacheKind
from foreword.core.types import TokenId
from foreword.kv_cache.explain import MissReport
from foreword.kv_cache.prefix_cache import TokenPath, pack_tokens
from foreword.replay.index_replay import IndexReplay
from foreword.replay.layout import layout_for
from foreword.replay.trace import ReplayRequest


class MissExplainer:
    """Takes prompts in order. Each is alone: it is answered, and its prompt stored, before the next one comes.

    Answers are not in a log but as part of later prompts, so what a server would have found of them counts as missed.
    """

    def __init__(self, num_blocks: int, block_size: int = 16, index: PrefixCacheKind = "radix") -> None:
        config = CacheConfig(num_blocks=num_blocks, block_size=block_size, prefix_cache=index)
        self._replay = IndexReplay(config, layout_for(None, block_size))

    def explain(self, token_ids: list[int], namespace: bytes = b"") -> MissReport:
        """What of a prompt is stored, and why no more of it; then the prompt is stored, if it fits in the pool."""
        packed = pack_tokens(TokenId(token) for token in token_ids)
        path = TokenPath(namespace, packed=bytearray(packed))
        report = self._replay.prefix_cache.explain(path, len(token_ids) - 1)
        self._replay.run(ReplayRequest(namespace, packed, len(token_ids)))
        return report
