"""Where KV events are published, in which form, and who may reach them."""

import re
from ipaddress import ip_address
from typing import Literal

from msgspec import Struct

from foreword.core.errors import InvalidRequestError

EventForm = Literal["map", "array"]

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/\s]+):(?P<port>\d{1,5}|\*)")
_IPC = re.compile(r"ipc://\S+")
_FORMS = "tcp://HOST:PORT or ipc://PATH"
_MAX_TOPIC = 256


class EventOptions(Struct, frozen=True, kw_only=True):
    """How KV events are published.

    `tcp://127.0.0.1:5557` takes that port for the stream and the next one for replay, unless `replay_endpoint` names
    another; port 0 or `*` takes free ones.

    Raises:
        InvalidRequestError: a value is out of range, or an endpoint is open to other machines without `allow_remote`.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    form: EventForm = "map"
    int_hashes: bool = False
    allow_remote: bool = False
    open_namespace: bytes = b""

    def __post_init__(self) -> None:
        if self.form not in ("map", "array"):
            raise InvalidRequestError("kv_events.form", "map or array", self.form)
        if not isinstance(self.topic, str) or len(self.topic) > _MAX_TOPIC:
            raise InvalidRequestError("kv_events.topic", f"at most {_MAX_TOPIC} characters", self.topic)
        _check_endpoint("kv_events", self.endpoint, allow_remote=self.allow_remote)
        if self.replay_endpoint is not None:
            _check_endpoint("kv_events.replay_endpoint", self.replay_endpoint, allow_remote=self.allow_remote)
        self.bind_endpoints()

    def bind_endpoints(self) -> tuple[str, str]:
        """Addresses to bind, as ZeroMQ spells them: of the stream, of the replay.

        Raises:
            InvalidRequestError: the two are the same, or there is no port after the stream's.
        """
        stream = _bindable(self.endpoint)
        if self.replay_endpoint is None:
            return stream, _beside(stream)
        replay = _bindable(self.replay_endpoint)
        if replay == stream and not replay.endswith(":*"):
            raise InvalidRequestError("kv_events.replay_endpoint", "another address than the stream's", replay)
        return stream, replay


def event_options(value: object) -> EventOptions:
    """`kv_events` as a caller gives it: an endpoint, or `EventOptions`.

    Raises:
        InvalidRequestError: neither, or not usable.
    """
    if isinstance(value, EventOptions):
        return value
    if not isinstance(value, str):
        raise InvalidRequestError("kv_events", f"{_FORMS}, or EventOptions", value)
    return EventOptions(endpoint=value)


def _check_endpoint(field: str, endpoint: object, *, allow_remote: bool) -> None:
    if not isinstance(endpoint, str) or not (_TCP.fullmatch(endpoint) or _IPC.fullmatch(endpoint)):
        raise InvalidRequestError(field, _FORMS, endpoint)
    match = _TCP.fullmatch(endpoint)
    if match is None:
        return
    if match["port"] != "*" and int(match["port"]) > 65535:
        raise InvalidRequestError(field, "a port from 0 to 65535", endpoint)
    if not allow_remote and not _is_loopback(match["host"]):
        raise InvalidRequestError(
            field, "an address of this machine alone such as tcp://127.0.0.1:5557, unless others are allowed", endpoint
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name or an interface: what it stands for is not known here


def _bindable(endpoint: str) -> str:
    match = _TCP.fullmatch(endpoint)
    if match is None:
        return endpoint
    host = "127.0.0.1" if match["host"] == "localhost" else match["host"]
    return f"tcp://{host}:{'*' if match['port'] == '*' or int(match['port']) == 0 else match['port']}"


def _beside(stream: str) -> str:
    if stream.startswith("ipc://"):
        return f"{stream}-replay"
    head, _, port = stream.rpartition(":")
    if port == "*":
        return stream
    if int(port) == 65535:
        raise InvalidRequestError("kv_events", "a port below 65535, as replay takes the next one", stream)
    return f"{head}:{int(port) + 1}"
