"""Prompt lookup against one token a step: answers that say again what stands before them, and one that does not.

quote    a document, to be repeated word for word
rag      a document, and a question about it
code     a function of the standard library, to be written again with a variable renamed
prose    a story, with nothing to copy

Both engines answer in turns, and every token must be the same. Steps are a count and hold on any machine; times are
ratios of two runs beside each other. The answer's first token, and with it the prompt, is not in them.
"""

import inspect
import statistics
import textwrap
import time

from foreword.bench.bench import Bench
from foreword.bench.result import Metrics
from foreword.core.errors import InvariantError
from foreword.core.sampling_params import SamplingParams
from foreword.llm import LLM

ANSWER_TOKENS, DOCUMENT_TOKENS = 200, 300


def speculation(bench: Bench, *, answer_tokens: int = ANSWER_TOKENS) -> Metrics:
    """One stream at temperature 0, four kinds of answers, at most 200 tokens each."""
    drafting, plain = bench.open(speculation="prompt_lookup"), bench.open(speculation="off")
    document = drafting.tokenizer.decode(bench.prompt(DOCUMENT_TOKENS))
    code = inspect.getsource(textwrap.dedent)
    questions = {
        "quote": f"Repeat this text word for word:\n\n{document}",
        "rag": f"Document:\n\n{document}\n\nWhat does the document say? Answer with its own words.",
        "code": "Rename the variable `margin` to `indent` in this Python function and write the whole function again."
        f"\n\n```python\n{code}```",
        "prose": "Write a story about a lighthouse keeper who finds a letter in a bottle.",
    }
    metrics: dict[str, object] = {}
    for name, question in questions.items():
        ratios: list[float] = []
        found: dict[LLM, _Answer] = {}
        for _ in bench.rounds(f"speculation, {name}"):
            for llm in (drafting, plain):
                found[llm] = _Answer(llm, question, answer_tokens)
            ratios.append(found[plain].seconds / found[drafting].seconds)
        mine, theirs = found[drafting], found[plain]
        if mine.token_ids != theirs.token_ids:
            raise InvariantError(f"speculation changed the answer to {name}")
        metrics |= {
            f"{name}_plain_over_drafting": statistics.median(ratios),
            f"{name}_plain_over_drafting_min_max": [min(ratios), max(ratios)],
            f"{name}_tokens": len(mine.token_ids),
            f"{name}_steps": mine.steps,
            f"{name}_drafted": mine.drafted,
            f"{name}_accepted": mine.accepted,
        }
    return metrics | {"repeats": bench.repeats}


class _Answer:
    """One answer behind a prompt that was just read, and what it cost."""

    def __init__(self, llm: LLM, question: str, answer_tokens: int) -> None:
        messages = [{"role": "user", "content": question}]
        llm.chat(messages, SamplingParams(temperature=0, max_tokens=1))
        before = llm.stats()
        started = time.perf_counter()
        (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=answer_tokens))
        self.seconds = time.perf_counter() - started
        after = llm.stats()
        self.token_ids = output.outputs[0].token_ids
        self.steps = after.num_steps - before.num_steps
        self.drafted = after.drafted_tokens - before.drafted_tokens
        self.accepted = after.accepted_tokens - before.accepted_tokens
