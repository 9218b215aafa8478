"""`foreword lint`: what a request log can reuse, what is lost and why, and what would mend it."""

import json
from array import array
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from foreword.cli.console import human_s, one_line, out_console, remark, write_json
from foreword.cli.options import JsonFlag, QuietFlag, grouped
from foreword.cli.progress import progress
from foreword.cli.request_body import AskedPrompt, from_body
from foreword.cli.session import find_model
from foreword.cli.text_input import file_or_stdin
from foreword.core.errors import ForewordError, InvalidRequestError

if TYPE_CHECKING:
    from foreword.lint.lint import PackTokens, Report, Score, Source
    from foreword.lint.request import LoggedRequest

EXIT_BELOW = 1


class Judged(Struct, frozen=True, kw_only=True):
    """How the log is judged."""

    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Count tokens as this model does. Default: a token for four bytes."),
    ] = None
    min_hit_rate: Annotated[
        float | None, typer.Option(help="Exit code 1 where an exact prefix cache reuses a smaller share of tokens.")
    ] = None
    repair: Annotated[bool, typer.Option(help="Replay the log with each repair.")] = True
    prefill_rate: Annotated[
        float | None, typer.Option(help="Tokens a second your machine prefills, to show seconds too.")
    ] = None
    price: Annotated[
        float | None, typer.Option(help="Price of a million uncached input tokens, to show money too.")
    ] = None


class LintShown(Struct, frozen=True, kw_only=True):
    """What comes out."""

    show_text: Annotated[bool, typer.Option("--show-text", help="Show what differs: text of prompts.")] = False
    write_repaired: Annotated[
        Path | None, typer.Option(help="Write the log as it should have been sent, as JSON lines.")
    ] = None
    json: JsonFlag = False
    quiet: QuietFlag = False


@grouped
def lint(
    log: Annotated[Path, typer.Argument(help="Requests as JSON lines, plain or gzip; - is stdin.", show_default=False)],
    *,
    judged: Judged,
    shown: LintShown,
) -> None:
    """Say how much of a request log a prefix cache can reuse, what is lost, where and why, and what would mend it.

    Takes bodies of OpenAI chat, responses and completions and of Anthropic messages, a line each, alone or as "body"
    beside "timestamp", "tenant" and "path". Text of prompts is not shown unless asked for.
    """
    from foreword.lint.lint import byte_tokens, mended
    from foreword.lint.lint import lint as run
    from foreword.lint.log import read_log

    _check(judged)
    pack = byte_tokens if judged.model is None else _model_tokens(judged.model)
    with file_or_stdin(log) as path, progress(hidden=shown.quiet or shown.json) as tell:
        source = partial(read_log, path, lambda read, size: tell("reading", read / max(1, size)))
        report = run(source, pack, show_text=shown.show_text, repair=judged.repair)
        if shown.write_repaired is not None:
            _write(mended(source, report.repairs), shown.write_repaired)
    if report.requests == 0:
        raise ForewordError(f"{log}: holds no request")
    if shown.json:
        write_json(report.as_json(price=judged.price))
    else:
        _print(report, judged)
    found = report.score("exact").hit_rate
    if judged.min_hit_rate is not None and found < judged.min_hit_rate:
        if not (shown.json or shown.quiet):
            remark(f"exact: {found:.1%} reusable, at least {judged.min_hit_rate:.1%} asked for")
        raise typer.Exit(EXIT_BELOW)


def _check(judged: Judged) -> None:
    if judged.min_hit_rate is not None and not 0 <= judged.min_hit_rate <= 1:
        raise InvalidRequestError("min_hit_rate", "a share from 0 to 1", judged.min_hit_rate)
    for name in ("prefill_rate", "price"):
        value = getattr(judged, name)
        if value is not None and not 0 < value < 1e12:
            raise InvalidRequestError(name, "a positive number", value)


