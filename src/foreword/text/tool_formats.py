r"""How models write tool calls: known by what their chat template says of it.

hermes    <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>, any number (Hermes, Qwen, our own default)
llama3    {"name": …, "parameters": {…}} as the whole answer, perhaps behind <|python_tag|>
mistral   [TOOL_CALLS] [{"name": …, "arguments": {…}}, …]
"""

from msgspec import Struct


class ToolFormat(Struct, frozen=True):
    """One way to write calls: JSON objects, or a list of them, between texts."""

    name: str
    opener: str
    closer: str | None
    arguments_key: str
    starts_bare: bool = False  # an answer that begins with an object is a call without opener


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", "arguments")
LLAMA3 = ToolFormat("llama3", "<|python_tag|>", None, "parameters", starts_bare=True)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", None, "arguments")


def tool_format(template_source: str) -> ToolFormat | None:
    """The format a template that knows tools has its model use, or None for one that can't be read here."""
    if "[TOOL_CALLS]" in template_source:
        return None if "[ARGS]" in template_source else MISTRAL
    if "<tool_call>" in template_source:
        return None if "<function=" in template_source or "<arg_key>" in template_source else HERMES
    if "<|python_tag|>" in template_source or '{"name": function name, "parameters"' in template_source:
        return LLAMA3
    return None
