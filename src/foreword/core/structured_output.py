"""The form an answer must have, validated on creation; what it means in tokens, the vocabulary decides."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

from foreword.core.errors import InvalidRequestError

MAX_STRUCTURED_BYTES = 64 << 10
"""Of a schema, pattern, grammar or list of choices, as UTF-8."""
MAX_SCHEMA_DEPTH = 64
MAX_CHOICES = 1024

StructuredKind = Literal["json_object", "json_schema", "regex", "grammar", "choice"]
_KINDS: tuple[StructuredKind, ...] = get_args(StructuredKind)


class StructuredOutput(Struct, frozen=True, kw_only=True):
    """Exactly one of five ways to say which answers are allowed.

    Attributes:
        json_object: true for any JSON object.
        json_schema: a JSON Schema, as text or as a mapping; kept as compact text, its names in the order given.
        regex: a pattern that the whole answer matches.
        grammar: a grammar in llguidance's dialect of Lark.
        choice: the answer is one of these texts; kept as a tuple.
        origin: what the caller calls the field it came in, for errors; else `structured_output` and the kind.
        parts: of a grammar made of several wishes these, so that an error can tell which of them is to blame.

    Ones that allow the same compare and hash alike, wherever they came from.

    Raises:
        InvalidRequestError: none or several were given, or the one is malformed or too large.
    """

    json_object: bool = False
    json_schema: str | Mapping[str, object] | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    origin: str | None = None
    parts: tuple["StructuredOutput", ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.json_object, bool):
            raise InvalidRequestError(self._name("json_object"), "true or false", self.json_object)
        given = [kind for kind in _KINDS if getattr(self, kind) not in (None, False)]
        if len(given) != 1:
            name = self.origin or "structured_output"
            raise InvalidRequestError(name, f"exactly one of {', '.join(_KINDS)}", given or "none")
        name = self._name(given[0])
        if self.json_schema is not None:
            force_setattr(self, "json_schema", _canonical_schema(name, self.json_schema))
        for text in (self.regex, self.grammar):
            if text is not None:
                _check_text(name, text)
        if self.choice is not None:
            force_setattr(self, "choice", _checked_choices(name, self.choice))

    def __eq__(self, other: object) -> bool:
        return self._allowed() == other._allowed() if isinstance(other, StructuredOutput) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._allowed())

    def _allowed(self) -> tuple[object, ...]:
        return self.json_object, self.json_schema, self.regex, self.grammar, self.choice

    def _name(self, kind: StructuredKind) -> str:
        return self.origin or f"structured_output.{kind}"

    @property
    def name(self) -> str:
        """What its caller calls it."""
        return self._name(self.kind)

    @property
    def kind(self) -> StructuredKind:
        """Which of the five it is."""
        return next(kind for kind in _KINDS if getattr(self, kind) not in (None, False))

    @property
    def source(self) -> str:
        """Schema, pattern or grammar as text; choices as a JSON list; for any JSON object, the schema of one."""
        if self.json_object:
            return '{"type":"object"}'
        if self.choice is not None:
            return json.dumps(self.choice, ensure_ascii=False)
        return str(getattr(self, self.kind))


def _check_text(name: str, text: object) -> None:
    expected = f"text of 1 to {MAX_STRUCTURED_BYTES} bytes"
    if not isinstance(text, str) or not text:
        raise InvalidRequestError(name, expected, text)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(name, "text without lone surrogates", text) from None
    if size > MAX_STRUCTURED_BYTES:
        raise InvalidRequestError(name, expected, f"{size} bytes")


def _canonical_schema(name: str, schema: str | Mapping[str, object]) -> str:
    """Compact JSON of a schema."""
    expected = f"a JSON object nested at most {MAX_SCHEMA_DEPTH} deep"
    if isinstance(schema, str):
        _check_text(name, schema)
    try:
        value = json.loads(schema, parse_constant=_refuse_constant) if isinstance(schema, str) else dict(schema)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(name, expected, str(error) or type(error).__name__) from None
    if not isinstance(value, dict) or _depth(value) > MAX_SCHEMA_DEPTH:
        raise InvalidRequestError(name, expected, text)
    _check_text(name, text)
    return text


def _refuse_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _depth(value: object) -> int:
    """How deep objects and lists are nested; without recursion, since a caller decides."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner: list[object] = []
        for item in level:
            inner += item.values() if isinstance(item, dict) else item if isinstance(item, list | tuple) else ()
        level = [item for item in inner if isinstance(item, dict | list | tuple)]
    return depth


def _checked_choices(name: str, choices: Sequence[str]) -> tuple[str, ...]:
    expected = f"a list of 1 to {MAX_CHOICES} texts"
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not 0 < len(choices) <= MAX_CHOICES:
        raise InvalidRequestError(name, expected, choices)
    for choice in choices:
        _check_text(name, choice)
    size = sum(len(choice.encode()) for choice in choices)
    if size > MAX_STRUCTURED_BYTES:
        raise InvalidRequestError(name, f"at most {MAX_STRUCTURED_BYTES} bytes", f"{size} bytes")
    return tuple(dict.fromkeys(choices))
