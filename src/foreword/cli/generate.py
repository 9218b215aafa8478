"""`foreword generate`: one prompt, one answer, streamed."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import asdict

from foreword.cli.beams import BeamOptions, show_beams
from foreword.cli.console import human_rate, human_s, remark, write_json, write_text
from foreword.cli.interrupt import Interrupted, interruptible
from foreword.cli.options import JsonFlag, ModelOptions, QuietFlag, SamplingOptions, grouped
from foreword.cli.session import follow, open_model
from foreword.cli.text_input import prompt_text, read_text
from foreword.core.errors import ForewordError
from foreword.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from foreword.bench.timing import StreamClock
    from foreword.llm import LLM, RequestOutput, TextDelta
    from foreword.llm.outputs import PositionLogprobs

    Message = Mapping[str, object]
    Deltas = Generator[TextDelta, None, None]
    from foreword.llm.run import Progress


class PromptOptions(Struct, frozen=True, kw_only=True):
    """Where the prompt comes from and how it is put to the model."""

    file: Annotated[str | None, typer.Option("--file", "-f", help="Read the prompt from a file; - is stdin.")] = None
    document: Annotated[str | None, typer.Option("--document", "-d", help="Ask PROMPT about this text file.")] = None
    system: Annotated[str | None, typer.Option("--system", "-s", help="System message.")] = None
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Put the prompt as a chat message, or let the model continue the text. "
            "Default: chat, if the model has a template.",
        ),
    ] = None


class OutputOptions(Struct, frozen=True, kw_only=True):
    """What comes out."""

    json: JsonFlag = False
    quiet: QuietFlag = False
    token_ids: Annotated[bool, typer.Option("--token-ids", help="Token ids too, in --json.")] = False


@grouped
def generate(
    prompt: Annotated[str | None, typer.Argument(help="Text, or - for stdin.", show_default=False)] = None,
    *,
    source: PromptOptions,
    model: ModelOptions,
    sampling: SamplingOptions,
    beams: BeamOptions,
    shown: OutputOptions,
) -> None:
    """Answer a prompt, or a question about a document, streaming."""
    text = prompt_text(prompt, source.file)
    document = None if source.document is None else read_text(source.document)
    params = sampling.params()
    search = beams.params(params)
    llm = open_model(model, quiet=shown.quiet or shown.json)
    put = _put(llm, text, document, source)
    if search is not None:
        asked = put if isinstance(put, str) else {"prompt_token_ids": llm.chat_template.encode(put)}
        show_beams(llm, asked, search, json=shown.json, quiet=shown.quiet, token_ids=shown.token_ids)
        return
    from foreword.bench.timing import StreamClock

    with interruptible() as flag:
        clock = StreamClock()
        deltas = _start(llm, put, params, flag.check)
        try:
            output = follow(clock, deltas, (lambda _: None) if shown.json else _Printer(params.n).show)
        except Interrupted:
            write_text("\n" if sys.stdout.isatty() else "")  # the shell's prompt gets a line of its own
            raise KeyboardInterrupt from None
    if output is None:
        raise ForewordError("the model gave no answer")
    if shown.json:
        write_json(_as_json(llm, output, clock, token_ids=shown.token_ids))
        return
    write_text("" if output.outputs[0].text.endswith("\n") or params.n > 1 else "\n")
    if not shown.quiet:
        remark(account_line(output, clock))


def account_line(output: "RequestOutput", clock: "StreamClock") -> str:
    """What an answer cost, in one line."""
    usage = output.usage
    parts = [
        f"{usage.prompt_tokens:,} prompt tokens",
        f"{usage.cached_tokens:,} from cache, {usage.computed_tokens:,} computed",
        f"{usage.completion_tokens:,} new",
    ]
    if clock.ttft_s is not None:
        parts.append(f"first after {human_s(clock.ttft_s)}")
    if clock.decode_tok_s is not None:
        parts.append(human_rate(clock.decode_tok_s))
    return " · ".join(parts)


def timings(llm: "LLM", clock: "StreamClock") -> dict[str, float | None]:
    """Seconds and rates of an answer, for JSON; None where it was too short to have one."""
    return {
        "load_s": llm.summary.load_s,
        "ttft_s": clock.ttft_s,
        "decode_tok_s": clock.decode_tok_s,
        "wall_s": clock.wall_s,
    }


class _Printer:
    """Shows a stream; several answers one after the other, each when it is whole."""

    def __init__(self, n: int) -> None:
        self._n = n

    def show(self, delta: "TextDelta") -> None:
        if self._n == 1:
            write_text(delta.text)
        elif delta.finish_reason is not None:
            text = delta.output.outputs[delta.index].text
            write_text(f"[{delta.index + 1}/{self._n}]\n{text.strip()}\n\n")


def _start(llm: "LLM", put: "str | list[Message]", params: SamplingParams, check: "Progress") -> "Deltas":
    if isinstance(put, str):
        return llm.stream(put, params, progress=check)
    return llm.stream_chat(put, params, progress=check)


def _put(llm: "LLM", text: str, document: str | None, source: PromptOptions) -> "str | list[Message]":
    """The prompt as it is put to the model: a conversation, or text to go on from."""
    as_chat = llm.has_chat_template if source.chat is None else source.chat
    if as_chat:
        messages: list[Message] = [] if source.system is None else [{"role": "system", "content": source.system}]
        messages.append({"role": "user", "content": text if document is None else _about(document, text)})
        return messages
    if source.system is not None:
        raise ForewordError("--system: needs a chat template; without one put it into the prompt")
    return text if document is None else f"{_about(document, text)}\nAnswer:"


def _about(document: str, question: str) -> str:
    # The document comes first: the next question about it finds all of it in the prefix cache.
    return f"{document.strip()}\n\nQuestion: {question.strip()}"


def _as_json(llm: "LLM", output: "RequestOutput", clock: "StreamClock", *, token_ids: bool) -> "Mapping[str, object]":
    answers = []
    for answer in output.outputs:
        entry: dict[str, object] = {
            "index": answer.index,
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        if token_ids:
            entry["token_ids"] = answer.token_ids
        if answer.logprobs is not None:
            entry["cumulative_logprob"] = answer.cumulative_logprob
            entry["logprobs"] = [_position(p) for p in answer.logprobs]
        answers.append(entry)
    result: dict[str, object] = {
        "model": llm.summary.model,
        "text": output.outputs[0].text,
        "finish_reason": output.outputs[0].finish_reason,
        "outputs": answers,
        "usage": asdict(output.usage),
        "timings": timings(llm, clock),
        "engine": asdict(llm.summary),
    }
    if token_ids:
        result["prompt_token_ids"] = output.prompt_token_ids
    if output.prompt_logprobs is not None:
        result["prompt_logprobs"] = [None if p is None else _position(p) for p in output.prompt_logprobs]
    return result


def _position(logprobs: "PositionLogprobs") -> list[dict[str, object]]:
    return [{"token_id": token, **asdict(found)} for token, found in logprobs.items()]
