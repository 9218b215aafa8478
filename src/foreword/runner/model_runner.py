"""One step on the model: copies, forward pass, logits of the rows that need them, tokens."""

import itertools
from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from msgspec import Struct, field

from foreword.core.outputs import SampledToken, SamplingRow, SchedulerOutput, TokenLogprobs
from foreword.core.probe import Probe, Reading
from foreword.core.types import SequenceId, TokenId
from foreword.models.base import Model
from foreword.models.workspace import Workspace
from foreword.ops.backend import F32, Backend, HeadOutputs
from foreword.runner.input_batch import build_input_batch
from foreword.runner.kv_storage import KVStorage
from foreword.runner.sampler import Sampler, takes_best

_LOGITS_SLICE = 64  # rows of prompt logits held at once: bounds memory whatever the prompt's length


class PromptRows(Struct, frozen=True):
    """Prompt logprobs wanted of a scheduled run: its i-th row of logits predicts `next_token_ids[i]`."""

    k: int
    next_token_ids: list[int]


class RunnerResult(Struct, frozen=True):
    """Tokens drawn, prompt logprobs found and probes answered, by sequence."""

    sampled: dict[SequenceId, tuple[SampledToken, ...]]  # behind the last known token and behind each draft
    prompt_logprobs: dict[SequenceId, list[TokenLogprobs]]
    readings: dict[SequenceId, Reading] = field(default_factory=dict)


