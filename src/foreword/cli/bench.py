"""`foreword bench`: measure this model on this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli.console import err_console, human_rate, human_s, out_console, remark, write_json
from foreword.cli.options import JsonFlag, ModelOptions, QuietFlag, grouped
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
    quality = "quality"
    warm = "warm"
    burst = "burst"
    interleaved = "interleaved"
    rerank = "rerank"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How rows are measured and shown."""

    repeats: Annotated[int, typer.Option("--repeats", "-r", help="Repetitions of each timed row.")] = 3
    lengths: Annotated[str, typer.Option(help="Prompt lengths of the prefill row.")] = "512,2048,6000"
    trace: Annotated[
        str | None,
        typer.Option(
            help="CSV of request lengths for waste (ContextTokens,GeneratedTokens). "
            "Default: a sample of the Azure LLM inference trace 2023."
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
    model: ModelOptions,
) -> None:
    """Measure speed, memory or exactness. Rows: decode prefill batch waste quality warm burst interleaved rerank.

    All prompts are English, of an exact number of tokens, and the same on every run. The model is warmed up first;
    rates are medians. With --json each row ends with one line: row, model, threads, metrics.
    """
    lengths = _lengths(measured.lengths)
    with _progress(quiet=measured.quiet or measured.json) as tell:
        bench = None if set(rows) == {RowName.waste} else _open(model, measured, tell)
        for row in rows:
            result = (
                _waste(measured, model)
                if bench is None or row is RowName.waste
                else _measure(row, bench, lengths, measured)
            )
            if measured.json:
                write_json(result.as_json())
            else:
                _print(result)


def _open(model: ModelOptions, measured: BenchOptions, tell: Callable[[str], None]) -> "Bench":
    from foreword.bench.bench import Bench

    path = find_model(model.model)
    bench = Bench(path, model.engine_options(), repeats=measured.repeats, tell=tell)
    tell(f"loading {path.name}")
    summary = bench.llm.summary
    if not (measured.quiet or measured.json):
        for line in summary_lines(summary, bench.options):
            remark(line)
    return bench


def _measure(row: RowName, bench: "Bench", lengths: list[int], measured: BenchOptions) -> "Result":
    from foreword.bench import quality, rerank, reuse, speed
    from foreword.bench.result import Result

    def measure_quality(bench: "Bench") -> "Metrics":
        return quality.quality(bench, quality.built_in_text() if measured.text is None else read_text(measured.text))

    measures: dict[RowName, Callable[[Bench], Metrics]] = {
        RowName.decode: speed.decode,
        RowName.prefill: lambda bench: speed.prefill(bench, lengths),
        RowName.batch: speed.batch,
        RowName.quality: measure_quality,
        RowName.warm: reuse.warm,
        RowName.burst: reuse.burst,
        RowName.interleaved: reuse.interleaved,
        RowName.rerank: rerank.rerank,
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


def _print(result: "Result") -> None:
    from rich.table import Table

    table = Table(title=f"{result.row}", title_justify="left", title_style="bold", show_header=False, box=None)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, value in _flat(result.metrics):
        table.add_row(name, _human(name, value))
    out_console().print(table)


def _flat(metrics: "Metrics") -> Iterator[tuple[str, object]]:
    for name, value in metrics.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                yield f"{name}[{key}]", inner
        else:
            yield name, value


def _human(name: str, value: object) -> str:
    base = name.partition("[")[0].removesuffix("_min").removesuffix("_max")
    if isinstance(value, list):
        return " … ".join(_human(name, part) for part in value) if "min_max" in name else ", ".join(map(str, value))
    if isinstance(value, float):
        if base.endswith("tok_s"):
            return human_rate(value)
        if base.endswith("_s"):
            return human_s(value)
        return f"{value:.2%}" if base.endswith("ratio") else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
