"""Never twice: what is reused, what is counted, who waits for whom. Every answer is compared with a plain loop."""

import random

import pytest

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.errors import InvalidRequestError
from foreword.core.sequence import FinishReason, Request
from foreword.core.types import TokenId
from foreword.kv_cache.events import AllBlocksCleared, BlockRemoved, BlockStored
from foreword.kv_cache.explain import MissCause
from foreword.kv_cache.hash_prefix_cache import HashPrefixCache
from foreword.kv_cache.radix_prefix_cache import RadixPrefixCache
from tests.oracles.engine import SimulatedEngine
from tests.oracles.simulated_model import sequential_generate

SIZE = 16


def make_engine(
    kind: str = "radix", *, num_blocks: int = 400, cache: dict[str, object] | None = None, **config: object
) -> SimulatedEngine:
    cache_config = CacheConfig(
        **{"num_blocks": num_blocks, "prefix_cache": kind, "debug": num_blocks < 500, **(cache or {})}  # type: ignore[arg-type]
    )
    settings = {"max_num_seqs": 8, "token_budget": 128, "max_model_len": 6000, **config}
    return SimulatedEngine(cache_config, SchedulerConfig(**settings))  # type: ignore[arg-type]


def text(seed: int, length: int) -> list[int]:
    return [random.Random(seed * 1_000_003 + i).randrange(1000) for i in range(length)]


def ask(engine: SimulatedEngine, prompt: list[int], **params: object) -> Request:
    request = engine.add(prompt, **{"max_tokens": 3, **params})  # type: ignore[arg-type]
    engine.run()
    assert_exact(request)
    return request


def assert_exact(request: Request) -> None:
    for sequence in request.sequences:
        got = sequence.token_ids[sequence.prompt_len :]
        assert got == sequential_generate(request.namespace, request.prompt_token_ids, len(got), sequence.index, 7)


