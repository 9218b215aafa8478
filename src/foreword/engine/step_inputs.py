"""What the runner is told beside the scheduler's decision: how to draw, and which rows are asked for more."""

from collections.abc import Container, Mapping

from foreword.core.outputs import SamplingRow, SchedulerOutput
from foreword.core.probe import Probe
from foreword.core.sequence import Request, Sequence
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.engine.constraints import Constraints
from foreword.runner.model_runner import PromptRows


def sampling_rows(
    output: SchedulerOutput,
    sequences: Mapping[SequenceId, Sequence],
    requests: Mapping[RequestId, Request],
    constraints: Constraints,
) -> dict[SequenceId, list[SamplingRow]]:
    """Of each sequence that draws: a row for its next token, and one behind each draft."""
    rows = {}
    for s in output.sequences:
        if s.samples:
            sequence = sequences[s.sequence_id]
            allowed = constraints.allowed_tokens(sequence) if constraints else None
            request, drafts = requests[sequence.request_id], tuple(s.token_ids[len(s.token_ids) - s.num_drafts :])
            rows[s.sequence_id] = [
                sampling_row(sequence, request, allowed, drafts[:count]) for count in range(len(drafts) + 1)
            ]
    return rows


def sampling_row(
    sequence: Sequence, request: Request, allowed_tokens: bytes | None, drafts: tuple[TokenId, ...] = ()
) -> SamplingRow:
    """The row of a sequence's next token, once `drafts` have come true.

    `allowed_tokens` is the mask of its constraint, if it has one; a constrained sequence has no drafts.
    """
    params = sequence.params
    forbidden: tuple[TokenId, ...] = ()
    if sequence.num_output_tokens + len(drafts) < params.min_tokens:
        eos = frozenset() if params.ignore_eos else request.eos_token_ids
        forbidden = (*eos, *(TokenId(t) for t in params.stop_token_ids))
    if allowed_tokens is not None and params.ignore_eos:  # beyond an end token no constraint knows what may follow
        forbidden = (*forbidden, *request.eos_token_ids)
    return SamplingRow(
        params,
        sequence.seed,
        sequence.index,
        sequence.token_ids,
        sequence.prompt_len,
        forbidden,
        allowed_tokens,
        drafts,
    )


def prompt_rows(
    output: SchedulerOutput, sequences: Mapping[SequenceId, Sequence], wanted: Container[SequenceId]
) -> dict[SequenceId, PromptRows]:
    """Logprobs asked for of what is computed of prompts; `wanted` are the sequences that still owe them."""
    rows = {}
    for s in output.sequences:
        sequence = sequences[s.sequence_id]
        k = sequence.params.prompt_logprobs
        if k is not None and s.sequence_id in wanted and not sequence.num_output_tokens:
            end = min(s.start + 1 + s.num_logits, sequence.prompt_len)
            rows[s.sequence_id] = PromptRows(k, list(sequence.token_ids[s.start + 1 : end]))
    return rows


def probes(
    output: SchedulerOutput, sequences: Mapping[SequenceId, Sequence], requests: Mapping[RequestId, Request]
) -> dict[SequenceId, Probe]:
    """The probes of prompts whose end is computed in this step."""
    found = {}
    for s in output.sequences:
        sequence = sequences[s.sequence_id]
        probe = requests[sequence.request_id].probe
        if probe is not None and s.start + len(s.token_ids) == sequence.num_tokens:
            found[s.sequence_id] = probe
    return found
