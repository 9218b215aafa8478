"""What a line that starts with a slash does in a chat. Each command returns what to tell the user."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from foreword.cli.text_input import read_text
from foreword.core.errors import ForewordError, shorten

if TYPE_CHECKING:
    from foreword.cli.chat import Conversation

_ROLES = ("system", "user", "assistant")
_MAX_MESSAGES = 10_000


def run_command(line: str, conversation: "Conversation") -> str:
    """Obey a command.

    Raises:
        ForewordError: there is none of that name, or it failed; the conversation is unchanged.
    """
    name, _, argument = line.strip().partition(" ")
    command = _COMMANDS.get(name)
    if command is None:
        raise ForewordError(f"no command {shorten(name)}; /help lists them")
    return command(conversation, argument.strip())


def _help(_conversation: "Conversation", _argument: str) -> str:
    return "\n".join(
        [
            "/reset          forget the conversation, keep the system message",
            "/system [TEXT]  set the system message, or take it away; the next turn reads everything anew",
            "/save FILE      write the conversation as JSON",
            "/load FILE      go on with a saved conversation",
            "/stats          the engine's counters",
            "/quit           leave (or Ctrl-D)",
            'Ctrl-C stops an answer. A line ending with \\ goes on; """ opens and closes text of several lines.',
        ]
    )


def _reset(conversation: "Conversation", _argument: str) -> str:
    conversation.reset()
    return "the conversation starts anew"


def _system(conversation: "Conversation", argument: str) -> str:
    conversation.set_system(argument or None)
    return "system message set" if argument else "system message taken away"


def _save(conversation: "Conversation", argument: str) -> str:
    path = _path(argument)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(
            json.dumps({"messages": conversation.messages}, ensure_ascii=False, indent=1) + "\n", "utf-8"
        )
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ForewordError(f"{path}: {(error.strerror or 'cannot be written').lower()}") from None
    return f"{len(conversation.messages)} messages saved to {path}"


def _load(conversation: "Conversation", argument: str) -> str:
    path = _path(argument)
    conversation.messages = _checked_messages(path, read_text(str(path)))
    return f"{len(conversation.messages)} messages loaded from {path}"


def _stats(conversation: "Conversation", _argument: str) -> str:
    counters = asdict(conversation.llm.stats())
    width = max(len(name) for name in counters)
    lines = [
        f"{name:<{width}}  {value:>12,.4g}" if isinstance(value, float) else f"{name:<{width}}  {value:>12,}"
        for name, value in counters.items()
    ]
    return "\n".join(lines)


def _path(argument: str) -> Path:
    if not argument:
        raise ForewordError("name a file")
    return Path(argument).expanduser()


def _checked_messages(path: Path, text: str) -> list[dict[str, str]]:
    try:
        saved = json.loads(text)
    except (ValueError, RecursionError):
        raise ForewordError(f"{path}: not JSON") from None
    messages = saved.get("messages") if isinstance(saved, dict) else None
    if not isinstance(messages, list) or len(messages) > _MAX_MESSAGES:
        raise ForewordError(f'{path}: expected {{"messages": [...]}} with at most {_MAX_MESSAGES} messages')
    for number, message in enumerate(messages):
        fine = isinstance(message, dict) and set(message) == {"role", "content"} and message["role"] in _ROLES
        if not fine or not isinstance(message["content"], str):
            raise ForewordError(f'{path}: message {number}: expected {{"role", "content"}} of a known role')
    return messages


_COMMANDS: dict[str, "Callable[[Conversation, str], str]"] = {
    "/help": _help,
    "/reset": _reset,
    "/system": _system,
    "/save": _save,
    "/load": _load,
    "/stats": _stats,
}
