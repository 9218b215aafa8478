"""Beam search: which continuations go on, which are forked and which have ended. Knows tokens and scores, no blocks.

One generation after the other:

    every live beam is computed to its end      the scheduler's work, in one step or in several, in any order
    their most likely next tokens are compared  `BeamGroup.decide`
    the best go on, each in a sequence          `Scheduler.branch`; beams nobody goes on from give their blocks back

Scores are sums of float32 log-probabilities in float64, added in the order of the tokens. Equal ones are told apart
by the rank of the parent, then by token id, so that a search has one answer whatever it is batched with.
"""

from collections.abc import Callable, Collection

from msgspec import Struct
from msgspec.structs import replace

from foreword.core.outputs import SampledToken, SchedulerOutput, TokenLogprobs
from foreword.core.sampling_params import BeamSearchParams
from foreword.core.sequence import FinishReason, Request, Sequence, Usage
from foreword.core.types import RequestId, SequenceId, TokenId
from foreword.scheduler.scheduler import Scheduler


class Beam(Struct, frozen=True):
    """One ended continuation: its tokens, end token included, their summed log-probability, and its score."""

    token_ids: tuple[TokenId, ...]
    cumulative_logprob: float
    score: float
    finish_reason: FinishReason


class Branch(Struct, frozen=True):
    """A live sequence goes on with the first of `token_ids`, forks of it with the others; with none it is dropped."""

    sequence_id: SequenceId
    token_ids: tuple[TokenId, ...]
    child_ids: tuple[SequenceId, ...]


class _Candidate(Struct, frozen=True):
    """A live beam and one more token. Candidates of one generation are equally long."""

    cumulative_logprob: float
    parent_rank: int
    parent_id: SequenceId
    token_ids: tuple[TokenId, ...]

    @property
    def order(self) -> tuple[float, int, int]:
        return -self.cumulative_logprob, self.parent_rank, self.token_ids[-1]


