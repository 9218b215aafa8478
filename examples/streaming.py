"""Show an answer while it is being written, and stop it early.

python examples/streaming.py MODEL
"""

import sys
from contextlib import closing

from foreword import LLM, SamplingParams

llm = LLM(sys.argv[1])
messages = [{"role": "user", "content": "Tell me a story about a lighthouse."}]

with closing(llm.stream_chat(messages, SamplingParams(temperature=0.7, seed=1, max_tokens=200))) as deltas:
    for delta in deltas:
        print(delta.text, end="", flush=True)
        if len(delta.output.outputs[0].token_ids) >= 40:
            break  # closing the stream ends the request in the engine too
print(f"\n(stopped after {delta.output.usage.completion_tokens} tokens, {llm.stats().num_running} still running)")
