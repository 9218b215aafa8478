"""`foreword plan`: how much memory K and V take, how many users, what fits."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from foreword.cli.console import human_bytes, out_console, write_json
from foreword.cli.options import JsonFlag, grouped, parse_bytes
from foreword.cli.picture import check_plot
from foreword.cli.session import find_model
from foreword.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from foreword.plan.geometry import Geometry
    from foreword.plan.lengths import Lengths
    from foreword.plan.plan import Plan

_SHAPE = "Shape, where there is no file"


class PlanDtype(StrEnum):
    """How K and V are stored. This engine stores f32, f16, int16 and int8; the others are for planning elsewhere."""

    f32 = "f32"
    f16 = "f16"
    int16 = "int16"
    int8 = "int8"
    bf16 = "bf16"
    f8 = "f8"


class Shape(Struct, frozen=True, kw_only=True):
    """A model described by four numbers."""

    layers: Annotated[int | None, typer.Option(help="Layers.", rich_help_panel=_SHAPE)] = None
    heads: Annotated[int | None, typer.Option(help="Query heads a layer.", rich_help_panel=_SHAPE)] = None
    kv_heads: Annotated[
        int | None, typer.Option(help="Heads of K and V a layer. Default: as many.", rich_help_panel=_SHAPE)
    ] = None
    head_dim: Annotated[int | None, typer.Option(help="Width of a head.", rich_help_panel=_SHAPE)] = None


class Wanted(Struct, frozen=True, kw_only=True):
    """What is planned for."""

    memory: Annotated[
        str | None, typer.Option(help="For weights, process, K and V, e.g. 16GiB. Default: what is free here.")
    ] = None
    context: Annotated[
        str | None, typer.Option(help="Stored tokens of a request, e.g. 2048 or 512,4096. Default: the model's most.")
    ] = None
    lengths: Annotated[Path | None, typer.Option(help="Instead: a file of lengths, one a line, or length,count.")] = (
        None
    )
    concurrency: Annotated[str, typer.Option(help="Requests at once.")] = "1,4,16,64"
    shared_prefix: Annotated[int, typer.Option(help="Leading tokens that all requests share.")] = 0
    kv_dtype: Annotated[PlanDtype, typer.Option(help="How K and V are stored.")] = PlanDtype.int16
    block_size: Annotated[int, typer.Option(help="Tokens a block.")] = 16
    max_model_len: Annotated[
        int | None, typer.Option(help="What a contiguous cache would reserve. Default: the model's most.")
    ] = None
    weights: Annotated[str | None, typer.Option(help="Size of the weights. Default: the files', or estimated.")] = None


class PlanShown(Struct, frozen=True, kw_only=True):
    """What comes out."""

    plot: Annotated[Path | None, typer.Option(help="Picture of memory against context: .svg, .png, .pdf.")] = None
    json: JsonFlag = False


@grouped
def plan(
    model: Annotated[
        str | None,
        typer.Argument(help="A pulled name, a .gguf file, a folder or a config.json.", show_default=False),
    ] = None,
    *,
    wanted: Wanted,
    shape: Shape,
    shown: PlanShown,
) -> None:
    """Say how much memory K and V take: a token, a request, many at once; and how many fit.

    Reads sizes alone, so it knows more models than the engine runs: MHA, GQA, MQA, sliding windows, mixed layers, MLA.
    """
    from foreword.plan.draw import save_plot
    from foreword.plan.plan import PlanOptions, make_plan

    if shown.plot is not None:
        check_plot(shown.plot)
    geometry = _geometry(model, shape)
    options = PlanOptions(
        memory_bytes=_memory(wanted.memory),
        lengths=_lengths(wanted, geometry),
        concurrency=tuple(sorted(set(_numbers("concurrency", wanted.concurrency)))),
        kv_dtype=wanted.kv_dtype.value,
        block_size=wanted.block_size,
        shared_prefix=wanted.shared_prefix,
        weight_bytes=None if wanted.weights is None else parse_bytes("weights", wanted.weights),
        reserve=wanted.max_model_len,
    )
    made = make_plan(geometry, options)
    if shown.plot is not None:
        save_plot(made, shown.plot)
    if shown.json:
        write_json(made.as_json())
    else:
        _print(made)


def _geometry(model: str | None, shape: Shape) -> "Geometry":
    from foreword.plan.geometry import uniform
    from foreword.plan.source import read_geometry

    given = {name: getattr(shape, name) for name in ("layers", "heads", "head_dim")}
    if model is not None:
        if any(value is not None for value in (*given.values(), shape.kv_heads)):
            raise InvalidRequestError("model", "either a model or --layers, --heads and --head-dim", model)
        path = Path(model).expanduser()
        return read_geometry(path if path.suffix == ".json" or path.is_dir() else find_model(model))
    for name, value in given.items():
        if value is None:
            raise InvalidRequestError(name, "a number, or a model to read it from", None)
    return uniform(name="given", kv_heads=shape.kv_heads or given["heads"], **given)


def _memory(text: str | None) -> int:
    from foreword.llm.machine import available_bytes

    return available_bytes() if text is None else parse_bytes("memory", text)


def _lengths(wanted: Wanted, geometry: "Geometry") -> "Lengths":
    from foreword.plan.lengths import Lengths, read_lengths

    if wanted.lengths is not None:
        if wanted.context is not None:
            raise InvalidRequestError("context", "either --context or --lengths", wanted.context)
        return read_lengths(wanted.lengths.expanduser())
    if wanted.context is not None:
        return Lengths.of(_numbers("context", wanted.context))
    if geometry.max_position is None:
        raise InvalidRequestError("context", "tokens of a request, which the model does not say", None)
    return Lengths.of([geometry.max_position])


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequestError(name, "numbers with commas between, such as 1,8,64", text) from None


def _print(plan: "Plan") -> None:
    from foreword.plan.draw import bars
    from foreword.plan.plan import ENGINE_OVERHEAD

    console = out_console()
    geometry, options = plan.geometry, plan.options

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    say(f"{geometry.name}: {geometry.describe()}; K and V in {options.kv_dtype}, blocks of {options.block_size} tokens")
    for note in plan.notes:
        say(f"note: {note}")
    say(
        f"memory {human_bytes(options.memory_bytes)} - weights {human_bytes(plan.weight_bytes)} ({plan.weights_from}) "
        f"- process {human_bytes(ENGINE_OVERHEAD)} = {human_bytes(plan.kv_budget_bytes)} for K and V"
    )
    times = plan.without_gqa_bytes_per_token / plan.bytes_per_token
    say(
        f"a token {plan.bytes_per_token:,} bytes"
        + (f"; {times:.1f} times that with a head of K and V a query head" if times > 1 else "")
        + f"; storing Q too would add {human_bytes(plan.query_bytes_per_token)}, and nobody does"
    )
    console.print(_request_table(plan))
    console.print(_concurrency_table(plan))
    say(
        f"at once, at {options.lengths.mean:,.0f} tokens: {plan.most_paged:,} paged"
        + (f", {plan.most_shared:,} with the prefix shared" if options.shared_prefix else "")
        + f", {plan.most_contiguous:,} with {plan.reserve_tokens:,} tokens reserved for each"
        + (f"; {plan.most_longest:,} if all are as long as the longest" if len(options.lengths.counts) > 1 else "")
    )
    say("\n".join(["", "requests at once, and the memory for K and V", *bars(plan)]))


def _size(count: int) -> str:
    """Two digits behind the point from a GiB on: 1.25 GiB is a figure people look for."""
    return human_bytes(count) if count < 2**30 else f"{count / 2**30:,.2f} GiB"


def _request_table(plan: "Plan") -> object:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title_justify="left")
    for name in ("tokens", "blocks", "K and V", "in blocks", "without GQA", "with Q too", "reserved"):
        table.add_column(name, justify="right")
    for row in plan.requests:
        table.add_row(
            f"{row.tokens:,}",
            f"{row.blocks:,}",
            _size(row.exact_bytes),
            _size(row.paged_bytes),
            _size(row.without_gqa_bytes),
            _size(row.with_q_bytes),
            _size(row.contiguous_bytes),
        )
    return table


def _concurrency_table(plan: "Plan") -> object:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("at once", "in blocks", "prefix shared", "saved", "reserved", "fits", "longest that fits"):
        table.add_column(name, justify="right")
    for row in plan.concurrency:
        table.add_row(
            f"{row.requests:,}",
            _size(row.paged_bytes),
            _size(row.shared_bytes),
            _size(row.saved_bytes),
            _size(row.contiguous_bytes),
            "yes" if row.fits else "no",
            f"{row.max_context:,}",
        )
    return table
