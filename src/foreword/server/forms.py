"""The form of an answer, as the dialects ask for it."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from foreword.core.errors import InvalidRequestError
from foreword.core.structured_output import StructuredOutput


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`: one of its fields. `grammar` is in llguidance's dialect of Lark."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class TextFormat(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """Any text."""


class ObjectFormat(msgspec.Struct, tag="json_object", tag_field="type", forbid_unknown_fields=True):
    """Any JSON object."""


class NamedSchema(msgspec.Struct, forbid_unknown_fields=True):
    """A schema. It is kept to the letter whatever `strict` says; name and description are for people."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(msgspec.Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True):
    """JSON that fits a schema."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | ObjectFormat | SchemaFormat


class PlainSchemaFormat(msgspec.Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True):
    """JSON that fits a schema, as Anthropic's clients ask for it."""

    schema: dict[str, Any]


class FlatSchemaFormat(msgspec.Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True):
    """The same, as `/v1/responses` has it."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


ResponseTextFormat = TextFormat | ObjectFormat | FlatSchemaFormat


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """Anthropic's `output_config`; an effort is refused, since no model here knows one."""

    effort: Any = None
    format: PlainSchemaFormat | None = None


def structured_output(
    response_format: ResponseFormat | None, wanted: StructuredOutputs | None
) -> StructuredOutput | None:
    """What OpenAI's field or vLLM's asks for; None for any text.

    Raises:
        InvalidRequestError: 400, both are given, or one is malformed.
    """
    is_formatted = response_format is not None and not isinstance(response_format, TextFormat)
    if wanted is not None and is_formatted:
        raise InvalidRequestError("structured_outputs", "none beside a response_format", "both")
    if wanted is not None:
        return _structured_outputs(wanted)
    if isinstance(response_format, SchemaFormat) and response_format.json_schema.schema is not None:
        return StructuredOutput(
            json_schema=response_format.json_schema.schema, origin="response_format.json_schema.schema"
        )
    return StructuredOutput(json_object=True, origin="response_format") if is_formatted else None


def _structured_outputs(wanted: StructuredOutputs) -> StructuredOutput:
    given = {name: value for name in wanted.__struct_fields__ if (value := getattr(wanted, name)) not in (None, False)}
    if len(given) != 1:
        expected = f"exactly one of {', '.join(wanted.__struct_fields__)}"
        raise InvalidRequestError("structured_outputs", expected, sorted(given) or "none")
    ((name, value),) = given.items()
    kind = "json_schema" if name == "json" else name
    return StructuredOutput(origin=f"structured_outputs.{name}", **{kind: value})


def response_text_format(text_format: ResponseTextFormat | None) -> StructuredOutput | None:
    """What `text.format` of `/v1/responses` asks for; None for any text.

    Raises:
        InvalidRequestError: 400, it is malformed.
    """
    if text_format is None or isinstance(text_format, TextFormat):
        return None
    if isinstance(text_format, FlatSchemaFormat):
        return StructuredOutput(json_schema=text_format.schema, origin="text.format.schema")
    return StructuredOutput(json_object=True, origin="text.format")


def output_format(config: OutputConfig | None) -> StructuredOutput | None:
    """What Anthropic's field asks for.

    Raises:
        InvalidRequestError: 400, it is malformed.
    """
    if config is None or config.format is None:
        return None
    return StructuredOutput(json_schema=config.format.schema, origin="output_config.format.schema")
