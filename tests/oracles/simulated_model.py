"""A model whose K and V are the token's whole past, so that any wrong, stale or missing row shows at once.

The K/V row of a token is a digest of every token up to it. A simulated runner executes `SchedulerOutput` exactly as
the real one must: fresh blocks become garbage, copies run, every scheduled token writes its row, and then each
scheduled token reads the rows of all positions before it and checks them. The next token is a function of the past
alone, so `sequential_generate` says what any scheduling must produce.
"""

import hashlib
from collections.abc import Sequence as SequenceABC

from foreword.core.outputs import SampledToken, ScheduledSequence, SchedulerOutput
from foreword.core.types import SequenceId, TokenId

GARBAGE = b"garbage"


def next_token(row: bytes, index: int, vocab_size: int) -> TokenId:
    """The token drawn after `row` by the sequence at `index` of its request."""
    return TokenId(int.from_bytes(hashlib.blake2b(row, salt=bytes([index]), digest_size=8).digest()) % vocab_size)


def sequential_generate(
    namespace: bytes, prompt: SequenceABC[int], num_tokens: int, index: int, vocab_size: int
) -> list[TokenId]:
    """Generate one token after the other with no cache, no batch and no blocks."""
    digest = hashlib.blake2b(namespace, digest_size=8)
    tokens: list[TokenId] = []
    for token in prompt:
        digest.update(int(token).to_bytes(4, "little"))
    for _ in range(num_tokens):
        tokens.append(next_token(digest.digest(), index, vocab_size))
        digest.update(tokens[-1].to_bytes(4, "little"))
    return tokens


class SimulatedRunner:
    """Executes steps on rows of digests instead of K and V."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 7) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.blocks = [[GARBAGE] * block_size for _ in range(num_blocks)]
        self.silent: set[SequenceId] = set()  # draw nothing
        self.undecided: set[SequenceId] = set()  # have drawn, and are told from outside what their next token is
        self._chosen: set[SequenceId] = set()
        self._pasts: dict[SequenceId, _Past] = {}

    def start(self, sequence_id: SequenceId, namespace: bytes, index: int, prompt: SequenceABC[TokenId]) -> None:
        """Learn of a sequence, independently of what the scheduler says about it."""
        self._pasts[sequence_id] = _Past(namespace, index, list(prompt))

    def let_choose(self, sequence_id: SequenceId) -> None:
        """A sequence does not take the tokens it draws, but those that `go_on` gives it."""
        self._chosen.add(sequence_id)

    def go_on(self, parent: SequenceId, tokens: SequenceABC[TokenId], children: SequenceABC[SequenceId]) -> None:
        """The parent goes on with the first token, each child, a copy of it, with the next."""
        past = self._pasts[parent]
        self.undecided.discard(parent)
        for child, token in zip(children, tokens[1:], strict=True):
            self._pasts[child] = past.copy_with(token)
            self._chosen.add(child)
        past.tokens.append(tokens[0])

    def continuation(self, sequence_id: SequenceId, count: int) -> list[TokenId]:
        """The next tokens of a sequence, told ahead."""
        past = self._pasts[sequence_id].copy_with()
        for _ in range(count):
            past.tokens.append(next_token(past.rows()[-1], past.index, self.vocab_size))
        return past.tokens[len(past.tokens) - count :]

    def other(self, token: TokenId) -> TokenId:
        """Another token."""
        return TokenId((token + 1) % self.vocab_size)

    def take(self, sequence_id: SequenceId, tokens: SequenceABC[TokenId]) -> None:
        """A sequence was given these tokens."""
        self._pasts[sequence_id].tokens += tokens

    def run(self, output: SchedulerOutput) -> dict[SequenceId, tuple[SampledToken, ...]]:
        """Execute one step; raises AssertionError when a row that is read is not what it must be."""
        for block in output.fresh_blocks:
            self.blocks[block] = [GARBAGE] * self.block_size
        sources = [list(self.blocks[copy.source]) for copy in output.copies]
        for copy, rows in zip(output.copies, sources, strict=True):
            self.blocks[copy.destination] = rows
        written: set[tuple[int, int]] = set()
        for scheduled in output.sequences:
            past = self._drafted(scheduled)
            end = scheduled.start + len(scheduled.token_ids)
            assert scheduled.token_ids == past.tokens[scheduled.start : end]
            for position in range(scheduled.start, end):
                slot = (scheduled.block_table[position // self.block_size], position % self.block_size)
                assert slot not in written, "two tokens are written to one slot in one step"
                written.add(slot)
                self.blocks[slot[0]][slot[1]] = past.rows()[position]
        return self._attend_and_sample(output)

    def _drafted(self, scheduled: ScheduledSequence) -> "_Past":
        """The past of a sequence, its drafts taken for true."""
        past = self._pasts[scheduled.sequence_id]
        if not scheduled.num_drafts:
            return past
        assert scheduled.samples
        assert scheduled.start + len(scheduled.token_ids) - scheduled.num_drafts == len(past.tokens)
        return past.copy_with(*scheduled.token_ids[-scheduled.num_drafts :])

    def _attend_and_sample(self, output: SchedulerOutput) -> dict[SequenceId, tuple[SampledToken, ...]]:
        sampled = {}
        for scheduled in output.sequences:
            past = self._drafted(scheduled)
            end = scheduled.start + len(scheduled.token_ids)
            for begin in range(0, end, self.block_size):
                wanted = past.rows()[begin : min(end, begin + self.block_size)]
                rows = self.blocks[scheduled.block_table[begin // self.block_size]]
                assert rows[: len(wanted)] == wanted, f"sequence {scheduled.sequence_id} reads wrong rows at {begin}"
            assert scheduled.samples == (end == len(past.tokens) and scheduled.sequence_id not in self.silent)
            if scheduled.samples:
                if scheduled.sequence_id in self._chosen:
                    self.undecided.add(scheduled.sequence_id)
                rows = past.rows()[end - 1 - scheduled.num_drafts :]
                draws = [next_token(row, past.index, self.vocab_size) for row in rows]
                sampled[scheduled.sequence_id] = tuple(map(SampledToken, draws))
        return sampled


class _Past:
    """A sequence's tokens, and the rows they must have, digested once each."""

    def __init__(self, namespace: bytes, index: int, tokens: list[TokenId]) -> None:
        self.index = index
        self.tokens = tokens
        self._digest = hashlib.blake2b(namespace, digest_size=8)
        self._namespace = namespace
        self._rows: list[bytes] = []

    def copy_with(self, *tokens: TokenId) -> "_Past":
        return _Past(self._namespace, self.index, [*self.tokens, *tokens])

    def rows(self) -> list[bytes]:
        for token in self.tokens[len(self._rows) :]:
            self._digest.update(int(token).to_bytes(4, "little"))
            self._rows.append(self._digest.digest())
        return self._rows
