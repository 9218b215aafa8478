"""`foreword demo`: the claims of the foundations, each beside what this machine just measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import asdict

from foreword.cli.console import human_s, one_line, out_console, write_json, write_text
from foreword.cli.options import JsonFlag, ModelOptions, QuietFlag, grouped
from foreword.cli.session import find_model
from foreword.core.errors import ForewordError

if TYPE_CHECKING:
    from foreword.demo.claim import Claim
    from foreword.demo.measured import Asked
    from foreword.llm import TextDelta


class DemoShown(Struct, frozen=True, kw_only=True):
    """What comes out."""

    html: Annotated[Path | None, typer.Option(help="Write a page with pictures, which needs nothing else.")] = None
    json: JsonFlag = False
    quiet: QuietFlag = False


@grouped
def demo(*, model: ModelOptions, shown: DemoShown) -> None:
    """Measure each claim of the foundations on a real model, and print it beside what is expected.

    Takes about half a minute on two cores. Exit code 1 when a claim does not hold.
    """
    path, options = find_model(model.model), model.engine_options()  # before NumPy is imported
    from foreword.demo.demo import Stage, run_demo
    from foreword.demo.page import page

    talk = not (shown.quiet or shown.json)
    stage = Stage(_begin, _show, _told) if talk else Stage(lambda _: None, lambda _: None, lambda _: None)
    claims = list(run_demo(path, stage, **asdict(options)))
    if shown.html is not None:
        try:
            shown.html.write_text(page(claims, path.stem), encoding="utf-8")
        except OSError as error:
            raise ForewordError(f"html: {shown.html}: {(error.strerror or 'cannot be written').lower()}") from None
    if shown.json:
        write_json({"claims": [claim.as_json() for claim in claims]})
    else:
        _print_table(claims)
    if not all(claim.ok for claim in claims):
        raise typer.Exit(1)


_METER = 40


def _begin(what: str) -> None:
    out_console().print(f"\n› {what}", markup=False, soft_wrap=True, style="bold")


def _show(delta: "TextDelta") -> None:
    write_text(delta.text)


def _told(asked: "Asked") -> None:
    """What an answer took, with cached and computed tokens of its prompt apart."""
    from rich.text import Text

    cached = round(_METER * asked.cached_tokens / max(1, asked.prompt_tokens))
    line = Text("\n")
    line.append("█" * cached, style="green")
    line.append("█" * (_METER - cached), style="yellow")
    line.append(f"  {asked.prompt_tokens:,} prompt tokens: ")
    line.append(f"{asked.cached_tokens:,} from the cache", style="green")
    line.append(", ")
    line.append(f"{asked.prompt_tokens - asked.cached_tokens:,} computed", style="yellow")
    line.append(f" · first token {human_s(asked.ttft_s)} · {asked.decode_tok_s:,.0f} tokens/s")
    out_console().print(line, soft_wrap=True)


def _print_table(claims: "list[Claim]") -> None:
    from rich.table import Table

    table = Table(show_lines=True, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("claim", ratio=5)
    table.add_column("expected", ratio=3)
    table.add_column("measured", ratio=4)
    for claim in claims:
        mark, style = ("✓", "green") if claim.ok else ("✗", "bold red")
        table.add_row(f"[{style}]{mark}[/]", *map(_cell, (claim.claim, claim.expected, claim.measured)))
    console = out_console()
    console.print()
    console.print(table)
    held = sum(claim.ok for claim in claims)
    console.print(f"{held} of {len(claims)} claims hold", style="green" if held == len(claims) else "bold red")


def _cell(text: str) -> str:
    from rich.markup import escape

    return escape(one_line(text))
