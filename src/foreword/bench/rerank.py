"""Rerank: many passages for one query, whose instruction and query are read once; or one by one, nothing shared.

The bound is arithmetic: without sharing each passage costs opening + passage, with it the passage alone, so the best
there is for n passages is n * (opening + passage) / (opening + n * passage), printed beside what came out.
"""

import math
import statistics
import time
from collections.abc import Sequence

from foreword.bench.bench import Bench
from foreword.bench.result import Metrics
from foreword.core.errors import InvariantError
from foreword.core.sampling_params import SamplingParams
from foreword.llm import LLM
from foreword.text.rerank_prompt import RerankPrompts, RerankSettings

PASSAGES, PASSAGE_TOKENS, CHECKED = 50, 200, 3
QUERY = "How do I read a file line by line without holding all of it in memory?"
GUIDE = """You judge whether a passage of technical documentation helps a programmer who asks the query below. \
Judge by this guide. A passage helps if it names the function, class or option that does what is asked, says how \
it is called, or warns of a mistake that people make with it. It helps too if it explains an idea without which \
the answer can't be understood. It does not help if it only shares words with the query: a passage on files need \
not be one on reading them, and a passage on memory need not be one on files. It does not help if it is about \
another language, another version, or another module that merely has a function of the same name. A long passage \
counts by its best part; a list of names without explanations does not help, and neither do licences, tables of \
contents, change logs and acknowledgements. If the passage contradicts itself, judge by what it says last. If \
you can't decide, take the side of the programmer's time: would you show this passage among the first three? Do \
not reward style, length or politeness. Judge the passage alone, not what you know of the matter beside it"""


def rerank(bench: Bench, *, num_passages: int = PASSAGES, passage_tokens: int = PASSAGE_TOKENS) -> Metrics:
    """50 passages of about 200 tokens for one query under a guide, together, and one by one without a cache."""
    together, alone = bench.open(), bench.open(prefix_cache="none")
    settings = RerankSettings(instruction=GUIDE)
    opening = len(RerankPrompts(together.rerank_format, settings, together.tokenizer).before(QUERY))
    shared_s, alone_s, differing, computed, prompts = [], [], 0, 0, 0
    errors: list[float] = []
    for _ in bench.rounds("rerank"):
        passages = [together.tokenizer.decode(bench.prompt(passage_tokens)) for _ in range(num_passages)]
        together.reset()
        started = time.perf_counter()
        output = together.rerank(QUERY, passages, settings)
        shared_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        scores = [alone.score(QUERY, passage, settings)[0].score for passage in passages]
        alone_s.append(time.perf_counter() - started)
        expected = sorted(range(num_passages), key=lambda i: (-scores[i], i))
        if [result.index for result in output.results] != expected:
            raise InvariantError("the order is not that of the passages ranked one by one")
        differing += sum(result.relevance_score != scores[result.index] for result in output.results)
        computed, prompts = output.usage.computed_tokens, output.usage.prompt_tokens
        errors += _errors(alone, passages[:CHECKED], scores, settings)
    return {
        "wall_s": statistics.median(shared_s),
        "one_by_one_uncached_s": statistics.median(alone_s),
        "uncached_over_shared": statistics.median(a / s for a, s in zip(alone_s, shared_s, strict=True)),
        "bound": prompts / (opening + prompts - num_passages * opening),
        "computed_tokens": computed,
        "once_tokens": opening + prompts - num_passages * opening,
        "prompt_tokens": prompts,
        "opening_tokens": opening,
        "passages": num_passages,
        "differing_scores": differing,
        "reference_error": max(errors),
        "repeats": bench.repeats,
    }


def _errors(llm: LLM, passages: Sequence[str], scores: Sequence[float], settings: RerankSettings) -> list[float]:
    """Distance of some scores from those by another way: the logprob of each label written behind its prompt."""
    made = RerankPrompts(llm.rerank_format, settings, llm.tokenizer)
    before = made.before(QUERY)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    errors = []
    for passage, score in zip(passages, scores, strict=False):
        ids, _ = made.prompt(before, passage, llm.summary.max_model_len - 2)
        found = []
        for label in made.label_ids:
            output = llm.generate({"prompt_token_ids": [*ids, label]}, params)[0]
            position = output.prompt_logprobs[-1] if output.prompt_logprobs else None
            if position is None:
                raise InvariantError("a prompt's last token has no logprob")
            found.append(math.exp(position[label].logprob))
        errors.append(abs(found[0] / (found[0] + found[1]) - score))
    return errors
