"""`foreword serve`: the model behind OpenAI's and Anthropic's HTTP dialects."""

from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import asdict, replace

from foreword.cli.console import human_bytes, remark, write_json, write_text
from foreword.cli.options import JsonFlag, ModelOptions, QuietFlag, grouped, parse_bytes
from foreword.cli.session import collector_held, find_model, summary_lines

if TYPE_CHECKING:
    from socket import socket

    from foreword.events import EventOptions
    from foreword.llm import EngineOptions
    from foreword.llm.loading import LoadedModel
    from foreword.server.cache_policy.emulation import Emulation
    from foreword.server.limits import Limits
    from foreword.server.recording import TraceRecorder
    from foreword.server.tenants import KeyRing

_SERVER = "Server"
_EVENTS = "KV events"


class Provider(StrEnum):
    """Whose rules of caching are followed."""

    openai = "openai"
    anthropic = "anthropic"


class EventForm(StrEnum):
    """How an event is encoded."""

    map = "map"
    array = "array"


class ServerOptions(Struct, frozen=True, kw_only=True):
    """Where it listens, who may ask, and how much may wait."""

    host: Annotated[str, typer.Option(help="Address to listen on. Others than the loopback's need --api-keys.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 8000
    api_keys: Annotated[
        str | None, typer.Option(help="File of hashed keys; with it every route but /health and /ready needs one.")
    ] = None
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name that clients ask for; may be repeated.", rich_help_panel=_SERVER)
    ] = None
    max_queued: Annotated[
        int, typer.Option(min=1, help="Requests that may wait before others get 429.", rich_help_panel=_SERVER)
    ] = 256
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds running answers get after SIGTERM.", rich_help_panel=_SERVER)
    ] = 30.0
    publish: Annotated[
        list[str] | None,
        typer.Option(
            help="File or folder of prompt beginnings that every tenant's prompts may share: .txt as it is, or .json; "
            "may be repeated.",
            rich_help_panel=_SERVER,
        ),
    ] = None
    stuck_after: Annotated[
        float,
        typer.Option(
            min=0.1, help="Seconds a step may take before the server counts as stuck.", rich_help_panel=_SERVER
        ),
    ] = 30.0
    exit_when_stuck: Annotated[
        bool,
        typer.Option(
            "--exit-when-stuck", help="Then end with code 70, for a supervisor to start anew.", rich_help_panel=_SERVER
        ),
    ] = False
    response_cache: Annotated[
        str | None,
        typer.Option(
            help="Keep up to so many bytes of whole answers, e.g. 64MiB, and give them again to the same tenant's same "
            "request. Default: none.",
            rich_help_panel=_SERVER,
        ),
    ] = None
    response_cache_ttl: Annotated[
        float, typer.Option(min=0, help="Seconds an answer is kept.", rich_help_panel=_SERVER)
    ] = 3600.0
    response_store: Annotated[
        str,
        typer.Option(
            help="Keep up to so many bytes of /v1/responses, to be continued and retrieved. 0: none.",
            rich_help_panel=_SERVER,
        ),
    ] = "64MiB"
    response_store_ttl: Annotated[
        float, typer.Option(min=0, help="Seconds a response is kept.", rich_help_panel=_SERVER)
    ] = 86_400.0
    record: Annotated[
        str | None,
        typer.Option(
            help="Append a trace of all requests to this file, for foreword replay: hashes, lengths, times, no text.",
            rich_help_panel=_SERVER,
        ),
    ] = None
    record_block: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --record: tokens a hash. Default: a KV block; 1 is exact.", rich_help_panel=_SERVER
        ),
    ] = None
    emulate: Annotated[
        Provider | None,
        typer.Option(help="Count cached tokens as this provider does, for tests.", rich_help_panel=_SERVER),
    ] = None
    emulate_minimum: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --emulate: fewest tokens cached. Default: by model name.",
            rich_help_panel=_SERVER,
        ),
    ] = None
    new_key: Annotated[
        str | None,
        typer.Option(help="Print a new key for this name, and its line for --api-keys; serve nothing."),
    ] = None
    operator: Annotated[bool, typer.Option("--operator", help="With --new-key: an operator's key.")] = False

    def emulation(self) -> "Emulation | None":
        """The provider whose rules the account follows; None for the engine's own account."""
        if self.emulate is None:
            return None
        from foreword.server.cache_policy.emulation import Emulation

        return Emulation(self.emulate.value, minimum=self.emulate_minimum)

    def recording(self, block_size: int) -> "AbstractContextManager[TraceRecorder | None]":
        """What records the traffic while it is open, if it is to be.

        Raises:
            ForewordError: the file can't be written, or the size is none.
        """
        if self.record is None:
            return nullcontext()
        from foreword.server.recording import TraceRecorder

        return TraceRecorder(Path(self.record), self.record_block or block_size)

    def limits(self) -> "Limits":
        """The server's bounds.

        Raises:
            InvalidRequestError: `--response-cache` or `--response-store` is not a size.
        """
        from foreword.server.limits import Limits

        size = self.response_cache
        return Limits(
            max_queued_requests=self.max_queued,
            grace_s=self.grace,
            stuck_step_s=self.stuck_after,
            exits_when_stuck=self.exit_when_stuck,
            response_cache_bytes=0 if size is None else parse_bytes("response_cache", size),
            response_cache_ttl_s=self.response_cache_ttl,
            response_store_bytes=0
            if self.response_store == "0"
            else parse_bytes("response_store", self.response_store),
            response_store_ttl_s=self.response_store_ttl,
        )


