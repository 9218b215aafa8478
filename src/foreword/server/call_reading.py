"""Looking for calls of tools in the text of answers, whether it is being made or comes from the response cache."""

from collections.abc import Callable

from msgspec import Struct

from foreword.core.sequence import FinishReason
from foreword.text.tool_calls import ToolCallParser, ToolEvent, parse_tool_calls
from foreword.text.tool_formats import ToolFormat
from foreword.text.tools import ToolCall


class CallReading(Struct, frozen=True):
    """What to look for; in each answer all over again."""

    form: ToolFormat
    names: frozenset[str]
    max_calls: int | None
    opener_id: int | None  # the format's opener, where it is a special token
    is_held: bool = False  # by a grammar, to well-formed calls

    @property
    def shown(self) -> frozenset[int]:
        """Special tokens that are text to whoever looks for calls."""
        return frozenset() if self.opener_id is None else frozenset({self.opener_id})

    def parse(self, text: str) -> list[str | ToolCall]:
        """A whole answer at once."""
        return parse_tool_calls(text, self.form, self.names, max_calls=self.max_calls, is_held=self.is_held)

    def parser(self) -> ToolCallParser:
        """For one answer that comes in pieces."""
        return ToolCallParser(self.form, self.names, max_calls=self.max_calls, is_held=self.is_held)

    def end(self, n: int) -> Callable[[int, str], FinishReason | None]:
        """For a `TextWatch` over n answers: one ends with the last call it may have, or is cut off within one."""
        if self.max_calls is None and not self.is_held:
            return lambda index, text: None
        parsers = [self.parser() for _ in range(n)]

        def read(index: int, text: str) -> FinishReason | None:
            parser = parsers[index]
            parser.push(text)
            if parser.is_cut:
                return FinishReason.LENGTH
            return FinishReason.STOP if parser.is_done else None

        return read


class CallReader:
    """Texts and calls of n streamed answers, or their text alone where there is no `reading`."""

    def __init__(self, reading: CallReading | None, n: int = 1) -> None:
        self._parsers = None if reading is None else [reading.parser() for _ in range(n)]

    def read(self, index: int, text: str, *, is_last: bool) -> list[ToolEvent]:
        """What a piece of one answer brings."""
        if self._parsers is None:
            return [text] if text else []
        parser = self._parsers[index]
        return [*parser.push(text), *(parser.finish() if is_last else [])]

    def has_calls(self, index: int) -> bool:
        """True when an answer has called a tool."""
        return self._parsers is not None and self._parsers[index].num_calls > 0
