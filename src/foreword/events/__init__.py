"""KV events on the wire: vLLM's encoding, a ZeroMQ publisher with replay, and a mirror of the index for consumers."""

from foreword.events.mirror import EventMirror
from foreword.events.options import EventOptions

__all__ = ["EventMirror", "EventOptions"]