class EventFlags(Struct, frozen=True, kw_only=True):
    """Whether and how it is told what becomes findable and what ceases to be."""

    kv_events: Annotated[
        str | None,
        typer.Option(
            help="Publish KV events over ZeroMQ at tcp://127.0.0.1:PORT or ipc://PATH; replay takes the next port. "
            "They hold every prompt's tokens.",
            rich_help_panel=_EVENTS,
        ),
    ] = None
    kv_events_topic: Annotated[str, typer.Option(help="As in kv@POD@MODEL.", rich_help_panel=_EVENTS)] = ""
    kv_events_form: Annotated[
        EventForm, typer.Option(help="array: for consumers older than vLLM's maps.", rich_help_panel=_EVENTS)
    ] = EventForm.map
    kv_events_int_hashes: Annotated[
        bool, typer.Option("--kv-events-int-hashes", help="Hashes as 64-bit integers.", rich_help_panel=_EVENTS)
    ] = False
    kv_events_remote: Annotated[
        bool,
        typer.Option("--kv-events-remote", help="Allow an address that others can reach.", rich_help_panel=_EVENTS),
    ] = False

    def options(self, keys: "KeyRing") -> "EventOptions | None":
        """The same for the engine. Without keys there is one tenant, whose blocks need no mark.

        Raises:
            InvalidRequestError: the endpoint can't be used.
        """
        if self.kv_events is None:
            return None
        from foreword.events import EventOptions

        return EventOptions(
            endpoint=self.kv_events,
            topic=self.kv_events_topic,
            form=self.kv_events_form.value,
            int_hashes=self.kv_events_int_hashes,
            allow_remote=self.kv_events_remote,
            open_namespace=keys.local.namespace() if keys.is_open else b"",
        )


