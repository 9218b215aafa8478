"""Every bound of the server in one place. `docs/api.md` and the start-up summary tell them."""

from msgspec import Struct

MAX_PARTS = 100_000
"""Lists, objects and fields of objects in a body, and `MAX_VALUES` with what lists hold: decoded within 50 ms."""
MAX_VALUES = 500_000
MAX_PROMPTS = 128
"""Prompts of one request; prompts times `n` are bounded by the same number."""
MAX_DOCUMENTS = 1000
"""Documents or pairs of one request to rerank or score."""
MAX_INPUTS = 2048
"""Texts of one request for embeddings."""
MAX_N = 16
MAX_LOGPROBS = 20
MAX_PROMPT_LOGPROBS = 500_000
"""Log-probabilities of the prompts of one request, about 150 bytes each: two prompts of 8,192 tokens with 20 beside
each, or thirty with one."""
MAX_MESSAGES = 10_000
MAX_ITEMS = MAX_MESSAGES
"""Items of a conversation of `/v1/responses`, those of earlier responses with them."""
MAX_METADATA = 16
MAX_CACHE_KEY = 1024
"""Characters of a `prompt_cache_key`."""
MAX_KWARGS_BYTES = 64 << 10
"""Of variables for the chat template, as JSON."""
MAX_TEXT = 256
"""Characters of a caller's value that a log line or an error message may hold."""


class Limits(Struct, frozen=True, kw_only=True):
    """What a server takes in and how long it waits."""

    max_body_bytes: int = 8 << 20
    max_buffered_body_bytes: int = 64 << 20  # of all requests being received together
    max_head_bytes: int = 64 << 10  # request line and headers
    max_headers: int = 100
    max_connections: int = 1024
    max_queued_requests: int = 256  # waiting for their first token
    max_queued_tokens: int = 1 << 20
    queue_timeout_s: float = 60.0
    unmeasured_requests: int = 96  # that may wait while it is not known how many are served in a second
    head_timeout_s: float = 10.0  # from the connection, or its last answer, to the end of the headers
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0  # a client that reads nothing
    ping_interval_s: float = 15.0
    progress_interval_s: float = 1.0  # between comments on how far a long prompt is read, behind a first ping
    grace_s: float = 30.0  # for running answers after SIGTERM
    stuck_step_s: float = 30.0  # a step that takes longer makes the server unhealthy, and ends its requests
    exits_when_stuck: bool = False  # let a supervisor start a fresh process
    retry_after_s: int = 1
    response_cache_bytes: int = 0  # 0: no response cache
    response_cache_ttl_s: float = 3600.0
    response_store_bytes: int = 64 << 20  # of `/v1/responses`; 0: none are stored
    response_store_ttl_s: float = 86_400.0
