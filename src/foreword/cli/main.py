"""The `foreword` command: one file a command; this one only joins them and turns errors into lines and exit codes."""

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from math import isnan
from typing import Annotated

import typer
from typer.core import TyperCommand

from foreword.cli.console import complain, one_line, silence
from foreword.core.errors import ForewordError, InvariantError

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE

COMMANDS = ("demo", "pull", "generate", "chat", "rerank", "serve", "bench", "plan", "lint", "why", "replay", "doctor")


class _Command(TyperCommand):
    """A command that takes nan for no number: it is not below a least value, so Typer lets it pass."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # Typer's own class
        """Read the arguments.

        Raises:
            typer.BadParameter: one of them is nan.
        """
        left = super().parse_args(ctx, args)
        for param in self.params:
            value = ctx.params.get(param.name or "")
            if getattr(param.type, "min", None) is not None and isinstance(value, float) and isnan(value):
                raise typer.BadParameter("nan is not a number.", ctx, param)
        return left


def make_app(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """The commands named, each in a file of its name under `cli`; only these files are imported."""
    app = typer.Typer(
        name="foreword",
        help="An LLM inference engine for plain CPUs that never reads the same opening twice.",
        context_settings={"help_option_names": ["-h", "--help"]},
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for name in names:
        app.command(cls=_Command)(getattr(import_module(f"foreword.cli.{name}"), name))
    app.callback(invoke_without_command=True)(_root)
    return app


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        from foreword import __version__

        print(f"foreword {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code.

    0 done; 1 done, but `doctor` found something to fix; 2 refused, with one line on stderr; 130 stopped by Ctrl-C;
    141 whoever read the output has gone.
    """
    _open_closed_streams()
    try:
        app = make_app(_wanted(sys.argv[1:] if argv is None else argv))
        code = app(args=argv, prog_name="foreword", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # Typer and rich turn a broken pipe into SystemExit; nothing else leaves that way with standalone_mode off.
        silence(1)
        return EXIT_BROKEN_PIPE
    except InvariantError as error:
        return _refuse(f"{error} (a bug in foreword: please report it)")
    except ForewordError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    except Exception as error:
        # A usage error of Typer's: its class moved between versions, what it can do has not.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        return _refuse(format_message())
    return code if isinstance(code, int) else 0


def _wanted(arguments: Sequence[str]) -> Sequence[str]:
    """The one command that will run; all where their list is the answer (`--help`, a name that is none of them)."""
    return arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS


def _refuse(message: str) -> int:
    complain(f"foreword: {one_line(message)}")
    try:
        sys.stdout.flush()
    except OSError:  # what is left would fail once more at exit, and change its code
        silence(1)
    return EXIT_REFUSED


def _open_closed_streams() -> None:
    # A stream closed by whoever started us (`>&-`, some service managers) is None in Python, and the next file opened
    # would take its number: nothing is read there, and what is written goes nowhere.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open until the process ends
