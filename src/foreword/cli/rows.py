"""Measured rows, for people."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foreword.cli.console import human_rate, human_s, out_console

if TYPE_CHECKING:
    from foreword.bench.result import Metrics


def print_row(name: str, metrics: "Metrics") -> None:
    """One row as a table of its figures."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=name, title_justify="left", title_style="bold", show_header=False, box=None)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for key, value in _flat(metrics):
        table.add_row(escape(key), escape(_human(key, value)))
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
