"""Several threads on one `LLM`: each gets what it would get alone, in the same steps as the others."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.cli.conftest import tiny as tiny

from foreword import LLM, BeamSearchParams, SamplingParams
from foreword.llm.fair_lock import FairLock

GREEDY = SamplingParams(temperature=0, max_tokens=24)
CALLS: list[Callable[[LLM, str], object]] = [
    lambda llm, text: llm.generate(text, GREEDY)[0].outputs[0].token_ids,
    lambda llm, text: [token for delta in llm.stream(text, GREEDY) for token in delta.token_ids],
    lambda llm, text: llm.chat([{"role": "user", "content": text}], GREEDY)[0].outputs[0].text,
    lambda llm, text: llm.beam_search(text, BeamSearchParams(beam_width=2, max_tokens=8))[0].sequences,
    lambda llm, text: llm.warm(text).prompt_tokens,
]


@pytest.fixture(scope="module")
def llm(tiny: str) -> Iterator[LLM]:
    with LLM(tiny, threads=1, kv_memory_bytes=4 << 20, debug=True) as llm:
        yield llm


def test_every_thread_gets_the_answer_it_would_get_alone(llm: LLM) -> None:
    work = [(call, f"{number}: a prompt of thread {number}") for number in range(4) for call in CALLS]
    expected = [call(llm, text) for call, text in work]
    llm.reset()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: each[0](llm, each[1]), work))

    assert found == expected
    llm.check_invariants()
    assert llm.stats().held_blocks == llm.stats().num_running == 0


def test_calls_of_two_threads_run_in_the_same_steps(llm: LLM) -> None:
    inside, both = threading.Event(), threading.Event()
    seen = []

    def hold(**_: int) -> None:
        inside.set()
        assert both.wait(30)
        seen.append(llm.stats().num_running)

    def join(**_: int) -> None:
        both.set()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(llm.generate, "first", SamplingParams(max_tokens=40, ignore_eos=True), progress=hold)
        assert inside.wait(30)
        second = pool.submit(llm.generate, "second", SamplingParams(max_tokens=40, ignore_eos=True), progress=join)
        assert first.result(30)[0].finished
        assert second.result(30)[0].finished

    assert max(seen) == 2


def test_a_fair_lock_lets_the_waiting_one_in_before_its_holder_again() -> None:
    lock, order = FairLock(), list[str]()

    def wait() -> None:
        with lock:
            order.append("other")

    lock.__enter__()
    other = threading.Thread(target=wait)
    other.start()
    while not lock._door.locked():
        threading.Event().wait(0.001)

    with lock:  # once more within: nobody else comes in
        assert order == []
    lock.__exit__(None, None, None)
    with lock:
        order.append("holder")
    other.join(10)

    assert order == ["other", "holder"]
