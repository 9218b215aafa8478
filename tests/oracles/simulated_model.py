"""A model whose K and V are the token's whole past, so that any wrong, stale or missing row shows at once.

The K/V row of a token is a digest of every token up to it. A simulated runner executes `SchedulerOutput` exactly as
the real one must: fresh blocks become garbage, copies run, every scheduled token writes its row, and then each
scheduled token reads the rows of all positions before it and checks them. The next token is a function of the past
alone, so `sequential_generate` says what any scheduling must produce.
"""

import hashlib
from collections.abc import Sequence as SequenceABC

from foreword.core.outputs import SampledToken, SchedulerOutput
from foreword.core.types import SequenceId, TokenId

GARBAGE = b"garbage"


def chain(namespace: bytes, token_ids: SequenceABC[int]) -> list[bytes]:
    """The K/V row of each token."""
    digest = hashlib.blake2b(namespace, digest_size=8)
    rows = []
    for token in token_ids:
        digest.update(int(token).to_bytes(4, "little"))
        rows.append(digest.digest())
    return rows


def next_token(row: bytes, index: int, vocab_size: int) -> TokenId:
    """The token drawn after `row` by the sequence at `index` of its request."""
    return TokenId(int.from_bytes(hashlib.blake2b(row, salt=bytes([index]), digest_size=8).digest()) % vocab_size)


def sequential_generate(
    namespace: bytes, prompt: SequenceABC[int], num_tokens: int, index: int, vocab_size: int
) -> list[TokenId]:
    """Generate one token after the other with no cache, no batch and no blocks."""
    tokens = [TokenId(token) for token in prompt]
    for _ in range(num_tokens):
        tokens.append(next_token(chain(namespace, tokens)[-1], index, vocab_size))
    return tokens[len(prompt) :]


class SimulatedRunner:
    """Executes steps on rows of digests instead of K and V."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 7) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.rows = [GARBAGE] * (num_blocks * block_size)
        self.namespaces: dict[SequenceId, bytes] = {}
        self.indices: dict[SequenceId, int] = {}
        self.pasts: dict[SequenceId, list[TokenId]] = {}

    def start(self, sequence_id: SequenceId, namespace: bytes, index: int, prompt: SequenceABC[TokenId]) -> None:
        """Learn of a sequence, independently of what the scheduler says about it."""
        self.namespaces[sequence_id] = namespace
        self.indices[sequence_id] = index
        self.pasts[sequence_id] = list(prompt)

    def run(self, output: SchedulerOutput) -> dict[SequenceId, SampledToken]:
        """Execute one step; raises AssertionError when a row that is read is not what it must be."""
        size = self.block_size
        for block in output.fresh_blocks:
            self.rows[block * size : (block + 1) * size] = [GARBAGE] * size
        sources = [self.rows[copy.source * size : (copy.source + 1) * size] for copy in output.copies]
        for copy, rows in zip(output.copies, sources, strict=True):
            self.rows[copy.destination * size : (copy.destination + 1) * size] = rows
        written: set[int] = set()
        for scheduled in output.sequences:
            past = self.pasts[scheduled.sequence_id]
            end = scheduled.start + len(scheduled.token_ids)
            assert scheduled.token_ids == past[scheduled.start : end]
            truth = chain(self.namespaces[scheduled.sequence_id], past[:end])
            for position in range(scheduled.start, end):
                slot = self._slot(scheduled.block_table, position)
                assert slot not in written, "two tokens are written to one slot in one step"
                written.add(slot)
                self.rows[slot] = truth[position]
        return self._attend_and_sample(output)

    def _attend_and_sample(self, output: SchedulerOutput) -> dict[SequenceId, SampledToken]:
        sampled = {}
        for scheduled in output.sequences:
            past = self.pasts[scheduled.sequence_id]
            end = scheduled.start + len(scheduled.token_ids)
            truth = chain(self.namespaces[scheduled.sequence_id], past[:end])
            for position in range(end):
                row = self.rows[self._slot(scheduled.block_table, position)]
                assert row == truth[position], f"position {position} of sequence {scheduled.sequence_id} is wrong"
            assert scheduled.samples == (end == len(past))
            if scheduled.samples:
                token = next_token(truth[-1], self.indices[scheduled.sequence_id], self.vocab_size)
                past.append(token)
                sampled[scheduled.sequence_id] = SampledToken(token)
        return sampled

    def _slot(self, block_table: SequenceABC[int], position: int) -> int:
        return block_table[position // self.block_size] * self.block_size + position % self.block_size
