"""Why a request could not reuse an earlier one of the same caller: what differs first, and at which token."""

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from foreword.server.cache_policy.points import common_length

MAX_REQUESTS = 1024
MAX_TOKENS = 1 << 20


class Fingerprint(Struct, frozen=True):
    """A request: digests of its parts in the order in which they count, and its tokens."""

    namespace: bytes
    parts: Mapping[str, bytes]
    token_ids: "array[int]"


class Divergence(Struct, frozen=True):
    """What differs first. `part` is None where all named parts agree and only the tokens of the conversation differ."""

    part: str | None
    position: int  # leading tokens that are the same
    num_lost: int  # tokens of the earlier request behind it, as far as the new one is as long
    num_behind: int  # tokens of the new request behind it


class RequestMemory:
    """Fingerprints by the id of the answer, a bounded number of requests and of tokens. Any thread may call."""

    def __init__(self, max_requests: int = MAX_REQUESTS, max_tokens: int = MAX_TOKENS) -> None:
        self._max_requests, self._max_tokens = max_requests, max_tokens
        self._num_tokens = 0
        self._known: OrderedDict[str, Fingerprint] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, answer_id: str, fingerprint: Fingerprint) -> None:
        """Keep a request for later comparison; the oldest go first."""
        with self._lock:
            self._known[answer_id] = fingerprint
            self._num_tokens += len(fingerprint.token_ids)
            while len(self._known) > self._max_requests or self._num_tokens > self._max_tokens:
                _, gone = self._known.popitem(last=False)
                self._num_tokens -= len(gone.token_ids)

    def find(self, answer_id: str, namespace: bytes) -> Fingerprint | None:
        """An earlier request of the same namespace; None when it is unknown, or another's."""
        with self._lock:
            found = self._known.get(answer_id)
        return found if found is not None and found.namespace == namespace else None


def fingerprint(namespace: bytes, parts: Mapping[str, object], token_ids: Sequence[int]) -> Fingerprint:
    """A request as it is remembered. Cost: O(request)."""
    digests = {name: hashlib.sha256(msgspec.json.encode(value)).digest() for name, value in parts.items()}
    return Fingerprint(namespace, digests, array("i", token_ids))


def divergence(before: Fingerprint, now: Fingerprint) -> Divergence | None:
    """What keeps the later request from reading all of the earlier one; None when it only goes on from it."""
    position = common_length(before.token_ids, now.token_ids)
    part = next((name for name, digest in now.parts.items() if before.parts.get(name) != digest), None)
    if part is None and position == len(before.token_ids):
        return None
    shorter = min(len(before.token_ids), len(now.token_ids))
    return Divergence(part, position, shorter - position, len(now.token_ids) - position)
