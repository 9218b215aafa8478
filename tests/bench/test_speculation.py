"""The speculation row: counts that hold on any machine, on the real model."""

from foreword.bench.bench import Bench
from foreword.bench.speculation import speculation
from foreword.llm import EngineOptions
from tests.smollm2 import SMOLLM2, needs_smollm2

pytestmark = needs_smollm2


def test_answers_that_copy_take_fewer_steps_than_tokens() -> None:
    options = EngineOptions(threads=2, kv_memory_bytes=48 << 20, max_model_len=1024)

    metrics = speculation(Bench(SMOLLM2, options, repeats=1), answer_tokens=40)

    for name in ("quote", "rag", "code", "prose"):
        tokens, steps = metrics[f"{name}_tokens"], metrics[f"{name}_steps"]
        drafted, accepted = metrics[f"{name}_drafted"], metrics[f"{name}_accepted"]
        assert isinstance(tokens, int)
        assert isinstance(steps, int)
        assert isinstance(accepted, int)
        assert 0 < steps <= tokens + 2
        assert tokens - steps <= accepted
        assert accepted <= drafted  # type: ignore[operator]  # counts of the same engine
    assert metrics["code_steps"] < 0.7 * metrics["code_tokens"]  # type: ignore[operator]  # checked above
