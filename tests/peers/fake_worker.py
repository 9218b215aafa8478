"""A worker of `pipe_engine.py`'s protocol that answers at once; told `broken`, it ends in the middle of an answer."""

import json
import sys

print("a remark of a library")
print(json.dumps({"ready": "fake 1.0"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    for token in range(asked["num_tokens"]):
        if "broken" in sys.argv and token == 2:
            sys.exit("out of luck")
        event = {"id": asked["id"], "token": token}
        print(json.dumps(event | {"logprobs": [[token, -1.0]]} if asked["logprobs"] else event), flush=True)
    print(json.dumps({"id": asked["id"], "done": True}), flush=True)