class ModelRunner:
    """Executes `SchedulerOutput`; the only owner of K/V memory and of the step's buffers.

    `vocab_size` cuts off logits of ids that are no tokens: models pad their embeddings.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        kv: KVStorage,
        block_size: int,
        token_budget: int,
        *,
        vocab_size: int | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self.kv = kv
        self._model = model
        self._backend = backend
        self._block_size = block_size
        self._workspace = Workspace(model.config, token_budget)
        self._sampler = sampler or Sampler(backend)
        self._logits_buffer: F32 = np.empty((0, model.config.vocab_size), np.float32)
        self.vocab_size = vocab_size or model.config.vocab_size

    def execute(
        self,
        output: SchedulerOutput,
        sampling: Mapping[SequenceId, Sequence[SamplingRow]],
        prompt_rows: Mapping[SequenceId, PromptRows],
        probes: Mapping[SequenceId, Probe] = MappingProxyType({}),
    ) -> RunnerResult:
        """Run one step; every sequence with `samples` has in `sampling` a row for each token it draws.

        Those in `probes` have their last row wanted, and draw nothing.
        """
        self.kv.prepare(self._backend, output.fresh_blocks, output.copies)
        head = None if prompt_rows else self._head_of_drawn(output, sampling)
        hidden = self.forward(output, head)
        found: dict[SequenceId, list[TokenLogprobs]] = {}
        drawn: list[tuple[SequenceId, int]] = []
        probed: list[tuple[SequenceId, int]] = []
        first = 0
        for s in output.sequences:
            wanted = prompt_rows.get(s.sequence_id)
            if wanted is not None:
                found[s.sequence_id] = self._prompt_logprobs(hidden[first:], wanted)
            first += s.num_logits
            if s.samples:
                drawn += [(s.sequence_id, row) for row in range(first - 1 - s.num_drafts, first)]
            elif s.sequence_id in probes:
                probed.append((s.sequence_id, first - 1))
        sampled = self._draw(hidden, head, drawn, sampling) if drawn else {}
        return RunnerResult(sampled, found, self._read(hidden, probed, probes))

    def forward(self, output: SchedulerOutput, head: HeadOutputs | None = None) -> F32:
        """Hidden states `[R, hidden]` of the rows whose logits are wanted, in batch order; valid until the next.

        `head` is filled, where it is given.
        """
        batch = build_input_batch(output, self._block_size)
        ends = batch.attention.query_start_loc[1:].tolist()
        rows = [row for s, end in zip(output.sequences, ends, strict=True) for row in range(end - s.num_logits, end)]
        return self._model.forward(
            batch.token_ids, batch.attention, self.kv, self._workspace, rows=np.array(rows, np.int32), head=head
        )

    def _draw(
        self,
        hidden: F32,
        head: HeadOutputs | None,
        drawn: Sequence[tuple[SequenceId, int]],
        sampling: Mapping[SequenceId, Sequence[SamplingRow]],
    ) -> dict[SequenceId, tuple[SampledToken, ...]]:
        sequence_ids = list(dict.fromkeys(sequence_id for sequence_id, _ in drawn))
        if head is not None and head.best is not None:
            tokens = [SampledToken(TokenId(token)) for token in head.best.tolist()]
        else:
            logits = self._logits(hidden[[row for _, row in drawn]]) if head is None else head.logits
            rows = [row for sequence_id in sequence_ids for row in sampling[sequence_id]]
            tokens = self._sampler.sample(self._of_tokens(logits), rows)
        of_each = iter(tokens)
        return {i: tuple(itertools.islice(of_each, len(sampling[i]))) for i in sequence_ids}

    def _read(
        self, hidden: F32, probed: Sequence[tuple[SequenceId, int]], probes: Mapping[SequenceId, Probe]
    ) -> dict[SequenceId, Reading]:
        states: dict[SequenceId, array[float]] = {}
        wanted = [(sequence_id, row) for sequence_id, row in probed if probes[sequence_id].hidden_state]
        if wanted:
            normalised = self._model.normalised(hidden[[row for _, row in wanted]])
            states = {i: array("f", state.tobytes()) for (i, _), state in zip(wanted, normalised, strict=True)}
        logprobs: dict[SequenceId, tuple[float, ...]] = {}
        asked = [(sequence_id, row) for sequence_id, row in probed if probes[sequence_id].token_ids]
        if asked:
            logits = self._of_tokens(self._logits(hidden[[row for _, row in asked]]))
            found = self._sampler.logprobs_of(logits, [probes[sequence_id].token_ids for sequence_id, _ in asked])
            logprobs = {sequence_id: values for (sequence_id, _), values in zip(asked, found, strict=True)}
        return {i: Reading(logprobs=logprobs.get(i, ()), hidden_state=states.get(i)) for i, _ in probed}

    def _head_of_drawn(
        self, output: SchedulerOutput, sampling: Mapping[SequenceId, Sequence[SamplingRow]]
    ) -> HeadOutputs | None:
        """What the forward pass itself may fill: where a token is drawn from every row, and they are not too many."""
        num_rows, is_best = 0, True
        for s in output.sequences:
            if s.num_logits != (1 + s.num_drafts if s.samples else 0):
                return None
            num_rows += s.num_logits
            is_best = is_best and (not s.samples or all(map(takes_best, sampling[s.sequence_id])))
        if not 0 < num_rows <= _LOGITS_SLICE:
            return None
        return HeadOutputs(self._room(num_rows), np.empty(num_rows, np.int32) if is_best else None, self.vocab_size)

    def _room(self, num_rows: int) -> F32:
        """Up to a slice of rows: one buffer, which the next call uses again, since fresh memory costs more."""
        if len(self._logits_buffer) < num_rows:
            self._logits_buffer = np.empty((num_rows, self._model.config.vocab_size), np.float32)
        return self._logits_buffer[:num_rows]

    def _logits(self, hidden: F32) -> F32:
        return self._model.logits(hidden, self._room(len(hidden)) if len(hidden) <= _LOGITS_SLICE else None)

    def _of_tokens(self, logits: F32) -> F32:
        return logits if logits.shape[1] == self.vocab_size else np.ascontiguousarray(logits[:, : self.vocab_size])

    def _prompt_logprobs(self, hidden: F32, wanted: PromptRows) -> list[TokenLogprobs]:
        found: list[TokenLogprobs] = []
        targets = wanted.next_token_ids
        for start in range(0, len(targets), _LOGITS_SLICE):
            part = targets[start : start + _LOGITS_SLICE]
            logits = self._of_tokens(self._logits(hidden[start : start + len(part)]))
            found += self._sampler.prompt_logprobs(logits, part, wanted.k)
        return found
