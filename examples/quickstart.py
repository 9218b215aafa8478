"""Ask a model one question, then another about the same text: the second reads the text from the cache.

python examples/quickstart.py MODEL
"""

import sys

from foreword import LLM, SamplingParams

FERRY = (
    "The ferry to Sellay leaves Kirkhaven at half past eight every morning, except on Sundays. The crossing takes two "
    "hours. Its captain is Joan Petrie, who used to be a music teacher, and dogs travel free."
)

llm = LLM(sys.argv[1])
params = SamplingParams(temperature=0, max_tokens=30)

for question in ("Who is the captain of the ferry?", "How long does the crossing take?"):
    [output] = llm.chat([{"role": "user", "content": f"{FERRY}\n\nQuestion: {question}"}], params)
    print(question)
    print(" ", output.outputs[0].text.strip())
    print(f"  ({output.usage.cached_tokens} of {output.usage.prompt_tokens} prompt tokens came from the cache)")
