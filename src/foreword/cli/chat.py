"""`foreword chat`: a conversation that keeps its history, and says what of it was read from the cache."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import asdict

from foreword.cli.chat_commands import run_command
from foreword.cli.chat_input import MessageReader
from foreword.cli.console import err_console, one_line, remark, write_json, write_text
from foreword.cli.generate import account_line, timings
from foreword.cli.interrupt import Interrupted, interruptible
from foreword.cli.options import ModelOptions, QuietFlag, SamplingOptions, grouped
from foreword.cli.session import follow, open_model
from foreword.core.errors import ForewordError, InvalidRequestError

if TYPE_CHECKING:
    from foreword.bench.timing import StreamClock
    from foreword.core.sampling_params import SamplingParams
    from foreword.llm import LLM, RequestOutput


class ChatSamplingOptions(SamplingOptions, frozen=True, kw_only=True):
    """As for one answer, a little livelier."""

    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 512
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.3
    top_p: Annotated[float, typer.Option(rich_help_panel="Sampling")] = 0.9


class ChatOptions(Struct, frozen=True, kw_only=True):
    """How the conversation starts and what is shown of it."""

    system: Annotated[str | None, typer.Option("--system", "-s", help="System message.")] = None
    load: Annotated[str | None, typer.Option("--load", help="Go on with a conversation saved by /save.")] = None
    json: Annotated[bool, typer.Option("--json", help="One line of JSON a turn on stdout, and nothing else.")] = False
    quiet: QuietFlag = False


@grouped
def chat(*, shown: ChatOptions, model: ModelOptions, sampling: ChatSamplingOptions) -> None:
    """Talk with a model. Ctrl-C stops an answer, Ctrl-D or /quit ends the chat, /help lists what else there is."""
    params = sampling.params()
    if params.n != 1:
        raise InvalidRequestError("n", "1 in a chat", params.n)
    llm = open_model(model, quiet=shown.quiet or shown.json)
    conversation = Conversation(llm, params, system=shown.system)
    if shown.load is not None:
        remark(run_command(f"/load {shown.load}", conversation))
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not shown.json
    if interactive:
        remark('/help for commands, """ for text of several lines, Ctrl-D to leave')
    for text in MessageReader(interactive=interactive):
        try:
            if not _one_message(text, conversation, shown):
                return
        except KeyboardInterrupt:  # before the answer began, or pressed twice
            if not interactive:
                raise
            print()
            remark("stopped; the message is not kept")
        except ForewordError as error:
            if not interactive:
                raise
            err_console().print(one_line(str(error)), style="red", markup=False)


def _one_message(text: str, conversation: "Conversation", shown: ChatOptions) -> bool:
    """Answer a message or obey a command; False when the chat is over."""
    if text.startswith("/"):
        if text.split()[0] in ("/quit", "/exit"):
            return False
        remark(run_command(text, conversation))
        return True
    turn = conversation.answer(text, show=not shown.json)
    if shown.json:
        write_json(turn.as_json(conversation))
        return True
    write_text("\n" if turn.text.endswith("\n") else "\n\n")
    if turn.interrupted:
        remark("stopped; what was said so far stays in the history")
    if turn.output is not None and not shown.quiet:
        remark(account_line(turn.output, turn.clock))
    return True


class Turn(Struct, frozen=True):
    """One answer."""

    text: str
    output: "RequestOutput | None"  # None when it was stopped before the first token
    clock: "StreamClock"
    interrupted: bool

    def as_json(self, conversation: "Conversation") -> dict[str, object]:
        """The turn for machines."""
        return {
            "turn": conversation.num_turns,
            "text": self.text,
            "finish_reason": "abort" if self.output is None else self.output.outputs[0].finish_reason,
            "usage": None if self.output is None else asdict(self.output.usage),
            "timings": timings(conversation.llm, self.clock),
        }


class Conversation:
    """Messages so far and the model that continues them."""

    def __init__(self, llm: "LLM", params: "SamplingParams", *, system: str | None) -> None:
        if not llm.has_chat_template:
            raise ForewordError("this model has no chat template; use: foreword generate --raw")
        self.llm = llm
        self.messages: list[dict[str, str]] = []
        self.set_system(system)
        self._params = params

    @property
    def num_turns(self) -> int:
        """Answers in the history."""
        return sum(message["role"] == "assistant" for message in self.messages)

    def set_system(self, text: str | None) -> None:
        """Replace the system message; None takes it away."""
        rest = [message for message in self.messages if message["role"] != "system"]
        self.messages = rest if text is None else [{"role": "system", "content": text}, *rest]

    def reset(self) -> None:
        """Forget all but the system message."""
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def answer(self, text: str, *, show: bool) -> Turn:
        """Put a message to the model and keep both it and the answer.

        Raises:
            ForewordError: the conversation can't be continued, e.g. since it is longer than the context; the message
                is not kept.
        """
        from foreword.bench.timing import StreamClock

        asked = [*self.messages, {"role": "user", "content": text}]
        with interruptible() as flag:
            clock = StreamClock()
            deltas = self.llm.stream_chat(asked, self._params, progress=flag.check)
            interrupted = False
            try:
                follow(clock, deltas, (lambda delta: write_text(delta.text)) if show else (lambda _: None))
            except Interrupted:
                interrupted = True
        said = "" if clock.output is None else clock.output.outputs[0].text
        if said or not interrupted:
            self.messages = [*asked, {"role": "assistant", "content": said}]
        return Turn(said, clock.output, clock, interrupted)
