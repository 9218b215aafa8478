"""The plain `generate` of transformers behind the protocol of `pipe_engine.py`: f32, one request at a time, no cache.

Runs in an environment of its own: `python transformers_worker.py MODEL.gguf THREADS`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers


class Tokens:
    """Writes each token as it comes; the first thing it is given is the prompt."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._is_prompt = True

    def put(self, value: Any) -> None:
        """One step's token."""
        if self._is_prompt:
            self._is_prompt = False
            return
        print(json.dumps({"id": self._number, "token": int(value.reshape(-1)[0])}), flush=True)

    def end(self) -> None:
        """Nothing more comes."""


def answer(model: Any, request: dict[str, Any]) -> None:
    prompt, length = torch.tensor([request["prompt"]]), request["num_tokens"]
    fixed: dict[str, Any] = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False, "pad_token_id": 2}
    fixed["attention_mask"] = torch.ones_like(prompt)
    if not request["logprobs"]:
        model.generate(prompt, streamer=Tokens(request["id"]), **fixed)
    else:
        found = model.generate(prompt, return_dict_in_generate=True, output_logits=True, **fixed)
        for token, logits in zip(found.sequences[0, prompt.shape[1] :].tolist(), found.logits, strict=True):
            best = logits[0].float().log_softmax(-1).topk(request["logprobs"])
            pairs = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            print(json.dumps({"id": request["id"], "token": token, "logprobs": pairs}), flush=True)
    print(json.dumps({"id": request["id"], "done": True}), flush=True)


def main() -> None:
    path, threads = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.eval()
    print(json.dumps({"ready": f"transformers {transformers.__version__}, torch {torch.__version__}"}), flush=True)
    for line in sys.stdin:
        answer(model, json.loads(line))


if __name__ == "__main__":
    main()
