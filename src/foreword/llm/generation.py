"""From a step's tokens to text: one tracker a request."""

from collections.abc import Callable

from msgspec import Struct

from foreword.core.outputs import SampledToken, SequenceStep, TokenLogprobs
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import FinishReason, Usage
from foreword.llm.outputs import CompletionOutput, PositionLogprobs, RequestOutput, TextDelta, TokenLogprob
from foreword.text.detokenizer import IncrementalDetokenizer
from foreword.text.stop import StopChecker
from foreword.text.tokenizer import Tokenizer


class _Continuation:
    """One sequence's text so far."""

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        tokenizer: Tokenizer,
        prompt_token_ids: list[int],
        shown: frozenset[int],
    ) -> None:
        self.output = CompletionOutput(index)
        if params.logprobs is not None:
            self.output.logprobs = []
            self.output.cumulative_logprob = 0.0
        self.detokenizer = IncrementalDetokenizer(
            tokenizer, prompt_token_ids, skip_special_tokens=params.skip_special_tokens, shown=shown
        )
        self.stops = StopChecker(params.stop_strings, include=params.include_stop_str_in_output)
        self.usage = Usage()


class TextWatch(Struct, frozen=True):
    """Somebody who reads a request's text as it comes, and may say that it is enough.

    `read` is called with a sequence's index and its next text, and returns why it ends there, None to go on. `shown`
    are special tokens that are text to the reader.
    """

    read: Callable[[int, str], FinishReason | None]
    shown: frozenset[int] = frozenset()


class GenerationTracker:
    """Collects a request's steps into a `RequestOutput`.

    `finish` is called when a stop string or the watch ends a sequence, with its index and how many of its tokens come
    to that: the engine never sees text.
    """

    def __init__(
        self,
        output: RequestOutput,
        params: SamplingParams,
        tokenizer: Tokenizer,
        finish: Callable[[int, int], None],
        watch: TextWatch | None = None,
    ) -> None:
        self.output = output
        self._params = params
        self._tokenizer = tokenizer
        self._finish = finish
        self._watch = watch
        shown = frozenset[int]() if watch is None else watch.shown
        prompt_ids = output.prompt_token_ids
        self._continuations = [_Continuation(i, params, tokenizer, prompt_ids, shown) for i in range(params.n)]
        output.outputs = [c.output for c in self._continuations]

    def apply(self, step: SequenceStep, request_index: int) -> TextDelta:
        """Take in what a step added to one sequence; returns what can be shown of it."""
        continuation = self._continuations[step.index]
        output = continuation.output
        if output.finish_reason is not None:  # a stop string ended it while the step was under way
            return TextDelta(request_index, step.index, "", (), None, self.output)
        if step.prompt_logprobs is not None:
            self.output.prompt_logprobs = [None if p is None else self._describe(p) for p in step.prompt_logprobs]
        self.output.reading = step.reading or self.output.reading
        num_before, shown = len(output.token_ids), ""
        for token in step.new_tokens:
            shown += self._add_token(continuation, step, token)
            if output.finish_reason is not None:
                break  # what else was drawn comes after the end
        if not step.new_tokens:
            shown = self._check_stops(continuation, step, continuation.detokenizer.finish())
        self._count(continuation, step.usage)  # last: ending a sequence stores the end of its prompt
        ids = tuple(output.token_ids[num_before:])
        return TextDelta(request_index, step.index, shown, ids, output.finish_reason, self.output)

    def _add_token(self, continuation: _Continuation, step: SequenceStep, token: SampledToken) -> str:
        """Take in one token; returns what can be shown now. A step that ends a sequence brings one at most."""
        output = continuation.output
        output.token_ids.append(token.token_id)
        if output.logprobs is not None and token.logprobs is not None:
            output.logprobs.append(self._describe(token.logprobs))
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + token.logprobs[token.token_id].logprob
        text = continuation.detokenizer.add(token.token_id)
        if step.finish_reason is not None:
            text += continuation.detokenizer.finish()
        shown = self._check_stops(continuation, step, text)
        ended = None if self._watch is None else self._watch.read(step.index, shown)
        is_first = output.finish_reason is None
        if ended is not None and (is_first or ended is FinishReason.LENGTH):  # what is cut off hasn't come to its stop
            output.finish_reason, output.stop_reason = ended.value, None
            if is_first:
                self._finish(step.index, len(output.token_ids))
        return shown

    def _check_stops(self, continuation: _Continuation, step: SequenceStep, text: str) -> str:
        output = continuation.output
        if len(output.token_ids) < self._params.min_tokens:
            output.text += text
            return text
        shown, stopped = continuation.stops.push(text)
        if stopped is not None:
            output.finish_reason = FinishReason.STOP.value
            output.stop_reason = self._params.stop_strings[stopped]
            if step.finish_reason is None:
                self._finish(step.index, len(output.token_ids))
        elif step.finish_reason is not None:
            shown += continuation.stops.finish()
            output.finish_reason = step.finish_reason.value
            if step.stop_token_id in self._params.stop_token_ids:
                output.stop_reason = step.stop_token_id
        output.text += shown
        return shown

    def _count(self, continuation: _Continuation, usage: Usage) -> None:
        """The request's account: the prompt read once, by its first sequence; what was stored and generated by all."""
        continuation.usage = usage
        first = self._continuations[0].usage
        every = [c.usage for c in self._continuations]
        self.output.usage = Usage(
            prompt_tokens=len(self.output.prompt_token_ids),
            cached_tokens=first.cached_tokens,
            written_tokens=min(sum(u.written_tokens for u in every), first.prompt_tokens - first.cached_tokens),
            computed_tokens=first.computed_tokens,
            completion_tokens=sum(u.completion_tokens for u in every),
            recomputed_tokens=sum(u.recomputed_tokens for u in every),
        )

    def _describe(self, found: TokenLogprobs) -> PositionLogprobs:
        return {
            token: TokenLogprob(value.logprob, value.rank, self._tokenizer.decode([token], skip_special_tokens=False))
            for token, value in found.items()
        }
