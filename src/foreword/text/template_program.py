"""Runs a model's templates. The only reader of jinja2 that the chat template has, and it is imported at first use."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template

from foreword.core.errors import InvalidRequestError
from foreword.text.messages import strings_in
from foreword.text.template_functions import RefusalError
from foreword.text.template_limits import LimitError, Meter
from foreword.text.template_sandbox import TemplateEnvironment

MAX_TEMPLATE_CHARACTERS = 64 << 10
MAX_OUTPUT_CHARACTERS = 32 << 20


class TemplateProgram:
    """Templates by their source, each compiled once, in the sandbox. `clock` is what `strftime_now` reads."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._environment = TemplateEnvironment(clock)
        self._compiled: dict[str, Template] = {}
        self._knows_tools: dict[str, bool] = {}

    def run(self, source: str, variables: Mapping[str, Any], constants: Mapping[str, Any]) -> str:
        """Render once; whatever goes wrong in the template is the request's error.

        Raises:
            InvalidRequestError: the template refuses the variables, fails or runs too long.
        """
        size = sum(map(len, strings_in(variables)))
        try:
            with self._environment.metered(Meter(size)):
                return "".join(_bounded(self._template(source).generate(**{**constants, **variables})))
        except LimitError as error:
            raise InvalidRequestError("chat_template", "a template that ends in bounds", str(error)) from None
        except RefusalError as error:
            expected = "a conversation that the model's chat template accepts"
            raise InvalidRequestError("messages", expected, str(error)) from None
        except Exception as error:  # a template is a program by a stranger: it can raise anything
            detail = f"{type(error).__name__}: {error}"
            raise InvalidRequestError("chat_template", "a template that can write this conversation", detail) from None

    def reads_tools(self, source: str) -> bool:
        """True if a template uses the variable `tools`; one that is broken is left to fail where it is run."""
        if source not in self._knows_tools:
            is_short = len(source) <= MAX_TEMPLATE_CHARACTERS
            self._knows_tools[source] = not is_short or self._environment.reads(source, "tools")
        return self._knows_tools[source]

    def _template(self, source: str) -> Template:
        if source not in self._compiled:
            if len(source) > MAX_TEMPLATE_CHARACTERS:
                raise LimitError(f"{len(source)} characters; at most {MAX_TEMPLATE_CHARACTERS} are accepted")
            self._compiled[source] = self._environment.from_string(source)
        return self._compiled[source]


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > MAX_OUTPUT_CHARACTERS:
            raise LimitError(f"more than {MAX_OUTPUT_CHARACTERS} characters of output")
        yield piece
