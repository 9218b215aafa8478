"""`foreword replay`: what a recorded trace would find in the prefix cache, for any policy, capacity and block size."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from foreword.cli.console import human_bytes, out_console, write_json
from foreword.cli.load_options import SentTo
from foreword.cli.options import JsonFlag, QuietFlag, grouped
from foreword.cli.picture import check_plot
from foreword.cli.progress import progress
from foreword.cli.rows import print_row
from foreword.cli.session import find_model
from foreword.cli.text_input import file_or_stdin
from foreword.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from foreword.core.config import RetentionKind
    from foreword.replay.replay import ReplayOptions, ReplayResult, Row
    from foreword.replay.trace import TraceOptions


class Policy(StrEnum):
    """Which cached prefix goes first."""

    slru = "slru"
    lru = "lru"
    lfu = "lfu"
    cost = "cost"
    all = "all"


class Index(StrEnum):
    """How prefixes are found."""

    radix = "radix"
    hash = "hash"


class Compared(Struct, frozen=True, kw_only=True):
    """Which caches the trace is run through."""

    policy: Annotated[list[Policy] | None, typer.Option(help="May be repeated. Default: slru, the engine's.")] = None
    capacity: Annotated[
        str | None,
        typer.Option(help="Blocks of the pool, e.g. 3000,10000. Default: 1 % to 100 % of the trace's distinct blocks."),
    ] = None
    block_size: Annotated[int | None, typer.Option(help="Tokens a block. Default: the trace's own, or 16.")] = None
    index: Annotated[Index, typer.Option(help="How prefixes are found.")] = Index.radix
    scheduler: Annotated[
        bool, typer.Option("--scheduler", help="Go through the real scheduler too: slower, stricter.")
    ] = False
    optimum: Annotated[bool, typer.Option(help="The clairvoyant optimum for each capacity.")] = True


class Read(Struct, frozen=True, kw_only=True):
    """How the trace is read."""

    max_requests: Annotated[int | None, typer.Option(help="Stop after so many.")] = None
    at_once: Annotated[int, typer.Option(help="Conversations that run at a time, where a line is one.")] = 16
    tokenizer: Annotated[
        str | None,
        typer.Option(help="For text: the model whose tokenizer to use. Default: a token a byte."),
    ] = None


class Shown(Struct, frozen=True, kw_only=True):
    """What comes out."""

    plot: Annotated[Path | None, typer.Option(help="Picture of hit rate against memory: .svg, .png, .pdf.")] = None
    kv_bytes: Annotated[
        int | None, typer.Option(help="Bytes of K and V a token takes, to show memory too (SmolLM2 int16: 23760).")
    ] = None
    json: JsonFlag = False
    quiet: QuietFlag = False


@grouped
def replay(
    trace: Annotated[Path, typer.Argument(help="JSON lines, plain or gzip; - is stdin.", show_default=False)],
    *,
    compared: Compared,
    read: Read,
    sent: SentTo,
    shown: Shown,
) -> None:
    """Run a recorded trace through the prefix cache, without a model; with --url, send it to a server.

    Takes Mooncake, kv-cache-tester (compact), conversations with messages, and plain lines of token_ids or block_ids.
    Hits are shown beside a cache without bounds and the clairvoyant optimum.
    """
    from foreword.replay.plot import save_plot
    from foreword.replay.replay import replay as run
    from foreword.replay.trace import Trace

    if sent.url is not None:
        with file_or_stdin(trace) as path:
            _send(path, compared, read, sent, shown)
        return
    if shown.kv_bytes is not None and shown.kv_bytes < 1:
        raise InvalidRequestError("kv_bytes", "at least 1", shown.kv_bytes)
    if shown.plot is not None:
        check_plot(shown.plot)
    options, how = _replay_options(compared), _trace_options(compared, read)
    with file_or_stdin(trace) as path, progress(hidden=shown.quiet or shown.json) as tell:
        result = run(Trace(path, how), options, tell)
    if shown.plot is not None:
        save_plot(result, shown.plot, shown.kv_bytes)
    if shown.json:
        write_json(result.as_json())
    else:
        _print(result, shown.kv_bytes)


def _send(path: Path, compared: Compared, read: Read, sent: SentTo, shown: Shown) -> None:
    from foreword.load.report import Objectives
    from foreword.load.serving import load, model_of
    from foreword.load.traces import TraceLoad, TraceSessions
    from foreword.load.wire import Endpoint

    assert sent.url is not None
    endpoint = Endpoint.of(sent.url, sent.key)
    wanted = TraceLoad(
        model=sent.ask_model or model_of(endpoint),
        speed=sent.factor(),
        at_once=read.at_once,
        answer_tokens=sent.answer_tokens,
        block_size=compared.block_size,
        max_requests=read.max_requests,
    )
    traced = TraceSessions(path, wanted)
    with progress(hidden=shown.quiet or shown.json) as tell:
        metrics = load(
            endpoint,
            traced.sessions(),
            traced.pace(),
            Objectives(ttft_s=sent.slo_ttft, tpot_s=sent.slo_tpot),
            timeout_s=sent.timeout,
            tell=lambda done: tell(f"{done:,} answers", 0.0),
        )
    metrics = {"trace": path.name, "format": traced.format.name, "speed": sent.speed, **metrics}
    if shown.json:
        write_json({"row": "replay", "model": wanted.model, "metrics": metrics})
    else:
        print_row(f"replay, {wanted.model}", metrics)


def _replay_options(compared: Compared) -> "ReplayOptions":
    from foreword.replay.replay import ReplayOptions

    asked = compared.policy or [Policy.slru]
    every: tuple[RetentionKind, ...] = ("slru", "lru", "lfu", "cost")
    return ReplayOptions(
        policies=every if Policy.all in asked else tuple(name for name in every if name in asked),
        capacities=() if compared.capacity is None else _capacities(compared.capacity),
        index=compared.index.value,
        scheduler=compared.scheduler,
        optimum=compared.optimum,
    )


def _capacities(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise InvalidRequestError(
            "capacity", "numbers of blocks with commas between, such as 3000,10000", text
        ) from None


def _trace_options(compared: Compared, read: Read) -> "TraceOptions":
    from foreword.replay.trace import TraceOptions, byte_tokens

    encode = byte_tokens if read.tokenizer is None else _tokenizer(read.tokenizer)
    return TraceOptions(
        block_size=compared.block_size, at_once=read.at_once, max_requests=read.max_requests, encode=encode
    )


def _tokenizer(model: str) -> Callable[[str], list[int]]:
    from foreword.models.files import open_model_files
    from foreword.text.loading import load_text

    tokenizer, _ = load_text(open_model_files(find_model(model)))
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def _print(result: "ReplayResult", kv_bytes: int | None) -> None:
    from rich.table import Table

    from foreword.replay.chart import chart

    console = out_console()
    unbounded = result.unbounded
    console.print(
        f"{result.trace} ({result.trace_format}): {unbounded.requests:,} requests, {unbounded.tokens:,} tokens, "
        f"{unbounded.blocks:,} blocks of {result.block_size} tokens, {result.distinct_blocks:,} distinct; "
        f"{result.options.index} index",
        markup=False,
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    for name in (
        "policy",
        "blocks",
        *(["memory"] if kv_bytes else []),
        "block hit",
        "token hit",
        "of optimum",
        "evicted",
    ):
        table.add_column(name, justify="left" if name == "policy" else "right")
    best = {row.capacity: row.tally.hit_blocks for row in result.of_policy("optimum")}
    for row in sorted(result.rows, key=lambda row: row.capacity):  # stable: policies as asked for
        table.add_row(*_cells(row, best.get(row.capacity), result.block_size, kv_bytes))
    table.add_row(
        "infinite",
        f"{result.distinct_blocks:,}",
        *([human_bytes(result.distinct_blocks * result.block_size * kv_bytes)] if kv_bytes else []),
        f"{unbounded.block_hit_ratio:.2%}",
        f"{unbounded.token_hit_ratio:.2%}",
        "",
        "0",
    )
    console.print(table)
    refused = max(row.tally.refused for row in result.rows)
    if refused:
        console.print(f"up to {refused:,} requests were longer than a whole pool: counted as missed", markup=False)
    if len({row.capacity for row in result.rows}) > 1:
        console.print("\n".join(["", "token hit", *chart(result)]), markup=False, soft_wrap=True)


def _cells(row: "Row", best: int | None, block_size: int, kv_bytes: int | None) -> list[str]:
    tally = row.tally
    return [
        row.policy,
        f"{row.capacity:,}",
        *([human_bytes(row.capacity * block_size * kv_bytes)] if kv_bytes else []),
        f"{tally.block_hit_ratio:.2%}",
        f"{tally.token_hit_ratio:.2%}",
        f"{tally.hit_blocks / best:.3f}" if best else "",
        f"{tally.evicted_blocks:,}",
    ]
