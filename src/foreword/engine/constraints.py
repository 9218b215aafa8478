"""Sequences whose tokens must follow a constraint: which may come next, and when nothing can follow.

    before a step   `allowed_tokens` of each constrained row; a state that is missing is made again from the tokens
    after it        `take_in`: states go on with what was drawn; what is finished ends, what can't go on fails

A state is a function of the tokens generated. So it is let go with whatever takes a sequence out of the running
ones, and waiting sequences hold none.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from foreword.core.errors import ConstraintError
from foreword.core.outputs import RequestFailure, SequenceStep
from foreword.core.sequence import FinishReason, Request, Sequence
from foreword.core.token_constraint import ConstraintState, TokenConstraint
from foreword.core.types import RequestId, SequenceId


class Constraints:
    """Of all sequences of an engine. False while no live one is constrained, so that others pay nothing."""

    def __init__(self) -> None:
        self._constraints: dict[SequenceId, TokenConstraint] = {}
        self._states: dict[SequenceId, ConstraintState] = {}

    def __bool__(self) -> bool:
        return bool(self._constraints)

    def add(self, request: Request) -> None:
        """Take in a request that has been queued."""
        if request.constraint is not None:
            self._constraints |= {sequence.sequence_id: request.constraint for sequence in request.sequences}

    def forget(self, sequence_id: SequenceId) -> None:
        """The sequence is over."""
        self._constraints.pop(sequence_id, None)
        self._states.pop(sequence_id, None)

    def let_go(self, sequence_ids: Iterable[SequenceId]) -> None:
        """These sequences wait again."""
        for sequence_id in sequence_ids:
            self._states.pop(sequence_id, None)

    def allowed_tokens(self, sequence: Sequence) -> bytes | None:
        """The mask of what may come next; None for a sequence without a constraint."""
        constraint = self._constraints.get(sequence.sequence_id)
        if constraint is None:
            return None
        state = self._states.get(sequence.sequence_id)
        if state is None:
            state = self._states[sequence.sequence_id] = constraint.start(sequence.token_ids[sequence.prompt_len :])
        return state.allowed_tokens

    def take_in(self, steps: list[SequenceStep]) -> tuple[list[SequenceStep], tuple[RequestFailure, ...]]:
        """Go on with the tokens of a step. Whoever is finished by its last token is told to end there, at any length.

        Returns the steps, those of finished sequences with that reason, and the requests that can't go on.
        """
        if not self._states:
            return steps, ()
        told: list[SequenceStep] = []
        failures: dict[RequestId, RequestFailure] = {}
        for step in steps:
            state = self._states.get(step.sequence_id)
            if state is not None and step.finish_reason in (None, FinishReason.LENGTH):
                try:
                    for token in step.new_tokens:
                        state.accept(token.token_id)
                except ConstraintError as error:
                    failures[step.request_id] = RequestFailure(step.request_id, error)
                    continue
                if state.is_finished:
                    step = replace(step, finish_reason=FinishReason.STOP)
            told.append(step)
        return [step for step in told if step.request_id not in failures], tuple(failures.values())
