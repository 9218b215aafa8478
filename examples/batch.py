"""Many prompts at once, each with its own settings; token ids are prompts too.

python examples/batch.py MODEL
"""

import sys

from foreword import LLM, SamplingParams

llm = LLM(sys.argv[1], max_num_seqs=8)
capitals = [f"The capital of {country} is" for country in ("France", "Italy", "Spain", "Japan")]
plain = SamplingParams(temperature=0, max_tokens=8, stop=["."])
varied = SamplingParams(temperature=0.8, seed=7, n=2, max_tokens=8, logprobs=1)
ids = llm.tokenizer.encode("Once upon a time", add_special_tokens=True, parse_special=False)

outputs = llm.generate([*capitals, {"prompt_token_ids": ids}], [*[plain] * len(capitals), varied])

for output in outputs:
    for answer in output.outputs:
        print(f"{output.prompt or output.prompt_token_ids} … {answer.text.strip()!r} [{answer.finish_reason}]")
print(f"log-probability of the last answer: {outputs[-1].outputs[-1].cumulative_logprob:.2f}")
print(f"{llm.stats().num_steps} steps for {sum(o.usage.completion_tokens for o in outputs)} tokens")