def _model_tokens(model: str) -> "PackTokens":
    """Prompts as the model's template and tokenizer make them."""
    from foreword.models.files import open_model_files
    from foreword.text.loading import load_text

    tokenizer, template = load_text(open_model_files(find_model(model)))

    def pack(request: "LoggedRequest") -> bytes:
        asked = None if request.dialect == "completions" else _conversation(request)
        if asked is not None and asked.messages is not None and template is not None:
            ids = template.encode(asked.messages, tools=asked.tools or None)
        else:
            text = b"".join(part.rendered for part in request.parts).decode("utf-8", "replace")
            text = text if request.dialect != "completions" else request.parts[0].text
            ids = tokenizer.encode(text, add_special_tokens=True)
        return array("i", ids).tobytes()

    return pack


def _conversation(request: "LoggedRequest") -> AskedPrompt | None:
    """The request as the server reads it; None where it has parts that only the server can render."""
    try:
        return from_body(request.body, "request")
    except ForewordError:
        return None


def _write(source: "Source", path: Path) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            for request in source():
                line: dict[str, object] = {"body": request.body, "path": f"/v1/{_ENDINGS[request.dialect]}"}
                if request.time_s is not None:
                    line["timestamp"] = request.time_s
                if request.tenant:
                    line["tenant"] = request.tenant
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ForewordError(f"write_repaired: {path}: {(error.strerror or 'cannot be written').lower()}") from None


_ENDINGS = {
    "chat": "chat/completions",
    "messages": "messages",
    "responses": "responses",
    "completions": "completions",
}


def _print(report: "Report", judged: Judged) -> None:
    from rich.table import Table

    console = out_console()
    tokens = report.score("exact").tokens
    counted = "four bytes a token" if judged.model is None else f"tokens of {Path(judged.model).name}"
    console.print(f"{report.requests:,} requests, {tokens:,} tokens ({counted})", markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("rules")
    for name in ("reusable", "repaired", "computed", "repaired", "cost", "repaired"):
        table.add_column(name, justify="right")
    for now, then in zip(report.scores, report.repaired, strict=True):
        table.add_row(
            now.rules, f"{now.hit_rate:.1%}", f"{then.hit_rate:.1%}", *_computed(now, then), *_cost(now, then, judged)
        )
    console.print(table)
    if judged.prefill_rate is not None:
        saved = (_rest(report.scores[0]) - _rest(report.repaired[0])) / judged.prefill_rate
        console.print(f"repairs save {human_s(max(0.0, saved))} of prefill", markup=False)
    for finding in report.findings:
        gain = "" if finding.gain_tokens is None else f"; repaired: {finding.gain_tokens:,} tokens fewer to compute"
        where = f"{one_line(finding.place)}, {finding.offset:,} characters in, token {finding.token:,}"
        console.print(f"\n{finding.cause} at {where}", markup=False, soft_wrap=True, style="bold")
        console.print(
            f"  {finding.count:,} requests, {finding.lost_tokens:,} tokens lost{gain}; first in line {finding.line}, "
            f"against line {finding.earlier_line}",
            markup=False,
            soft_wrap=True,
        )
        if finding.text:
            console.print(f"  differs: {one_line(finding.text)}", markup=False, soft_wrap=True)
        console.print(f"  {finding.advice}", markup=False, soft_wrap=True)
    if not report.findings:
        console.print("nothing is lost: every prefix that could be shared is", markup=False)
    if report.evicted_blocks:
        console.print("the log is larger than what is kept of it: the oldest prefixes counted as gone", markup=False)


def _rest(score: "Score") -> int:
    return score.tokens - score.read


def _computed(now: "Score", then: "Score") -> tuple[str, str]:
    return f"{_rest(now):,}", f"{_rest(then):,}"


def _cost(now: "Score", then: "Score", judged: Judged) -> tuple[str, str]:
    if judged.price is None:
        return f"{now.cost:,.0f}", f"{then.cost:,.0f}"
    return f"{now.money(judged.price):,.2f}", f"{then.money(judged.price):,.2f}"