@grouped
def serve(
    model_name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="As --model: a pulled name, a .gguf file or a folder.")
    ] = None,
    *,
    model: ModelOptions,
    server: ServerOptions,
    events: EventFlags,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Serve a model to OpenAI and Anthropic clients."""
    if server.new_key is not None:
        _print_new_key(server.new_key, is_operator=server.operator)
        return
    if model_name is not None:
        model = replace(model, model=model_name)
    with ExitStack() as held:
        with collector_held():
            path, options = find_model(model.model), model.engine_options()
            from foreword.llm.loading import Loading
            from foreword.server.listening import bind, check_exposure
            from foreword.server.tenants import KeyRing

            keys = KeyRing() if server.api_keys is None else KeyRing.from_file(Path(server.api_keys))
            check_exposure(server.host, has_keys=not keys.is_open)
            limits = server.limits()
            options = replace(options, kv_events=events.options(keys))
            listening = held.enter_context(bind(server.host, server.port))
            recorder = held.enter_context(server.recording(options.block_size))
            with Loading(path, options) as loading:
                # Imports are all Python's, packing is none of it: they take a core each.
                from foreword.server.logs import set_up_logging
                from foreword.server.publishing import publish_files
                from foreword.server.service import Service
                from foreword.server.serving import serve as run

                loaded = held.enter_context(closing(loading.finish()))
            names = server.served_model_name or [_default_name(model.model, path)]
            service = Service(loaded, names=names, keys=keys, limits=limits, emulation=server.emulation())
        service.recorder = recorder
        published = publish_files(service, [Path(file) for file in server.publish or ()])
        url = _url(listening)
        if json:
            write_json({"url": url, "models": names, "keys": keys.num_keys, "engine": asdict(loaded.summary)})
        elif not quiet:
            for line in start_lines(loaded, options, keys, service.limits, url, names):
                remark(line)
            for name, num_tokens in published.items():
                remark(f"published {name}: {num_tokens:,} tokens that every tenant's prompts may begin with")
        set_up_logging()
        run(service, server.host, listening, None if server.api_keys is None else Path(server.api_keys))


def _url(listening: "socket") -> str:
    address, port = listening.getsockname()[:2]
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def start_lines(
    loaded: "LoadedModel", options: "EngineOptions", keys: "KeyRing", limits: "Limits", url: str, names: list[str]
) -> list[str]:
    """What is served with what, and what is open to whom."""
    from foreword.server.gate import OPEN_PATHS, OPERATOR_PATHS

    if keys.is_open:
        access = "no keys: open to this machine alone, as one tenant"
    else:
        opened, operators = (", ".join(sorted(paths)) for paths in (OPEN_PATHS, OPERATOR_PATHS))
        access = f"{keys.num_keys} keys, a cache for each name · open without: {opened} · operators only: {operators}"
    return [
        *summary_lines(loaded.summary, options),
        f"up to {options.max_num_seqs} sequences at once · queue of {limits.max_queued_requests} requests, "
        f"{limits.max_queued_tokens:,} tokens · bodies up to {human_bytes(limits.max_body_bytes)}",
        _response_store_line(limits),
        *_response_cache_lines(limits),
        *_event_lines(loaded),
        f"serving {', '.join(names)} at {url} · {access}",
    ]


def _response_store_line(limits: "Limits") -> str:
    if not limits.response_store_bytes:
        return "no response is stored"
    return (
        f"stores up to {human_bytes(limits.response_store_bytes)} of responses, for {limits.response_store_ttl_s:g} s"
    )


def _response_cache_lines(limits: "Limits") -> list[str]:
    if not limits.response_cache_bytes:
        return []
    size, ttl = human_bytes(limits.response_cache_bytes), limits.response_cache_ttl_s
    return [f"response cache of {size}, for {ttl:g} s: the same tenant's same request is answered without the model"]


def _event_lines(loaded: "LoadedModel") -> list[str]:
    if loaded.events is None:
        return []
    return [f"KV events at {loaded.events.endpoint} · replay at {loaded.events.replay_endpoint}"]


def _default_name(given: str, path: Path) -> str:
    return given if not Path(given).exists() else path.stem if path.is_file() else path.name


def _print_new_key(name: str, *, is_operator: bool) -> None:
    from foreword.server.tenants import new_key

    key, line = new_key(name, "operator" if is_operator else "user")
    write_text(f"key, shown this once:      {key}\nline for the file of keys: {line}\n")
