"""The step under construction: what has been given to whom so far."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from foreword.core.outputs import BlockCopy, ScheduledSequence, SchedulerOutput
from foreword.core.sequence import Request, Sequence
from foreword.core.types import BlockId, RequestId, SequenceId, TokenId
from foreword.kv_cache.manager import Allocation, KVCacheManager


class _Share(Struct, frozen=True):
    sequence: Sequence
    num_tokens: int
    allocation: Allocation
    drafts: tuple[TokenId, ...] = ()


class StepPlan:
    """Shares of one step's token budget. A share can be taken back until the plan is built."""

    def __init__(self, token_budget: int) -> None:
        self.token_budget = token_budget
        self.preempted: list[SequenceId] = []
        self._shares: dict[SequenceId, _Share] = {}

    def __len__(self) -> int:
        return len(self._shares)

    def add(self, sequence: Sequence, num_tokens: int, allocation: Allocation) -> None:
        """Let `sequence` compute its next `num_tokens` tokens."""
        self._shares[sequence.sequence_id] = _Share(sequence, num_tokens, allocation)
        self.token_budget -= num_tokens

    def decoding(self) -> list[Sequence]:
        """Sequences that compute the last token they have drawn, and no other."""
        return [
            share.sequence
            for share in self._shares.values()
            if share.num_tokens == 1
            and share.sequence.num_output_tokens
            and share.sequence.num_computed_tokens == share.sequence.num_tokens - 1
        ]

    def add_drafts(self, sequence: Sequence, drafts: list[TokenId], more: Allocation) -> None:
        """Let a sequence that decodes compute `drafts` too, into blocks given to it for them."""
        share = self._shares[sequence.sequence_id]
        given = Allocation(
            (*share.allocation.fresh_blocks, *more.fresh_blocks), (*share.allocation.copies, *more.copies)
        )
        self._shares[sequence.sequence_id] = replace(share, allocation=given, drafts=tuple(drafts))
        self.token_budget -= len(drafts)

    def copying(self) -> set[SequenceId]:
        """Sequences one of whose blocks is a copy still to be made."""
        return {sequence_id for sequence_id, share in self._shares.items() if share.allocation.copies}

    def preempt(self, sequence: Sequence) -> None:
        """Note a preemption; whatever the sequence was given in this step is void, copies included."""
        self.preempted.append(sequence.sequence_id)
        share = self._shares.pop(sequence.sequence_id, None)
        if share is not None:
            self.token_budget += share.num_tokens

    def build(self, step: int, manager: KVCacheManager, requests: Mapping[RequestId, Request]) -> SchedulerOutput:
        """The decision as plain data, in the order shares were given."""
        copies: list[BlockCopy] = []
        fresh: list[BlockId] = []
        sequences = []
        for share in self._shares.values():
            copies.extend(share.allocation.copies)
            fresh.extend(share.allocation.fresh_blocks)
            sequences.append(_scheduled(share, requests[share.sequence.request_id], manager))
        return SchedulerOutput(step, tuple(sequences), tuple(copies), tuple(fresh), tuple(self.preempted))


def wants_prompt_logprobs(sequence: Sequence) -> bool:
    """True while the sequence still owes its request the logprobs of the prompt: the first one, once."""
    return sequence.params.prompt_logprobs is not None and sequence.index == 0 and not sequence.num_output_tokens


def _scheduled(share: _Share, request: Request, manager: KVCacheManager) -> ScheduledSequence:
    sequence, num_tokens = share.sequence, share.num_tokens
    start = sequence.num_computed_tokens
    is_last = start + num_tokens == sequence.num_tokens
    samples = is_last and not request.prefill_only
    wants_row = samples or (is_last and request.probe is not None)
    return ScheduledSequence(
        sequence_id=sequence.sequence_id,
        token_ids=[*sequence.token_ids[start : start + num_tokens], *share.drafts],
        start=start,
        block_table=manager.block_table(sequence).ids,
        num_logits=num_tokens if wants_prompt_logprobs(sequence) else int(wants_row) + len(share.drafts),
        samples=samples,
        num_drafts=len(share.drafts),
    )
