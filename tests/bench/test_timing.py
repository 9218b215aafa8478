from foreword.bench.timing import StreamClock
from foreword.llm import CompletionOutput, RequestOutput, TextDelta


def _delta(index: int, *tokens: int) -> TextDelta:
    return TextDelta(0, index, "x", tokens, None, RequestOutput("r", None, [1], [CompletionOutput(index)]))


def test_a_stream_that_has_not_begun_has_no_times() -> None:
    clock = StreamClock()

    assert (clock.ttft_s, clock.decode_tok_s, clock.wall_s, clock.num_tokens) == (None, None, 0, 0)


def test_one_token_gives_a_first_time_and_no_rate() -> None:
    clock = StreamClock()

    list(clock.watch([_delta(0), _delta(0, 5)]))

    assert clock.ttft_s is not None
    assert clock.ttft_s > 0
    assert clock.decode_tok_s is None


def test_the_first_token_of_each_continuation_is_no_decode() -> None:
    clock = StreamClock()

    list(clock.watch([_delta(0, 5), _delta(1, 5), _delta(0, 6), _delta(1, 6), _delta(0, 7)]))

    assert clock.num_tokens == 5
    assert clock.decode_tok_s is not None
    assert clock.ttft_s is not None
    assert abs(clock.decode_tok_s * (clock.wall_s - clock.ttft_s) - 3) < 1e-6
