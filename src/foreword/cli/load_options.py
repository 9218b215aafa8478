"""Options of a load on a server, as `foreword bench serve` and `foreword replay --url` share them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import fields

from foreword.cli.asking import KeyOption, UrlOption
from foreword.cli.options import ModelOptions
from foreword.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from foreword.load.drive import Pace
    from foreword.load.report import Objectives
    from foreword.load.wire import Endpoint
    from foreword.load.workload import Workload

_LOAD = "Load on a server"
_SHORTEST_S = 0.001


class LoadOptions(Struct, frozen=True, kw_only=True):
    """What is sent to which server, and how fast."""

    url: UrlOption = None
    key: KeyOption = None
    ask_model: Annotated[
        str | None, typer.Option(help="Name to ask for. Default: the first the server lists.", rich_help_panel=_LOAD)
    ] = None
    streams: Annotated[int, typer.Option(help="Closed loop: requests at once.", rich_help_panel=_LOAD)] = 8
    rate: Annotated[
        float | None,
        typer.Option(help="Open loop: requests a second, at random (Poisson), instead.", rich_help_panel=_LOAD),
    ] = None
    duration: Annotated[
        float, typer.Option(min=_SHORTEST_S, help="Seconds in which requests start.", rich_help_panel=_LOAD)
    ] = 10.0
    requests: Annotated[int | None, typer.Option(min=1, help="Stop after so many requests.", rich_help_panel=_LOAD)] = (
        None
    )
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of a prompt.", rich_help_panel=_LOAD)] = 128
    answer_tokens: Annotated[int, typer.Option(help="Tokens of an answer.", rich_help_panel=_LOAD)] = 32
    shared: Annotated[
        float, typer.Option(help="Share of each prompt that all have in common.", rich_help_panel=_LOAD)
    ] = 0.0
    prefixes: Annotated[int, typer.Option(help="Different common beginnings.", rich_help_panel=_LOAD)] = 1
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Words through chat, instead of token ids through completions.", rich_help_panel=_LOAD
        ),
    ] = False
    seed: Annotated[int, typer.Option(help="Same seed, same load.", rich_help_panel=_LOAD)] = 0
    slo_ttft: Annotated[
        float | None, typer.Option(help="Goodput: seconds to the first token at most.", rich_help_panel=_LOAD)
    ] = None
    slo_tpot: Annotated[
        float | None, typer.Option(help="Goodput: seconds a further token at most.", rich_help_panel=_LOAD)
    ] = None
    leave: Annotated[
        float, typer.Option(help="Share of clients that reset their connection.", rich_help_panel=_LOAD)
    ] = 0.0
    garbage: Annotated[
        float, typer.Option(help="Share of requests that no server may take.", rich_help_panel=_LOAD)
    ] = 0.0
    timeout: Annotated[
        float, typer.Option(min=_SHORTEST_S, help="Seconds a whole answer may take.", rich_help_panel=_LOAD)
    ] = 120.0

    def pace(self) -> "Pace":
        """Closed or open."""
        from foreword.load.drive import Pace

        return Pace(streams=self.streams if self.rate is None else None, duration_s=self.duration)

    def objectives(self) -> "Objectives":
        """What counts for goodput."""
        from foreword.load.report import Objectives

        return Objectives(ttft_s=self.slo_ttft, tpot_s=self.slo_tpot)

    def workload(self, model: str, lengths: "list[tuple[int, int]] | None" = None) -> "Workload":
        """What is asked; with `lengths` of these lengths.

        Raises:
            InvalidRequestError: a value out of its range.
        """
        from foreword.load.workload import Workload

        for name in ("prompt_tokens", "answer_tokens"):
            if not 1 <= getattr(self, name) <= 2**20:
                raise InvalidRequestError(name, "1 to 1,048,576", getattr(self, name))
        return Workload(
            model=model,
            lengths=tuple(lengths or [(self.prompt_tokens, self.answer_tokens)]),
            shared=self.shared,
            num_prefixes=self.prefixes,
            chat=self.chat,
            seed=self.seed,
            leave=self.leave,
            garbage=self.garbage,
        )

    @contextmanager
    def server(self, model: ModelOptions, tell: Callable[[str], None]) -> "Iterator[Endpoint]":
        """The server at `--url`, or one of our own while this is open."""
        from foreword.load.own_server import own_server
        from foreword.load.wire import Endpoint

        if self.url is not None:
            yield Endpoint.of(self.url, self.key)
            return
        tell("starting a server")
        with own_server(as_arguments(model)) as url:
            yield Endpoint.of(url)


class SentTo(Struct, frozen=True, kw_only=True):
    """A server that a trace is sent to."""

    url: UrlOption = None
    key: KeyOption = None
    ask_model: Annotated[
        str | None, typer.Option(help="Name to ask for. Default: the first the server lists.", rich_help_panel=_LOAD)
    ] = None
    speed: Annotated[
        str, typer.Option(help="With --url: times as fast as recorded, or max.", rich_help_panel=_LOAD)
    ] = "1.0"
    answer_tokens: Annotated[
        int, typer.Option(help="Tokens of an answer, where the trace does not say.", rich_help_panel=_LOAD)
    ] = 32
    slo_ttft: Annotated[
        float | None, typer.Option(help="Goodput: seconds to the first token at most.", rich_help_panel=_LOAD)
    ] = None
    slo_tpot: Annotated[
        float | None, typer.Option(help="Goodput: seconds a further token at most.", rich_help_panel=_LOAD)
    ] = None
    timeout: Annotated[
        float, typer.Option(min=_SHORTEST_S, help="Seconds a whole answer may take.", rich_help_panel=_LOAD)
    ] = 120.0

    def factor(self) -> float | None:
        """The speed; None for as fast as can be.

        Raises:
            InvalidRequestError: neither a number nor max.
        """
        if self.speed == "max":
            return None
        try:
            return float(self.speed)
        except ValueError:
            raise InvalidRequestError("speed", "a number or max", self.speed) from None


def as_arguments(model: ModelOptions) -> list[str]:
    """The command line that gives these options again."""
    argv = ["--model", model.model]
    for field in fields(model):
        value = getattr(model, field.name)
        if field.name == "model" or value == field.default:
            continue
        name = f"--{field.name.replace('_', '-')}"
        argv += [name] if value is True else [name, value.value if isinstance(value, StrEnum) else str(value)]
    return argv