class BeamGroup:
    """The beams of one prompt, live and ended.

    `max_len` is the most tokens a beam can come to have. Beams that end by an end token are kept out of the race for
    the `beam_width` places of live ones, as in vLLM: every end token among a beam's candidates ends a beam.
    """

    def __init__(
        self, params: BeamSearchParams, first_id: SequenceId, eos_token_ids: Collection[TokenId], max_len: int
    ) -> None:
        self.usage = Usage()
        self._params = params
        self._eos = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._max_len = max_len
        self._len = 0
        self._live: dict[SequenceId, tuple[tuple[TokenId, ...], float]] = {first_id: ((), 0.0)}  # best first
        self._found: dict[SequenceId, TokenLogprobs] = {}
        self._ended: list[Beam] = []

    @property
    def is_finished(self) -> bool:
        """True once no beam goes on."""
        return not self._live

    @property
    def is_ready(self) -> bool:
        """True when every live beam has been observed, so that the next choice can be made."""
        return bool(self._live) and len(self._found) == len(self._live)

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of the longest beam so far."""
        return self._len

    @property
    def beams(self) -> tuple[Beam, ...]:
        """The ended beams, best first, at most `beam_width`."""
        return tuple(self._ended)

    def observe(self, sequence_id: SequenceId, logprobs: TokenLogprobs) -> None:
        """Take in the most likely next tokens of a live beam."""
        self._found[sequence_id] = logprobs

    def decide(self, new_sequence_id: Callable[[], SequenceId]) -> list[Branch]:
        """Choose what goes on; one branch for each beam that was live. Call when `is_ready`."""
        going, ending = self._candidates()
        self._len += 1
        going = going[: self._params.beam_width]
        if self._len == self._max_len:
            ending, going = sorted((*ending, *going), key=lambda c: c.order), []
        self._ended = sorted((*self._ended, *map(self._end, ending)), key=lambda beam: -beam.score)  # stable
        del self._ended[self._params.beam_width :]
        if going and self._is_settled(going[0].cumulative_logprob):
            going = []
        branches = {parent: Branch(parent, (), ()) for parent in self._live}
        self._live, self._found = {}, {}
        for candidate in going:
            branch = branches[candidate.parent_id]
            is_first = not branch.token_ids
            sequence_id = candidate.parent_id if is_first else new_sequence_id()
            self._live[sequence_id] = candidate.token_ids, candidate.cumulative_logprob
            branches[candidate.parent_id] = replace(
                branch,
                token_ids=(*branch.token_ids, candidate.token_ids[-1]),
                child_ids=branch.child_ids if is_first else (*branch.child_ids, sequence_id),
            )
        return list(branches.values())

    def _candidates(self) -> tuple[list[_Candidate], list[_Candidate]]:
        """Each live beam with each of its likely next tokens, best first: those that can go on, those that end."""
        going: list[_Candidate] = []
        ending: list[_Candidate] = []
        for rank, (sequence_id, (token_ids, cumulative)) in enumerate(self._live.items()):
            for token_id, found in self._found[sequence_id].items():
                token = TokenId(token_id)
                candidate = _Candidate(cumulative + found.logprob, rank, sequence_id, (*token_ids, token))
                (ending if token in self._eos else going).append(candidate)
        return sorted(going, key=lambda c: c.order), sorted(ending, key=lambda c: c.order)

    def _end(self, candidate: _Candidate) -> Beam:
        by_eos = candidate.token_ids[-1] in self._eos
        return Beam(
            token_ids=candidate.token_ids,
            cumulative_logprob=candidate.cumulative_logprob,
            score=score(candidate.cumulative_logprob, self._len, self._params.length_penalty),
            finish_reason=FinishReason.STOP if by_eos else FinishReason.LENGTH,
        )

    def _is_settled(self, best_cumulative: float) -> bool:
        """True when no live beam can come among the best, or `early_stopping` asks not to wait for it.

        A sum of log-probabilities only falls. With a penalty that favours length a beam's score can at best become
        that of the same sum at the greatest length; with one that does not, at the next.
        """
        if len(self._ended) < self._params.beam_width:
            return False
        penalty = self._params.length_penalty
        best_len = self._max_len if penalty > 0 else self._len + 1
        return self._params.early_stopping or score(best_cumulative, best_len, penalty) < self._ended[-1].score


def score(cumulative_logprob: float, num_tokens: int, length_penalty: float) -> float:
    """What beams are ranked by: `cumulative_logprob / num_tokens ** length_penalty`, generated tokens only."""
    return float(cumulative_logprob / num_tokens**length_penalty)


class BeamSearches:
    """The beam searches under way in an engine: takes logits in after each step and tells the scheduler what goes on.

    `sequences` is the engine's own table of live sequences, kept up to date here for forks.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        sequences: dict[SequenceId, Sequence],
        new_sequence_id: Callable[[], SequenceId],
    ) -> None:
        self._scheduler = scheduler
        self._sequences = sequences
        self._new_sequence_id = new_sequence_id
        self._groups: dict[RequestId, BeamGroup] = {}

    def start(self, request: Request, params: BeamSearchParams) -> BeamGroup:
        """Follow a request that was just queued, with `branches` set."""
        max_len = min(params.max_tokens, self._scheduler.config.max_model_len - len(request.prompt_token_ids))
        group = BeamGroup(params, request.sequences[0].sequence_id, request.eos_token_ids, max_len)
        self._groups[request.request_id] = group
        return group

    def forget(self, request_id: RequestId) -> None:
        """The request is over, or was given up."""
        self._groups.pop(request_id, None)

    def take_in(self, output: SchedulerOutput, sampled: dict[SequenceId, tuple[SampledToken, ...]]) -> list[RequestId]:
        """Take in a step that was just updated; returns the requests whose search has ended, still to be aborted."""
        if not self._groups:
            return []
        for scheduled in output.sequences:
            sequence = self._sequences.get(scheduled.sequence_id)
            group = self._groups.get(sequence.request_id) if sequence is not None and scheduled.samples else None
            if sequence is not None and group is not None:
                group.observe(sequence.sequence_id, sampled[sequence.sequence_id][0].logprobs or {})
        ready = [request_id for request_id, group in self._groups.items() if group.is_ready]
        return [request_id for request_id in ready if self._advance(self._groups[request_id])]

    def _advance(self, group: BeamGroup) -> bool:
        """Make one choice and carry it out; True when the search has ended."""
        branches = group.decide(self._new_sequence_id)
        if group.num_generated_tokens == 1:  # the prompt is computed: its account is closed
            usage = self._sequences[branches[0].sequence_id].usage
            group.usage = replace(usage, written_tokens=0, recomputed_tokens=0, completion_tokens=0)
        for branch in branches:
            if branch.token_ids:
                self._go_on(branch)
        for branch in branches:  # last, so that a request is never without a sequence before its search has ended
            if not branch.token_ids:
                self._drop(branch.sequence_id, group)
        group.usage.completion_tokens = sum(len(beam.token_ids) for beam in group.beams)
        return group.is_finished

    def _go_on(self, branch: Branch) -> None:
        parent = self._sequences[branch.sequence_id]
        children = [
            Sequence(
                sequence_id=child_id,
                request_id=parent.request_id,
                index=parent.index,
                token_ids=list(parent.token_ids),
                prompt_len=parent.prompt_len,
                params=parent.params,
                seed=parent.seed,
            )
            for child_id in branch.child_ids
        ]
        self._scheduler.branch(parent.sequence_id, list(branch.token_ids), children)
        self._sequences.update((child.sequence_id, child) for child in children)

    def _drop(self, sequence_id: SequenceId, group: BeamGroup) -> None:
        sequence = self._sequences.pop(sequence_id)
        self._scheduler.finish(sequence_id, FinishReason.STOP)
        usage = group.usage
        usage.recomputed_tokens += sequence.usage.recomputed_tokens
        # The prompt's end may be stored once by each beam, with what it goes on with.
        written = usage.written_tokens + sequence.usage.written_tokens
        usage.written_tokens = min(written, usage.prompt_tokens - usage.cached_tokens)
