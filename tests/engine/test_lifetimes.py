"""The engine passes its caller's clock on: a leased prefix stays for its time, renewed by hits, and not longer."""

from tests.engine.test_engine import backend as backend
from tests.engine.test_engine import model as model
from tests.engine.test_engine import run

from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Lease
from foreword.core.types import TokenId
from foreword.engine.engine import Engine
from foreword.kv_cache.explain import MissCause
from foreword.models.base import Model
from foreword.ops.backend import Backend
from foreword.runner.kv_storage import KVStorage
from foreword.runner.model_runner import ModelRunner

MINUTE = 60_000
PARAMS = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)


def test_a_lifetime_is_counted_by_the_callers_clock_from_each_use(model: Model, backend: Backend) -> None:
    clock = [10**9]
    cache = CacheConfig(num_blocks=32, block_size=8, prefix_cache="radix", retention="lru", debug=True)
    config = SchedulerConfig(max_model_len=200)
    runner = ModelRunner(model, backend, KVStorage(model.config, cache), cache.block_size, config.token_budget)
    engine = Engine(runner, cache, config, clock=lambda: clock[0])
    kept = [TokenId(5)] * 32

    def ask(name: str, ids: list[TokenId], *leases: Lease) -> None:
        engine.add(name, ids, PARAMS, leases=leases)
        run(engine)

    def flood(name: str) -> int:
        for i in range(6):
            ask(f"{name} {i}", [TokenId(10 + i)] * 100)
        return engine.query_cache(b"", [*kept, TokenId(0)])

    ask("first", [*kept, TokenId(1)], Lease(32, 5 * MINUTE))
    clock[0] += 4 * MINUTE
    assert flood("within") == 32

    ask("hit", [*kept, TokenId(2)])
    clock[0] += 4 * MINUTE
    assert flood("within, from the hit") == 32

    clock[0] += 5 * MINUTE
    assert flood("beyond") == 0
    assert engine.explain_cache(b"", [*kept, TokenId(0)]).cause is MissCause.EXPIRED
    assert engine.step().step == engine.stats().num_steps + 1
