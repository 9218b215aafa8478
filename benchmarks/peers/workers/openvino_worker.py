"""OpenVINO GenAI's continuous batching behind the protocol of `pipe_engine.py`.

Runs in OpenVINO's own environment: `python openvino_worker.py MODEL.gguf THREADS`.
"""

import json
import sys
import threading
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

CACHE_GIB = 3


def write(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def read_requests(requests: "SimpleQueue[dict[str, Any] | None]") -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    requests.put(None)


def settings(request: dict[str, Any]) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = request["num_tokens"]
    config.ignore_eos, config.do_sample = True, False
    if request["logprobs"]:
        config.logprobs = 1
    return config


def pass_on(number: int, handle: Any, logprobs: bool) -> bool:
    """Write what has come; True once nothing more will."""
    while handle.can_read():
        for output in handle.read().values():
            for token, logprob in zip(output.generated_ids, output.generated_log_probs, strict=True):
                event: dict[str, Any] = {"id": number, "token": int(token)}
                write(event | {"logprobs": [[int(token), float(logprob)]]} if logprobs else event)
    if "RUNNING" in str(handle.get_status()):
        return False
    write({"id": number, "done": True})
    return True


def main() -> None:
    path, threads = sys.argv[1], int(sys.argv[2])
    scheduling = genai.SchedulerConfig()
    scheduling.enable_prefix_caching, scheduling.dynamic_split_fuse = True, True
    scheduling.cache_size = CACHE_GIB
    pipeline = genai.ContinuousBatchingPipeline(path, scheduling, "CPU", {"INFERENCE_NUM_THREADS": threads})
    requests: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    threading.Thread(target=read_requests, args=(requests,), daemon=True).start()
    write({"ready": f"openvino {ov.__version__}, genai {genai.__version__}"})
    running: dict[int, tuple[Any, bool]] = {}
    while True:
        try:
            while (request := requests.get(block=not running)) is not None:
                tokens = ov.Tensor(np.array([request["prompt"]], np.int64))
                handle = pipeline.add_request(request["id"], tokens, settings(request))
                running[request["id"]] = (handle, bool(request["logprobs"]))
                if requests.empty():
                    break
            else:
                return
        except Empty:
            pass
        pipeline.step()
        for number, (handle, logprobs) in list(running.items()):
            if pass_on(number, handle, logprobs):
                del running[number]


if __name__ == "__main__":
    main()
