"""From options to a publisher that runs, or one line that says why not."""

from collections.abc import Sequence
from typing import Protocol

from foreword.core.errors import ForewordError
from foreword.events.options import EventOptions
from foreword.kv_cache.events import CacheEvent


class EventPublisher(Protocol):
    """Takes numbered events without ever making the engine wait."""

    @property
    def endpoint(self) -> str:
        """Where subscribers connect."""
        ...

    @property
    def replay_endpoint(self) -> str:
        """Where replays are asked for."""
        ...

    def publish(self, events: Sequence[tuple[int, CacheEvent]]) -> None:
        """Publish one batch."""
        ...

    def close(self) -> None:
        """Send what is queued and stop."""
        ...


def open_publisher(options: EventOptions) -> EventPublisher:
    """A publisher that has started.

    Raises:
        ForewordError: pyzmq is not installed, or an address can't be had.
    """
    try:
        from foreword.events.publisher import ZmqEventPublisher
    except ModuleNotFoundError as error:
        if error.name != "zmq":
            raise
        raise ForewordError("kv_events: pyzmq is not installed; pip install 'foreword[events]'") from None
    publisher = ZmqEventPublisher(options)
    publisher.start()
    return publisher
