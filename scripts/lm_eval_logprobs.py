"""Log-likelihoods that lm-eval gets of a running server, cold and warm, beside those of `transformers` in f32.

Three steps, from the repository's root; the first and last need torch and transformers (the `golden` extra), the second
lm-eval (`pip install 'foreword[clients]'`), each in an environment of its own:

    python scripts/lm_eval_logprobs.py convert MODEL.gguf FOLDER   # tokenizer and dequantised f32 weights
    foreword serve -m MODEL.gguf --weights f32 --kv-dtype f32      # or -m FOLDER
    python scripts/lm_eval_logprobs.py run http://127.0.0.1:8000 FOLDER RESULT.json
    python scripts/lm_eval_logprobs.py compare FOLDER RESULT.json

`run` evaluates `tests/clients/lm_eval_task` twice on a server that was just started, and fails unless every number of
the second time is that of the first. `compare` fails if an item is further from the reference than 1e-3.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

TASK = Path("tests/clients/lm_eval_task")
TOLERANCE = 1e-3


def convert(gguf: str, folder: str) -> None:
    """A folder as `transformers` writes it, of the GGUF file's weights multiplied out."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = Path(gguf)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # as `make_golden_text.py` explains
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    settings = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    plain = type(model)(type(model.config)(**settings))  # one that has forgotten that it was quantised
    plain.load_state_dict(model.state_dict())
    plain.tie_weights()
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def run(url: str, folder: str, result: str) -> None:
    """Evaluate twice, and keep ids, numbers and counts."""
    from lm_eval import simple_evaluate
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as told:
        model = json.loads(told.read())["data"][0]["id"]
    lm = LocalCompletionsAPI(
        model=model, base_url=f"{url}/v1/completions", tokenizer=folder, tokenizer_backend="huggingface",
        tokenized_requests=True, num_concurrent=4, max_retries=1,
    )  # fmt: skip
    parse, hits = lm.parse_logprobs, [0]

    def parse_and_count(outputs: Any, **others: Any) -> Any:
        for answer in outputs if isinstance(outputs, list) else [outputs]:
            hits[-1] += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return parse(outputs, **others)

    lm.parse_logprobs = parse_and_count
    tasks, runs = TaskManager(include_path=str(TASK)), []
    for _ in range(2):
        found: Any = simple_evaluate(lm, tasks=["foreword_capitals"], task_manager=tasks, bootstrap_iters=0)
        runs.append((_items(lm, found), found["results"]))
        hits.append(0)
    (cold, told), (warm, _) = runs
    print(told, f"{len(cold)} log-likelihoods; tokens read from the cache: {hits[0]} cold, {hits[1]} warm")
    Path(result).write_text(json.dumps(cold))
    if cold != warm:
        sys.exit("warm differs from cold")
    print("warm equals cold, to the bit")


def compare(folder: str, result: str) -> None:
    """The sums of log-probabilities by one forward pass an item, without a cache."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    errors = []
    for item in json.loads(Path(result).read_text()):
        context, following = item["context"], item["following"]
        with torch.inference_mode():
            logits = model(torch.tensor([context + following])).logits[0, len(context) - 1 : -1]
        logprobs = torch.log_softmax(logits.double(), dim=-1)
        wanted = logprobs.gather(1, torch.tensor(following)[:, None]).sum().item()
        errors.append(abs(wanted - item["logprob"]))
    print(f"{len(errors)} items: largest difference {max(errors):.2e}, mean {sum(errors) / len(errors):.2e}")
    if max(errors) > TOLERANCE:
        sys.exit(f"more than {TOLERANCE:g}")


def _items(lm: Any, found: dict[str, Any]) -> list[dict[str, Any]]:
    items = []
    for sample in sorted(found["samples"]["foreword_capitals"], key=lambda sample: sample["doc_id"]):
        for asked, ((logprob, is_greedy),) in zip(sample["arguments"], sample["resps"], strict=True):
            context, following = lm._encode_pair(*asked)
            items.append(
                {"context": context, "following": following, "logprob": float(logprob), "is_greedy": bool(is_greedy)}
            )
    return items


if __name__ == "__main__":
    {"convert": convert, "run": run, "compare": compare}[sys.argv[1]](*sys.argv[2:])
