"""A server that speaks like `llama-server` or `foreword serve`, after a rule a test can foresee: token k comes as `tk`.

`python fake_server.py KIND --port PORT`; the rest of the command line is not read, as long as `--fail` is not in it.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KIND = sys.argv[1]


def events(asked: dict[str, Any]) -> list[dict[str, Any]]:
    if "--error" in sys.argv:
        return [{"error": {"message": "a step took too long"}}]
    if KIND == "llama":
        count = asked["n_predict"]
        found = [
            {"content": f"t{k}", "completion_probabilities": [{"top_logprobs": [{"id": k, "logprob": -0.5}]}]}
            for k in range(count)
        ]
        return [*found, {"content": "", "timings": {"predicted_n": count, "cache_n": 3}}]
    count = asked["max_tokens"]
    pieces: list[dict[str, Any]] = [
        {"choices": [{"text": f"t{k}", "logprobs": {"top_logprobs": [{f"t{k}": -0.25}]}}]} for k in range(count)
    ]
    usage = {"completion_tokens": count, "prompt_tokens_details": {"cached_tokens": 5}}
    return [*pieces, {"choices": [], "usage": usage}]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        for event in events(asked):
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    if "--version" in sys.argv:
        print(f"{KIND} version 7.7")
        sys.exit()
    if "--fail" in sys.argv:
        sys.exit("model: not what I read")
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
