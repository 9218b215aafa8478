"""Beam search over prompts as callers give them: every search of one call runs in the same batch."""

from collections.abc import Callable, Generator, Iterator, Sequence

from msgspec import Struct

from foreword.core.sampling_params import BeamSearchParams
from foreword.engine.beam_search import BeamGroup
from foreword.engine.engine import Engine
from foreword.llm.outputs import BeamSearchOutput, BeamSearchSequence
from foreword.text.detokenizer import IncrementalDetokenizer
from foreword.text.tokenizer import Tokenizer


class _Search(Struct):
    output: BeamSearchOutput
    group: BeamGroup | None = None

    @property
    def is_finished(self) -> bool:
        return self.group is not None and self.group.is_finished


def run_beam_searches(
    engine: Engine,
    step: Callable[[], object],
    tokenizer: Tokenizer,
    outputs: Sequence[BeamSearchOutput],
    params: BeamSearchParams,
) -> Generator[tuple[int, int], None, None]:
    """Search from the prompts of `outputs`, whose `sequences` and `usage` are filled. Aborts all when closed early.

    Yields after each step how many searches have ended, and how many tokens their longest beams have in all. `step`
    lets the engine step once, and gives other calls under way what is theirs of it.

    Raises:
        InvalidRequestError: a prompt is too long; nothing was started.
    """
    for output in outputs:
        engine.check(output.prompt_token_ids, params.step_params())
    searches = [_Search(output) for output in outputs]
    waiting = iter(searches)
    try:
        _feed(engine, tokenizer, params, waiting)
        while not all(search.is_finished for search in searches):
            step()
            _feed(engine, tokenizer, params, waiting)
            groups = [search.group for search in searches if search.group is not None]
            yield sum(group.is_finished for group in groups), sum(group.num_generated_tokens for group in groups)
    finally:
        for search in searches:
            if not search.is_finished:
                engine.abort(search.output.request_id)
    for search in searches:
        if search.group is not None:
            _fill(search.output, search.group, tokenizer)


def _feed(engine: Engine, tokenizer: Tokenizer, params: BeamSearchParams, waiting: Iterator[_Search]) -> None:
    # The engine's queue is bounded; the rest of a large call waits here.
    while engine.has_room():
        search = next(waiting, None)
        if search is None:
            return
        output = search.output
        search.group = engine.add_beam_search(
            output.request_id, output.prompt_token_ids, params, tokenizer.eos_token_ids
        )


def _fill(output: BeamSearchOutput, group: BeamGroup, tokenizer: Tokenizer) -> None:
    output.usage = group.usage
    for beam in group.beams:
        detokenizer = IncrementalDetokenizer(tokenizer, output.prompt_token_ids, skip_special_tokens=True)
        text = "".join(detokenizer.add(token) for token in beam.token_ids) + detokenizer.finish()
        output.sequences.append(
            BeamSearchSequence(
                text=text,
                token_ids=list(beam.token_ids),
                cumulative_logprob=beam.cumulative_logprob,
                score=beam.score,
                finish_reason=beam.finish_reason.value,
            )
        )
