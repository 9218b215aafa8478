"""Claims about the real model: what is read again, what is not, and what that costs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from foreword.bench.timing import StreamClock
from foreword.core.errors import InvariantError
from foreword.core.sampling_params import SamplingParams
from foreword.demo.claim import Bar, Claim
from foreword.llm import LLM, TextDelta

Show = Callable[[TextDelta], None]
QUESTIONS = (
    "Who was the first keeper of the lighthouse, and for how many years did she keep the light?",
    "What did the sailors of the coast call the rock before there was a light?",
)
REPEATS = 6  # of the document, so that there is something to read: some 3,000 tokens
_MIN_FALL = 0.80


class Asked(Struct, frozen=True):
    """One answer over a long document."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int  # prompt and generated tokens whose forward pass ran
    generated: int
    ttft_s: float
    decode_tok_s: float


def ask(llm: LLM, document: str, question: str, show: Show) -> Asked:
    """Stream an answer and tell what it took."""
    before = llm.stats().computed_tokens
    clock = StreamClock()
    messages = [{"role": "user", "content": f"{document}\n\n{question}"}]
    for delta in clock.watch(llm.stream_chat(messages, SamplingParams(temperature=0, max_tokens=48))):
        show(delta)
    if clock.output is None or clock.ttft_s is None:
        raise InvariantError("a stream ended without a token")
    usage = clock.output.usage
    computed = llm.stats().computed_tokens - before
    rate = clock.decode_tok_s or 0.0
    return Asked(usage.prompt_tokens, usage.cached_tokens, computed, usage.completion_tokens, clock.ttft_s, rate)


def shared_prefix(cold: Asked, warm: Asked) -> Claim:
    """TTFT of the second question over a document that was read for the first."""
    fall = 1 - warm.ttft_s / cold.ttft_s
    return Claim(
        "A shared prefix is prefilled once: time to the first token falls by 80 to 85 % and more",
        "80 % and more",
        f"{cold.ttft_s:.2f} s, then {warm.ttft_s:.3f} s: {fall:.1%} less",
        fall >= _MIN_FALL and warm.cached_tokens > 0.9 * warm.prompt_tokens,
        [Bar("cold", cold.ttft_s, f"{cold.ttft_s:.2f} s"), Bar("warm", warm.ttft_s, f"{warm.ttft_s:.3f} s")],
        f"{warm.cached_tokens:,} of {warm.prompt_tokens:,} prompt tokens from the cache",
    )


def prefill_alone(cold: Asked, warm: Asked) -> Claim:
    """Forward passes of both phases, by the engine's counters."""
    prefill = [asked.prompt_tokens - asked.cached_tokens for asked in (cold, warm)]
    decode = [asked.computed_tokens - tokens for asked, tokens in zip((cold, warm), prefill, strict=True)]
    return Claim(
        "Prefix caching saves prefill, not decode",
        "prefill falls, a step for each token but the first stays",
        f"prefill {prefill[0]:,} and {prefill[1]:,}; "
        f"decode {decode[0]} for {cold.generated} tokens and {decode[1]} for {warm.generated}",
        prefill[1] < prefill[0] / 5 and decode == [cold.generated - 1, warm.generated - 1],
        [Bar("cold prefill", prefill[0], f"{prefill[0]:,}"), Bar("warm prefill", prefill[1], f"{prefill[1]:,}")],
        f"decode ran at {cold.decode_tok_s:.0f} and {warm.decode_tok_s:.0f} tokens/s",
    )


def early_change(llm: LLM, document: str) -> Claim:
    """One word changed near the beginning: what would be read from the cache, and where it parts."""
    prompt = f"Notes of the harbour office, volume 1. {document}"
    llm.warm(prompt)
    changed = prompt.replace("volume 1", "volume 2", 1)
    report = llm.explain(changed)
    total = report.prompt_tokens
    return Claim(
        "Changing one early token loses everything after it",
        "a hit up to the changed token",
        f"{report.matched_tokens} of {total:,} tokens: stored {report.stored!r}, wanted {report.wanted!r}",
        0 < report.matched_tokens < 20 and (report.stored, report.wanted) == ("1", "2"),
        [
            Bar("same", total - 1, f"{total - 1:,} hit"),
            Bar("one token", report.matched_tokens, f"{report.matched_tokens} hit"),
        ],
        f"cause: {report.cause}",
    )


def parallel_samples(llm: LLM, tokens: Sequence[int]) -> Claim:
    """Blocks that n samples of one prompt hold together, for n of 1 to 8."""
    held = {n: _most_held(llm, tokens, n) for n in (1, 2, 4, 8)}
    size = llm.summary.block_size
    alone = -(-len(tokens) // size)
    own = 2  # 16 new tokens, wherever a block ends
    return Claim(
        "Parallel samples share the prompt's blocks",
        f"at most {alone} + {own} a sample, for n = 1 to 8",
        ", ".join(str(blocks) for blocks in held.values()) + f" blocks; unshared 8 would hold {8 * (alone + 1)}",
        all(alone <= blocks <= alone + own * n for n, blocks in held.items()),
        [Bar(f"n = {n}", blocks, str(blocks)) for n, blocks in held.items()],
        f"a prompt of {len(tokens)} tokens, 16 tokens generated",
    )


def _most_held(llm: LLM, tokens: Sequence[int], n: int) -> int:
    most = 0

    def look(**_: int) -> None:
        nonlocal most
        most = max(most, llm.stats().held_blocks)

    params = SamplingParams(n=n, max_tokens=16, ignore_eos=True, seed=1)
    llm.generate({"prompt_token_ids": list(tokens)}, params, progress=look)
    return most


def generated_elsewhere(model: Path, tokens: Sequence[int], **options: object) -> Claim:
    """A prompt with its answer as input, where generated tokens may not be hit: P first, all once it was input."""
    with LLM(model, **{**options, "reuse_generated": "off"}) as llm:
        params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
        answer = llm.generate({"prompt_token_ids": list(tokens)}, params)[0].outputs[0].token_ids
        whole = [*tokens, *answer, *tokens[:8]]
        once = SamplingParams(max_tokens=1)
        first, second = (llm.generate({"prompt_token_ids": whole}, once)[0].usage.cached_tokens for _ in range(2))
    return Claim(
        "P + R hits only P when R was generated and reuse_generated = off; once P + R was an input it hits whole",
        f"{len(tokens)}, then {len(whole) - 1}",
        f"{first}, then {second}",
        (first, second) == (len(tokens), len(whole) - 1),
        [Bar("R generated", first, str(first)), Bar("P + R read", second, str(second))],
        f"P of {len(tokens)} tokens, R of {len(answer)}; the last token of a prompt is always computed",
    )
