"""Why a prompt was not found, in words a person can act on."""

from enum import Enum

from msgspec import Struct


class MissCause(Enum):
    """What ended a match."""

    NONE = "none"  # nothing did: all that could hit has hit
    NEVER_SEEN = "never seen"  # what was stored ends here
    CHANGED = "changed"  # what was stored goes on with another token
    EVICTED = "evicted"  # it was stored, and pushed out
    EXPIRED = "expired"  # it was stored, its time ended, and then it was pushed out
    OTHER_NAMESPACE = "other namespace"  # stored where this request may not look; for the operator's eyes only
    UNDER_MINIMUM = "under minimum"  # shorter than what is served from the cache
    BYPASSED = "bypassed"  # the request or the settings did not ask the cache


class MissReport(Struct, frozen=True):
    """The nearest stored prefix, and the token at which the request parts from it."""

    matched_tokens: int
    cause: MissCause
    wanted_token: int | None = None  # the request's token at position `matched_tokens`
    stored_token: int | None = None  # the stored one there, newest if there are several, when cause is CHANGED
