"""`foreword serve`: the model behind OpenAI's and Anthropic's HTTP dialects."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli.console import human_bytes, remark, write_json, write_text
from foreword.cli.options import JsonFlag, ModelOptions, QuietFlag, grouped
from foreword.cli.session import find_model, summary_lines

if TYPE_CHECKING:
    from foreword.llm import EngineOptions, LoadSummary
    from foreword.server.limits import Limits
    from foreword.server.tenants import KeyRing

_SERVER = "Server"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
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
    new_key: Annotated[
        str | None,
        typer.Option(help="Print a new key for this name, and its line for --api-keys; serve nothing."),
    ] = None
    operator: Annotated[bool, typer.Option("--operator", help="With --new-key: an operator's key.")] = False

    def limits(self) -> "Limits":
        """The server's bounds."""
        from foreword.server.limits import Limits

        return Limits(max_queued_requests=self.max_queued, grace_s=self.grace)


@grouped
def serve(
    model_name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="As --model: a pulled name, a .gguf file or a folder.")
    ] = None,
    *,
    model: ModelOptions,
    server: ServerOptions,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Serve a model to OpenAI and Anthropic clients."""
    if server.new_key is not None:
        _print_new_key(server.new_key, is_operator=server.operator)
        return
    if model_name is not None:
        model = replace(model, model=model_name)
    path, options = find_model(model.model), model.engine_options()
    from foreword.server.serving import bind, check_exposure
    from foreword.server.tenants import KeyRing

    keys = KeyRing() if server.api_keys is None else KeyRing.from_file(Path(server.api_keys))
    check_exposure(server.host, has_keys=not keys.is_open)
    listening = bind(server.host, server.port)
    from foreword.llm.loading import load
    from foreword.server.logs import set_up_logging
    from foreword.server.service import Service
    from foreword.server.serving import serve as run

    loaded = load(path, options)
    names = server.served_model_name or [_default_name(model.model, path)]
    service = Service(loaded, names=names, keys=keys, limits=server.limits())
    address, port = listening.getsockname()[:2]
    url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
    if json:
        write_json({"url": url, "models": names, "keys": keys.num_keys, "engine": asdict(loaded.summary)})
    elif not quiet:
        for line in start_lines(loaded.summary, options, keys, service.limits, url, names):
            remark(line)
    set_up_logging()
    run(service, server.host, listening)


def start_lines(
    summary: "LoadSummary", options: "EngineOptions", keys: "KeyRing", limits: "Limits", url: str, names: list[str]
) -> list[str]:
    """What is served with what, and what is open to whom."""
    from foreword.server.gate import OPEN_PATHS, OPERATOR_PATHS

    if keys.is_open:
        access = "no keys: open to this machine alone, as one tenant"
    else:
        opened, operators = (", ".join(sorted(paths)) for paths in (OPEN_PATHS, OPERATOR_PATHS))
        access = f"{keys.num_keys} keys, a cache for each name · open without: {opened} · operators only: {operators}"
    return [
        *summary_lines(summary, options),
        f"up to {options.max_num_seqs} sequences at once · queue of {limits.max_queued_requests} requests, "
        f"{limits.max_queued_tokens:,} tokens · bodies up to {human_bytes(limits.max_body_bytes)}",
        f"serving {', '.join(names)} at {url} · {access}",
    ]


def _default_name(given: str, path: Path) -> str:
    return given if not Path(given).exists() else path.stem if path.is_file() else path.name


def _print_new_key(name: str, *, is_operator: bool) -> None:
    from foreword.server.tenants import new_key

    key, line = new_key(name, "operator" if is_operator else "user")
    write_text(f"key, shown this once:      {key}\nline for the file of keys: {line}\n")
