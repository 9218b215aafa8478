"""`foreword why`: why a request was not read whole from the cache: of a running server, or of a log of requests."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import asdict

from foreword.cli.asking import KeyOption, UrlOption, as_list, ask
from foreword.cli.console import human_s, one_line, out_console, write_json
from foreword.cli.environment import DEFAULT_MODEL
from foreword.cli.options import JsonFlag, grouped
from foreword.cli.request_body import AskedPrompt, from_body, read_request
from foreword.cli.session import find_model
from foreword.cli.text_input import file_or_stdin, read_text
from foreword.core.errors import ForewordError

if TYPE_CHECKING:
    from foreword.text.chat_template import ChatTemplate
    from foreword.text.tokenizer import Tokenizer

EXCERPT_TOKENS = 24
MEANINGS = {
    "none": "all that could be read from the cache is",
    "never seen": "what is stored ends here",
    "changed": "what is stored goes on otherwise",
    "evicted": "it was stored, and pushed out for want of room",
    "expired": "it was stored, and its time had passed",
    "other namespace": "it is stored under another key or salt",
    "under minimum": "too short to be served from the cache",
    "bypassed": "the prefix cache is off",
}


class Asked(Struct, frozen=True, kw_only=True):
    """Who is asked."""

    url: UrlOption = None
    key: KeyOption = None
    log: Annotated[
        Path | None,
        typer.Option(help="A log instead: requests as JSON lines, in order; - is stdin; no server is needed."),
    ] = None
    model: Annotated[
        str, typer.Option("--model", "-m", envvar="FOREWORD_MODEL", help="For --log: whose tokenizer and template.")
    ] = DEFAULT_MODEL
    blocks: Annotated[int, typer.Option(min=1, help="For --log: blocks of 16 tokens the pool has.")] = 65_536
    shown: Annotated[int, typer.Option("--show", min=0, help="For --log: most misses shown, dearest first.")] = 20
    json: JsonFlag = False


class Miss(Struct, frozen=True, kw_only=True):
    """What is told of one request. `line` is its place in a log."""

    prompt_tokens: int
    matched_tokens: int
    missed_tokens: int  # that could have been read, and are computed
    missed_s: float | None  # at the server's measured rate of reading prompts
    cause: str
    message_index: int | None
    before: str
    wanted: str | None
    stored: str | None
    line: int | None = None


@grouped
def why(
    request: Annotated[
        str | None,
        typer.Argument(help="File with a request's body, OpenAI's or Anthropic's, or with a prompt; - is stdin."),
    ] = None,
    *,
    asked: Asked,
) -> None:
    """Tell why a request is not read whole from the cache: where it parts from what is stored, and what that costs."""
    if (asked.url is None) == (asked.log is None):
        raise ForewordError("why: give either --url, a running server, or --log, a file of requests")
    if asked.log is not None:
        if request is not None:
            raise ForewordError("why: REQUEST is for --url; a log holds its own requests")
        with file_or_stdin(asked.log) as path:
            misses = list(misses_of_log(path, asked.model, asked.blocks))
        _tell_log(misses, asked)
        return
    if request is None:
        raise ForewordError("why: which request? Give its file, or - for stdin")
    assert asked.url is not None
    miss = miss_of_server(asked.url, asked.key, read_request(read_text(request).rstrip("\n"), request))
    if asked.json:
        write_json(asdict(miss))
    else:
        _print(miss)


def miss_of_server(url: str, key: str | None, prompt: AskedPrompt) -> Miss:
    """What a running server says of a prompt.

    Raises:
        ForewordError: it can't be asked, or answers otherwise than a foreword server does.
    """
    name = prompt.model
    if name is None:
        names = as_list(url, ask(url, "/v1/models", key).get("data"))
        first = names[0] if names else None
        name = first.get("id") if isinstance(first, dict) else None
        if not isinstance(name, str):
            raise ForewordError(f"{url}: not an answer of foreword's")
    told = ask(url, "/cache/explain", key, prompt.explain_body(name))

    def number(field: str) -> int:
        value = told.get(field)
        if type(value) is not int or value < 0:
            raise ForewordError(f"{url}: not an answer of foreword's ({field})")
        return value

    def text(field: str) -> str | None:
        value = told.get(field)
        return value if isinstance(value, str) else None

    seconds, place = told.get("missed_s"), told.get("message_index")
    return Miss(
        prompt_tokens=number("prompt_tokens"),
        matched_tokens=number("matched_tokens"),
        missed_tokens=number("missed_tokens"),
        missed_s=float(seconds) if isinstance(seconds, int | float) else None,
        cause=text("cause") or "unknown",
        message_index=place if type(place) is int else None,
        before=text("before") or "",
        wanted=text("wanted"),
        stored=text("stored"),
    )


def misses_of_log(path: Path, model: str, num_blocks: int) -> Iterator[Miss]:
    """Every request of a log, in order, against a cache that was empty before the first.

    Raises:
        ForewordError: the log can't be read, or a line is no request; names the line.
    """
    from foreword.models.files import open_model_files
    from foreword.replay.lines import bad_line, read_lines
    from foreword.replay.misses import MissExplainer
    from foreword.text.loading import load_text

    tokenizer, template = load_text(open_model_files(find_model(model)))
    explainer = MissExplainer(num_blocks)
    for number, data in read_lines(path):
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise bad_line(path, number, "expected a JSON object, a request's body")
        prompt = from_body(found, f"{path}: line {number}")
        ids = _token_ids(prompt, tokenizer, template)
        report = explainer.explain(ids, (prompt.cache_salt or "").encode("utf-8", "surrogatepass"))
        matched = report.matched_tokens
        yield Miss(
            line=number,
            prompt_tokens=len(ids),
            matched_tokens=matched,
            missed_tokens=len(ids) - 1 - matched,
            missed_s=None,
            cause=report.cause.value,
            message_index=_message_at(prompt, template, matched) if report.cause.value != "none" else None,
            before=tokenizer.decode(ids[max(0, matched - EXCERPT_TOKENS) : matched], skip_special_tokens=False),
            wanted=_name(tokenizer, report.wanted_token),
            stored=_name(tokenizer, report.stored_token),
        )


def _token_ids(prompt: AskedPrompt, tokenizer: "Tokenizer", template: "ChatTemplate | None") -> list[int]:
    if prompt.messages is not None:
        if template is None:
            raise ForewordError("messages: this model has no chat template; name another with --model")
        return template.encode(prompt.messages, tools=prompt.tools or None)
    if isinstance(prompt.prompt, str):
        return tokenizer.encode(prompt.prompt, add_special_tokens=True)
    ids = list(prompt.prompt or ())
    if not ids or not 0 <= min(ids) <= max(ids) < tokenizer.vocab_size:
        raise ForewordError(f"prompt: expected token ids from 0 to {tokenizer.vocab_size - 1}")
    return ids


def _message_at(prompt: AskedPrompt, template: "ChatTemplate | None", position: int) -> int | None:
    """Index of the message that a token of the rendered conversation belongs to; None where that can't be told."""
    if prompt.messages is None or template is None:
        return None
    low, high = 0, len(prompt.messages) - 1
    try:
        while low < high:
            middle = (low + high) // 2
            begun = template.encode(
                prompt.messages[: middle + 1], add_generation_prompt=False, tools=prompt.tools or None
            )
            low, high = (low, middle) if position < len(begun) else (middle + 1, high)
    except ForewordError:
        return None  # a template may refuse a conversation that stops there
    return low