def cached(request: Request) -> int:
    usage = request.sequences[0].usage
    assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens
    return usage.cached_tokens


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 5 * 16 + 7, 160])
def test_a_repeated_prompt_hits_all_but_its_last_token(length: int) -> None:
    for kind, expected in (("radix", length - 1), ("hash", (length - 1) // SIZE * SIZE), ("none", 0)):
        engine = make_engine(kind)

        cold, warm = (ask(engine, text(1, length), max_tokens=1) for _ in range(2))

        assert (cached(cold), cached(warm)) == (0, expected)
        assert cold.sequences[0].usage.written_tokens == {"radix": length, "hash": length // SIZE * SIZE}.get(kind, 0)
        assert warm.sequences[0].usage.written_tokens == 0


def test_a_hit_that_ends_inside_a_block_copies_it_and_stale_rows_stay_hidden() -> None:
    engine = make_engine()
    ask(engine, text(1, 40))
    engine.outputs.clear()

    request = ask(engine, [*text(1, 21), 1001, 1002, 1003])

    assert cached(request) == 21
    assert sum(len(output.copies) for output in engine.outputs) == 1


def test_the_next_turn_hits_through_the_end_of_the_last_answer() -> None:
    for reuse, expected in (("tenant", 50 + 29), ("off", 50)):
        engine = make_engine(cache={"reuse_generated": reuse})
        first = ask(engine, text(1, 50), max_tokens=30)
        turn = [*first.sequences[0].token_ids, 900, 901]

        assert cached(ask(engine, turn)) == expected
        assert cached(ask(engine, [*turn, 902])) == 82


@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_16_equal_prompts_in_one_batch_on_an_empty_cache_compute_the_prefix_once(kind: str) -> None:
    engine = make_engine(kind, max_num_seqs=16, token_budget=256)
    requests = [engine.add(text(1, 57), max_tokens=4) for _ in range(16)]

    engine.run()

    # the leader's last block is still being written when the others start: they compute those 9 tokens
    assert engine.scheduler.counters.prefilled_tokens == 57 + 15 * 9
    assert [cached(request) for request in requests] == [0] + [48] * 15
    for request in requests:
        assert_exact(request)


def test_3_requests_sharing_10_blocks_compute_10_blocks_and_3_tails() -> None:
    engine = make_engine()
    requests = [engine.add(text(1, 160) + text(2 + i, 40), max_tokens=2) for i in range(3)]

    engine.run()

    assert engine.scheduler.counters.prefilled_tokens == 160 + 3 * 40
    assert [cached(request) for request in requests] == [0, 160, 160]


@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_a_burst_of_32_requests_computes_its_prefix_once(kind: str) -> None:
    engine = make_engine(kind, num_blocks=1000, token_budget=512)
    requests = [engine.add(text(1, 1024) + text(2 + i, 64), max_tokens=16) for i in range(32)]

    engine.run()

    assert engine.scheduler.counters.prefilled_tokens == 1024 + 32 * 64
    for request in requests[::8]:
        assert_exact(request)


@pytest.mark.parametrize("end", ["abort", "discard", "preempt"])
def test_followers_go_on_when_the_one_they_wait_for_stops(end: str) -> None:
    engine = make_engine(token_budget=32)
    leader = engine.add(text(1, 100), max_tokens=2)
    followers = [engine.add(text(1, 100), max_tokens=2) for _ in range(3)]
    engine.step()
    assert engine.scheduler.num_running == 1
    if end == "abort":
        engine.scheduler.abort(leader.request_id)
    else:
        output = engine.schedule()
        assert output is not None
        engine.scheduler.discard(output)

    engine.run()

    for request in followers:
        assert_exact(request)
        assert request.sequences[0].finish_reason is FinishReason.LENGTH
    assert sum(cached(request) for request in followers) > 0


def test_interleaved_prefixes_all_hit_after_the_first_round() -> None:
    engine = make_engine(num_blocks=8 * 64 + 80)
    for _ in range(3):
        hits = [cached(ask(engine, [*text(prefix, 1000), prefix], max_tokens=1)) for prefix in range(8)]

    assert hits == [1000] * 8


def test_a_conversation_among_200_side_requests_never_loses_its_prefix_while_all_fits() -> None:
    engine = make_engine(num_blocks=200 * 4 + 300)
    history = text(0, 1000)
    for turn in range(1, 6):
        request = ask(engine, history, max_tokens=20)
        assert cached(request) == (0 if turn == 1 else len(history) - 30 - 1)
        history = [*request.sequences[0].token_ids, *text(1000 + turn, 30)]
        for side in range(40):
            ask(engine, text(turn * 100 + side, 30), max_tokens=1)


def test_a_scan_cannot_push_out_what_was_used_twice() -> None:
    engine = make_engine(num_blocks=100)
    for _ in range(2):
        ask(engine, text(0, 500))

    for scan in range(1, 30):
        ask(engine, text(scan, 300))

    assert cached(ask(engine, text(0, 500))) == 499


def test_namespaces_never_share_and_a_new_identity_hits_nothing() -> None:
    engine = make_engine()
    ask(engine, text(1, 50), namespace=b"v1")

    assert cached(ask(engine, text(1, 50), namespace=b"v2")) == 0
    assert cached(ask(engine, text(1, 50), namespace=b"v1")) == 49


def test_prompt_logprobs_read_nothing_from_the_cache_and_still_write_to_it() -> None:
    engine = make_engine()
    ask(engine, text(1, 50))

    scored = ask(engine, [*text(1, 50), 7], prompt_logprobs=0)

    assert cached(scored) == 0
    assert engine.scheduler.counters.prefilled_tokens == 50 + 51
    assert cached(ask(engine, [*text(1, 50), 7, 8])) == 51


def test_warming_computes_and_stores_a_prompt_and_draws_nothing() -> None:
    engine = make_engine(token_budget=32)

    for expected in (0, 99):
        warm = engine.add(text(1, 100), prefill_only=True)
        engine.run()
        assert cached(warm) == expected
        assert warm.sequences[0].num_output_tokens == 0
        assert warm.sequences[0].finish_reason is FinishReason.LENGTH

    assert cached(ask(engine, [*text(1, 100), 5])) == 100


def test_preemption_and_readmission_never_count_a_token_twice() -> None:
    engine = make_engine(num_blocks=24, watermark=0.0)
    requests = [engine.add(text(1, 60) + text(2 + i, 30), max_tokens=60) for i in range(6)]

    engine.run()

    assert engine.scheduler.counters.num_preemptions > 0
    for request in requests:
        assert_exact(request)
        assert cached(request) <= 89


def test_a_prompt_that_fills_the_pool_can_be_asked_again() -> None:
    engine = make_engine(num_blocks=4)

    first = ask(engine, text(1, 60), max_tokens=4)
    again = ask(engine, text(1, 60), max_tokens=4)

    assert cached(first) == 0
    assert cached(again) >= 48


def test_a_pinned_prefix_stays_and_gives_way_only_to_a_request_that_could_not_run() -> None:
    engine = make_engine(num_blocks=16)
    ask(engine, text(0, 64))
    tokens = [TokenId(token) for token in text(0, 64)]
    assert engine.manager.pin(b"", [TokenId(1)]) is None
    pin = engine.manager.pin(b"", tokens)
    assert pin is not None
    assert engine.manager.pin(b"", tokens) is not None  # the same blocks count once

    for scan in range(1, 10):
        ask(engine, text(scan, 150))
    assert engine.manager.query(b"", tokens) == 63

    ask(engine, text(50, 250), max_tokens=6)
    assert engine.manager.query(b"", tokens) < 63
    engine.manager.unpin(pin)
    assert engine.manager.pool.num_held == 0

    ask(engine, text(0, 64))
    assert engine.manager.pin(b"", tokens) is not None
    engine.manager.reset()
    assert engine.manager.pool.num_free == 16


def test_a_pin_beyond_its_share_is_refused() -> None:
    engine = make_engine(num_blocks=15)
    ask(engine, text(0, 64))

    assert engine.manager.pin(b"", [TokenId(token) for token in text(0, 64)]) is None


def test_a_decoding_sequence_takes_a_pin_before_it_stalls() -> None:
    engine = make_engine(num_blocks=8)
    ask(engine, text(0, 32), max_tokens=1)
    assert engine.manager.pin(b"", [TokenId(token) for token in text(0, 32)]) is not None

    request = ask(engine, text(1, 20), max_tokens=100)

    assert request.sequences[0].num_output_tokens == 100


def test_a_tenant_keeps_within_its_share_and_cannot_flood_another() -> None:
    engine = make_engine(num_blocks=100, cache={"tenant_share": 0.5})
    own = text(0, 400)
    hits = 0
    for round_ in range(20):
        request = engine.add(own, max_tokens=1, namespace=b"a", tenant=b"a")
        engine.run()
        hits += cached(request) == 399
        for flood in range(3):
            engine.add(text(1 + 3 * round_ + flood, 600), max_tokens=1, namespace=b"b", tenant=b"b")
        engine.run()
    assert hits == 19


@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_a_tenants_own_share_is_kept_from_the_moment_it_is_given(kind: str) -> None:
    engine = make_engine(kind, num_blocks=100)

    def store(tenant: bytes, seeds: range) -> None:
        for seed in seeds:
            engine.add(text(seed, 160), max_tokens=1, namespace=tenant, tenant=tenant)
        engine.run()

    def stored(tenant: bytes, seeds: range) -> int:
        ids = [[TokenId(token) for token in text(seed, 160)] for seed in seeds]
        return sum(engine.manager.query(tenant, prompt) for prompt in ids)

    store(b"a", range(4))
    store(b"b", range(10, 13))
    assert engine.manager.pool.num_free > 0
    engine.manager.prefix_cache.share({b"a": 20, b"c": 10})
    store(b"a", range(4, 5))
    store(b"c", range(20, 23))

    assert stored(b"a", range(5)) <= 20 * SIZE
    assert stored(b"a", range(4, 5)) >= 9 * SIZE
    assert stored(b"c", range(20, 23)) <= 10 * SIZE
    assert stored(b"b", range(10, 13)) >= 3 * 9 * SIZE
    engine.manager.prefix_cache.share({})
    store(b"a", range(5, 8))
    assert stored(b"a", range(4, 8)) > 20 * SIZE
    engine.manager.check_invariants()


def test_without_a_prefix_cache_there_is_nothing_to_share() -> None:
    engine = make_engine("none")
    engine.manager.prefix_cache.share({b"a": 5})

    ask(engine, text(0, 40))


@pytest.mark.parametrize("order", ["arrival", "longest_hit"])
def test_tenants_are_served_in_turn_however_many_requests_one_sends(order: str) -> None:
    engine = make_engine(max_num_seqs=2, admission_order=order)
    names = {}
    for number in range(40):
        added = engine.add(text(number, 40), max_tokens=2, namespace=b"greedy", tenant=b"greedy")
        names[added.request_id] = "greedy"
    for number in range(3):
        added = engine.add(text(100 + number, 40), max_tokens=2, namespace=b"calm", tenant=b"calm")
        names[added.request_id] = "calm"
    finished: list[str] = []
    while engine.scheduler.has_unfinished:
        finished += [names[step.request_id] for step in engine.step() if step.finish_reason]

    assert [place for place, name in enumerate(finished) if name == "calm"][-1] <= 6
    assert finished.count("greedy") == 40


def test_who_ran_before_keeps_its_place_before_tenants_in_turn() -> None:
    engine = make_engine(num_blocks=12, max_num_seqs=4, max_model_len=150)
    requests = [
        engine.add(text(seed, 60), max_tokens=60, namespace=tenant, tenant=tenant)
        for seed, tenant in enumerate((b"a", b"a", b"b", b"b"))
    ]
    engine.run()

    assert engine.scheduler.counters.num_preemptions > 0
    for request in requests:
        assert_exact(request)


def test_longest_hit_goes_first_within_a_tenant_and_nobody_starves() -> None:
    engine = make_engine(max_num_seqs=1)
    ask(engine, text(0, 100))
    cold = engine.add(text(1, 40), max_tokens=1)
    warm = [engine.add([*text(0, 100), i], max_tokens=1) for i in range(12)]
    finished: list[str] = []
    while engine.scheduler.has_unfinished:
        finished += [step.request_id for step in engine.step() if step.finish_reason]

    assert finished[0] == warm[0].request_id
    assert finished.index(cold.request_id) == 8


def test_admission_order_of_one_tenant_does_not_depend_on_what_another_stored() -> None:
    orders = []
    for primed in (False, True):
        engine = make_engine(max_num_seqs=1)
        if primed:
            request = engine.add(text(9, 100), max_tokens=1, namespace=b"a", tenant=b"a")
            engine.run()
            assert_exact(request)
        names = {}
        for i in range(6):
            tenant = b"ab"[i % 2 : i % 2 + 1]
            added = engine.add(text(9 if i == 4 else i, 100), max_tokens=1, namespace=tenant, tenant=tenant)
            names[added.request_id] = (tenant, i)
        order = []
        while engine.scheduler.has_unfinished:
            order += [names[step.request_id] for step in engine.step() if step.finish_reason]
        orders.append(order)

    def places(order: list[tuple[bytes, int]]) -> list[tuple[int, int]]:
        return [(place, i) for place, (tenant, i) in enumerate(order) if tenant == b"b"]

    assert places(orders[0]) == places(orders[1])
    assert orders[0] != orders[1]


def test_arrival_order_can_be_asked_for() -> None:
    engine = make_engine(max_num_seqs=1, admission_order="arrival")
    ask(engine, text(0, 100))
    engine.add(text(1, 40), max_tokens=1)
    engine.add(text(0, 100), max_tokens=1)

    steps = engine.step()

    assert steps[0].request_id == "r1"
    with pytest.raises(InvalidRequestError, match="admission_order"):
        SchedulerConfig(admission_order="random")  # type: ignore[arg-type]


def test_explain_names_the_first_differing_token_and_the_cause() -> None:
    engine = make_engine(num_blocks=20)

    def explain(tokens: list[int], namespace: bytes = b"") -> tuple[int, MissCause, int | None, int | None]:
        report = engine.manager.explain(namespace, [TokenId(token) for token in tokens])
        return report.matched_tokens, report.cause, report.wanted_token, report.stored_token

    prompt = text(1, 50)
    assert explain(prompt) == (0, MissCause.NEVER_SEEN, prompt[0], None)
    ask(engine, prompt, max_tokens=1)
    assert explain(prompt) == (49, MissCause.NONE, None, None)
    assert explain([*prompt[:20], 1001, 5, 6]) == (20, MissCause.CHANGED, 1001, prompt[20])
    assert explain([*prompt, 5, 6]) == (50, MissCause.NEVER_SEEN, 5, None)
    assert explain([1005, 6]) == (0, MissCause.CHANGED, 1005, prompt[0])
    assert explain(prompt, b"other") == (0, MissCause.OTHER_NAMESPACE, prompt[0], None)
    assert explain([prompt[0], 1005, 1006], b"other") == (0, MissCause.NEVER_SEEN, prompt[0], None)
    assert explain([1005] * 20, b"other") == (0, MissCause.NEVER_SEEN, 1005, None)
    ask(engine, text(2, 300), max_tokens=1)
    assert explain(prompt)[1] is MissCause.EVICTED
    assert make_engine("none").manager.explain(b"", [TokenId(1), TokenId(2)]).cause is MissCause.BYPASSED


@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_random_operations_leave_a_mirror_of_the_events_equal_to_the_index(kind: str) -> None:
    rng = random.Random(5)
    engine = make_engine(kind, num_blocks=40, token_budget=64, watermark=0.0, cache={"tenant_share": 0.7})
    index = engine.manager.prefix_cache
    events = engine.events
    mirror: set[bytes] = set()
    last_number = -1
    for _ in range(2_000):
        kind_of = rng.random()
        if kind_of < 0.2 and engine.scheduler.num_waiting < 10:
            tenant = rng.choice([b"a", b"b", b"c"])
            prompt = text(rng.randrange(3), rng.randrange(1, 120)) + text(rng.randrange(100), rng.randrange(5))
            engine.add(
                prompt, n=rng.choice([1, 1, 3]), max_tokens=rng.randrange(1, 40), namespace=tenant, tenant=tenant
            )
        elif kind_of < 0.25 and engine.requests:
            engine.scheduler.abort(rng.choice(list(engine.requests.values())).request_id)
        elif kind_of < 0.255:
            engine.manager.reset()
        else:
            engine.step()
        for number, event in events.take():
            assert number == last_number + 1
            last_number = number
            if isinstance(event, BlockStored):
                mirror |= set(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                assert set(event.block_hashes) <= mirror
                mirror -= set(event.block_hashes)
            else:
                assert isinstance(event, AllBlocksCleared)
                mirror.clear()
        assert isinstance(index, RadixPrefixCache | HashPrefixCache)
        assert mirror == set(index.stored_hashes())
    engine.run()
    for request in engine.requests.values():
        assert_exact(request)
    engine.manager.reset()
    assert engine.manager.pool.num_free == 40
