"""`foreword bench`: measure this model on this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from foreword.cli.console import err_console, remark, write_json
from foreword.cli.load_options import LoadOptions, as_arguments
from foreword.cli.options import JsonFlag, ModelOptions, QuietFlag, grouped
from foreword.cli.rows import print_row
from foreword.cli.session import find_model, summary_lines
from foreword.cli.text_input import read_text
from foreword.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from foreword.bench.bench import Bench
    from foreword.bench.result import Metrics, Result


class RowName(StrEnum):
    """What can be measured."""

    decode = "decode"
    prefill = "prefill"
    batch = "batch"
    waste = "waste"
    growth = "growth"
    quality = "quality"
    warm = "warm"
    burst = "burst"
    interleaved = "interleaved"
    rerank = "rerank"
    speculation = "speculation"
    serve = "serve"
    web = "web"


class BenchOptions(Struct, frozen=True, kw_only=True):
    """How rows are measured and shown."""

    repeats: Annotated[int, typer.Option("--repeats", "-r", help="Repetitions of each timed row.")] = 3
    lengths: Annotated[str, typer.Option(help="Prompt lengths of prefill and growth.")] = "512,2048,6000"
    trace: Annotated[
        str | None,
        typer.Option(
            help="CSV of request lengths for waste and serve (ContextTokens,GeneratedTokens). "
            "Default: for waste a sample of the Azure LLM inference trace 2023."
        ),
    ] = None
    text: Annotated[str | None, typer.Option(help="Text for quality. Default: a story written for it.")] = None
    json: JsonFlag = False
    quiet: QuietFlag = False


@grouped
def bench(
    rows: Annotated[list[RowName], typer.Argument(help="What to measure.", show_default=False)],
    *,
    measured: BenchOptions,
    load: LoadOptions,
    model: ModelOptions,
) -> None:
    """Measure speed, memory or exactness, here or through a server.

    Rows: decode prefill batch growth waste quality warm burst interleaved rerank speculation; serve: load on a server,
    with --url any of OpenAI's dialect; web: what the web side adds to the engine alone.

    All prompts are English, of an exact number of tokens, and the same on every run. The model is warmed up first;
    rates are medians. With --json each row ends with one line: row, model, threads, metrics.
    """
    lengths = _lengths(measured.lengths)
    with _progress(quiet=measured.quiet or measured.json) as tell:
        bench = None if set(rows) <= {RowName.waste, RowName.serve} else _open(model, measured, tell)
        for row in rows:
            if row is RowName.serve:
                result = _serve(load, measured, model, tell)
            elif bench is None or row is RowName.waste:
                result = _waste(measured, model)
            elif row is RowName.web:
                result = _web(bench, model)
            else:
                result = _measure(row, bench, lengths, measured)
            if measured.json:
                write_json(result.as_json())
            else:
                print_row(result.row, result.metrics)


def _open(model: ModelOptions, measured: BenchOptions, tell: Callable[[str], None]) -> "Bench":
    path, options = find_model(model.model), model.engine_options()  # before NumPy is imported
    from foreword.bench.bench import Bench

    bench = Bench(path, options, repeats=measured.repeats, tell=tell)
    tell(f"loading {path.name}")
    summary = bench.llm.summary
    if not (measured.quiet or measured.json):
        for line in summary_lines(summary, bench.options):
            remark(line)
    return bench


def _measure(row: RowName, bench: "Bench", lengths: list[int], measured: BenchOptions) -> "Result":
    from foreword.bench import growth, quality, rerank, reuse, speculation, speed
    from foreword.bench.result import Result

    def measure_quality(bench: "Bench") -> "Metrics":
        return quality.quality(bench, quality.built_in_text() if measured.text is None else read_text(measured.text))

    measures: dict[RowName, Callable[[Bench], Metrics]] = {
        RowName.decode: speed.decode,
        RowName.prefill: lambda bench: speed.prefill(bench, lengths),
        RowName.batch: speed.batch,
        RowName.growth: lambda bench: growth.growth(bench, lengths),
        RowName.quality: measure_quality,
        RowName.warm: reuse.warm,
        RowName.burst: reuse.burst,
        RowName.interleaved: reuse.interleaved,
        RowName.rerank: rerank.rerank,
        RowName.speculation: speculation.speculation,
    }
    metrics = measures[row](bench)
    return Result(row.value, bench.llm.summary.model, bench.llm.summary.threads, metrics)


def _waste(measured: BenchOptions, model: ModelOptions) -> "Result":
    from foreword.bench.length_mix import AZURE_CONVERSATION, AZURE_LONGEST, read_trace
    from foreword.bench.result import Result
    from foreword.bench.waste import waste

    if measured.trace is None:
        lengths, longest, source = AZURE_CONVERSATION, AZURE_LONGEST, "built-in sample, Azure LLM trace 2023"
    else:
        lengths = read_trace(Path(measured.trace).expanduser())
        longest, source = max(map(sum, lengths)), Path(measured.trace).name
    metrics = {**waste(lengths, longest, block_size=model.block_size), "source": source}
    return Result("waste", "none", 0, metrics)  # scheduler and pool alone: no model, no kernels


def _serve(load: LoadOptions, measured: BenchOptions, model: ModelOptions, tell: Callable[[str], None]) -> "Result":
    from foreword.bench.length_mix import read_trace
    from foreword.bench.result import Result
    from foreword.load.drive import poisson
    from foreword.load.serving import load as run
    from foreword.load.serving import model_of

    lengths = None if measured.trace is None else read_trace(Path(measured.trace).expanduser())
    with load.server(model, tell) as endpoint:
        name = load.ask_model or model_of(endpoint)
        sessions = islice(load.workload(name, lengths).sessions(), load.requests)
        metrics = run(
            endpoint,
            sessions if load.rate is None else poisson(sessions, load.rate, load.seed),
            load.pace(),
            load.objectives(),
            timeout_s=load.timeout,
            tell=lambda done: tell(f"serve · {done:,} answers"),
        )
    loop = f"closed, {load.streams} streams" if load.rate is None else f"open, {load.rate:g} a second"
    return Result("serve", name, 0, {"loop": loop, **metrics})


def _web(bench: "Bench", model: ModelOptions) -> "Result":
    from foreword.bench.result import Result
    from foreword.load.own_server import own_server
    from foreword.load.serving import web_cost

    with own_server(as_arguments(model)) as url:
        metrics = web_cost(bench, url)
    return Result("web", bench.llm.summary.model, bench.llm.summary.threads, metrics)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    if quiet:
        yield lambda _: None
        return
    with err_console().status("") as status:
        yield status.update


def _lengths(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequestError("lengths", "numbers with commas between, such as 512,2048", text) from None
