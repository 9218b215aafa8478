"""The plain `generate` of transformers behind the protocol of `pipe_engine.py`: f32, no prefix cache.

Requests that arrive together run as one batch, padded on the left, to its end; what comes later waits: there is no more
to `generate`. Runs in an environment of its own: `python transformers_worker.py MODEL.gguf THREADS FOLDER`; FOLDER
keeps the dequantised model, since to dequantise it takes minutes on a busy machine, which no start should pay for.
"""

import json
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch
import transformers

PADDING = 2
ARRIVE_TOGETHER_S = 0.05


class Tokens:
    """Writes each step's tokens as they come; the first thing it is given are the prompts."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers
        self._are_prompts = True

    def put(self, value: Any) -> None:
        """One step's tokens, one a request."""
        if self._are_prompts:
            self._are_prompts = False
            return
        for number, token in zip(self._numbers, value.reshape(-1).tolist(), strict=True):
            write({"id": number, "token": token})

    def end(self) -> None:
        """Nothing more comes."""


def write(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def answer(model: Any, batch: list[dict[str, Any]]) -> None:
    prompts, length = [request["prompt"] for request in batch], batch[0]["num_tokens"]
    longest = max(map(len, prompts))
    tokens = torch.tensor([[PADDING] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    fixed: dict[str, Any] = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False}
    fixed |= {"attention_mask": mask, "pad_token_id": PADDING}
    if any(request["logprobs"] for request in batch):
        found = model.generate(tokens, return_dict_in_generate=True, output_logits=True, **fixed)
        for row, request in enumerate(batch):
            write_with_logprobs(request, found.sequences[row, longest:].tolist(), [step[row] for step in found.logits])
    else:
        model.generate(tokens, streamer=Tokens([request["id"] for request in batch]), **fixed)
    for request in batch:
        write({"id": request["id"], "done": True})


def write_with_logprobs(request: dict[str, Any], tokens: list[int], logits: list[Any]) -> None:
    for token, values in zip(tokens, logits, strict=True):
        best = values.float().log_softmax(-1).topk(max(1, request["logprobs"]))
        pairs = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        write({"id": request["id"], "token": token, "logprobs": pairs})


def read_requests(requests: "SimpleQueue[dict[str, Any] | None]") -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    requests.put(None)


def next_batch(requests: "SimpleQueue[dict[str, Any] | None]", held: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What arrived together and is of one length; what is of another stays in `held`. Empty at the end."""
    if not held:
        first = requests.get()
        if first is None:
            return []
        held.append(first)
    try:
        while (request := requests.get(timeout=ARRIVE_TOGETHER_S)) is not None:
            held.append(request)
        requests.put(None)  # the end is still to come
    except Empty:
        pass
    length = held[0]["num_tokens"]
    batch = [request for request in held if request["num_tokens"] == length]
    held[:] = [request for request in held if request["num_tokens"] != length]
    return batch


def load(path: Path, kept: Path) -> Any:
    """The model in f32, dequantised the first time alone."""
    if not kept.exists():
        unfinished = kept.with_suffix(".part")
        plain(transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)).save_pretrained(
            unfinished
        )
        unfinished.rename(kept)
    return transformers.AutoModelForCausalLM.from_pretrained(kept, dtype=torch.float32).eval()


def plain(dequantised: Any) -> Any:
    """The same weights in a model that knows of no file: transformers refuses to save one that does."""
    settings = dequantised.config.to_dict()
    for key in ("quantization_config", "_name_or_path"):
        settings.pop(key, None)
    model = transformers.AutoModelForCausalLM.from_config(type(dequantised.config)(**settings), dtype=torch.float32)
    model.load_state_dict(dequantised.state_dict())
    model.tie_weights()
    return model


def main() -> None:
    path, threads, kept = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    model = load(path, kept)
    write({"ready": f"transformers {transformers.__version__}, torch {torch.__version__}"})
    requests: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    threading.Thread(target=read_requests, args=(requests,), daemon=True).start()
    held: list[dict[str, Any]] = []
    while batch := next_batch(requests, held):
        answer(model, batch)


if __name__ == "__main__":
    main()