def _name(tokenizer: "Tokenizer", token: int | None) -> str | None:
    return None if token is None else tokenizer.decode([token], skip_special_tokens=False)


def _tell_log(misses: list[Miss], asked: Asked) -> None:
    requests, prompt = len(misses), sum(miss.prompt_tokens for miss in misses)
    missed = Counter[str]()
    for miss in misses:
        missed[miss.cause] += miss.missed_tokens
    totals = {
        "requests": requests,
        "prompt_tokens": prompt,
        "matched_tokens": sum(miss.matched_tokens for miss in misses),
        "missed_tokens": dict(missed.most_common()),
    }
    if asked.json:
        write_json({"totals": totals, "requests": [asdict(miss) for miss in misses]})
        return
    dearest = sorted(misses, key=lambda miss: -miss.missed_tokens)[: asked.shown]
    for miss in sorted((miss for miss in dearest if miss.cause != "none"), key=lambda miss: miss.line or 0):
        _print(miss)
    by_cause = ", ".join(f"{cause} {count:,}" for cause, count in missed.most_common() if cause != "none")
    found = sum(miss.matched_tokens for miss in misses) / max(1, prompt - requests)
    line = (
        f"{requests:,} requests, {prompt:,} prompt tokens, {found:.1%} found; tokens missed by cause: {by_cause or 0}"
    )
    out_console().print(line, markup=False, soft_wrap=True)


def _print(miss: Miss) -> None:
    from rich.text import Text

    show: Callable[[Text], None] = lambda line: out_console().print(line, soft_wrap=True)  # noqa: E731
    cost = f"{miss.missed_tokens:,} computed again" + (f", about {human_s(miss.missed_s)}" if miss.missed_s else "")
    place = "" if miss.line is None else f"line {miss.line}: "
    show(
        Text.assemble(
            (f"{place}{miss.cause}", "bold"),
            f" · {miss.matched_tokens:,} of {miss.prompt_tokens:,} tokens found, {cost}",
            (f" · {MEANINGS[miss.cause]}" if miss.cause in MEANINGS else "", "dim"),
        )
    )
    if miss.wanted is not None:
        where = f"token {miss.matched_tokens:,}"
        where += "" if miss.message_index is None else f" in messages[{miss.message_index}]"
        line = Text.assemble((f"  {where}: …", "dim"), one_line(miss.before), (f"▸{shown(miss.wanted)}◂", "bold red"))
        if miss.stored is not None:
            line.append(f"  stored: {shown(miss.stored)}", style="green")
        show(line)


def shown(token: str) -> str:
    """A token's text on one line, its white space visible."""
    return one_line(json.dumps(token, ensure_ascii=False)[1:-1]) if token.strip() != token or not token else token
