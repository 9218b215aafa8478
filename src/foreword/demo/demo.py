"""All rows, in the order of design section 7."""

from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from msgspec import Struct

from foreword.bench.bench import fixed_length
from foreword.demo import counted, measured
from foreword.demo.answered import deterministic_repeat
from foreword.demo.claim import Claim
from foreword.llm import LLM, TextDelta


class Stage(Struct, frozen=True):
    """What a person watching is told: which part runs, and the text of answers as it comes."""

    begin: Callable[[str], None]
    show: Callable[[TextDelta], None]
    told: Callable[[measured.Asked], None]  # an answer's account, once it is there


def document() -> str:
    """The text that questions are asked about."""
    return resources.files("foreword.demo").joinpath("lighthouse.txt").read_text(encoding="utf-8")


def run_demo(model: Path, stage: Stage, **options: object) -> Iterator[Claim]:
    """Measure every claim on a model; yields each row as it is known.

    Raises:
        ForewordError: no usable model there, or an option out of range.
    """
    stage.begin("counting: scheduler, pool and planner, without a model")
    yield counted.naive_loop()
    yield counted.step_cost()
    yield counted.kv_bytes()
    yield counted.llama_2_70b()
    yield from counted.paging()
    with LLM(model, **options) as llm:
        llm.generate("The sea", fixed_length(8))  # kernels and pages are warm before anything is timed
        text = "\n\n".join([document()] * measured.REPEATS)
        stage.begin(f"cold: {measured.QUESTIONS[0]}")
        cold = measured.ask(llm, text, measured.QUESTIONS[0], stage.show)
        stage.told(cold)
        stage.begin(f"warm: {measured.QUESTIONS[1]}")
        warm = measured.ask(llm, text, measured.QUESTIONS[1], stage.show)
        stage.told(warm)
        yield measured.shared_prefix(cold, warm)
        yield measured.prefill_alone(cold, warm)
        stage.begin("one early token changed; parallel samples; answers that were generated here")
        yield measured.early_change(llm, document())
        tokens = llm.tokenizer.encode(document(), add_special_tokens=False)
        yield measured.parallel_samples(llm, tokens[:400])
        threads = llm.summary.threads
    yield measured.generated_elsewhere(model, tokens[:100], **options)
    stage.begin("a server of its own, asked the same twice")
    yield deterministic_repeat(model, threads)
