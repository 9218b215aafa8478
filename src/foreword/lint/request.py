"""A logged request as a row of parts, in the order in which a prefix is read: tools, system, messages."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from msgspec import Struct

Section = Literal["tools", "system", "messages"]
Dialect = Literal["chat", "messages", "responses", "completions"]
Path = tuple[str | int, ...]
Body = dict[str, object]

_WRAPPERS = ("body", "request", "request_body", "payload")
_TIMES = ("timestamp", "time", "ts", "created_at", "created", "t")
_TENANTS = ("tenant", "user_id", "api_key", "organization")
_PATHS: dict[str, Dialect] = {
    "chat/completions": "chat",
    "responses": "responses",
    "messages": "messages",
    "completions": "completions",
}
MAX_PARTS = 100_000


class LogError(ValueError):
    """What is wrong with a line; the reader adds which line."""


@dataclass(slots=True, eq=False)
class Part:
    """One piece of a prompt that stands or falls as a whole.

    `path` leads to its text, or to the object it was made from, in the request's body. `marker` is the lifetime that a
    `cache_control` on it asks for.
    """

    section: Section
    role: str
    path: Path
    text: str
    kind: str = "text"  # or tool, tool_use, tool_result, other
    marker: str | None = None
    opens: bool = True  # first of its message
    rendered: bytes = field(init=False)

    def __post_init__(self) -> None:
        head = f"<|{self.role}|>\n" if self.opens else ""
        self.rendered = f"{head}{self.text}\n".encode("utf-8", "surrogatepass")

    @property
    def place(self) -> str:
        """`messages[0].content[1].text`."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path).lstrip(".")


class LoggedRequest(Struct, eq=False):
    """One request of a log."""

    line: int
    dialect: Dialect
    body: Body
    parts: list[Part]
    model: str = ""
    tenant: str = ""
    time_s: float | None = None
    automatic: str | None = None  # lifetime of a top-level cache_control

    @property
    def namespace(self) -> bytes:
        """What never shares a prefix with another: tenant and model."""
        return f"{self.tenant}\0{self.model}".encode("utf-8", "surrogatepass")


def parse_requests(line: int, record: object) -> Iterator[LoggedRequest]:
    """The requests of one log line: a body as it was sent, alone or with time and tenant around it.

    A list of prompts is as many requests.

    Raises:
        LogError: no request of a dialect that is known.
    """
    if not isinstance(record, dict):
        raise LogError("expected an object")
    body = next((record[name] for name in _WRAPPERS if isinstance(record.get(name), dict)), record)
    dialect = _dialect(record, body)
    tenant = next((str(record[name]) for name in _TENANTS if isinstance(record.get(name), str | int)), "")
    model = body.get("model")
    outer = {} if body is record else record
    for parts in _parts(dialect, body):
        if len(parts) > MAX_PARTS:
            raise LogError(f"expected at most {MAX_PARTS:,} parts, got {len(parts):,}")
        yield LoggedRequest(
            line,
            dialect,
            body,
            parts,
            model if isinstance(model, str) else "",
            tenant,
            _time(outer or record),
            _marker(body),
        )


def compact(value: object) -> str:
    """JSON without spaces, keys in the order in which they came."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _dialect(record: Mapping[str, object], body: Mapping[str, object]) -> Dialect:
    where = next((record[name] for name in ("path", "url", "endpoint") if isinstance(record.get(name), str)), "")
    for ending, dialect in _PATHS.items():
        if str(where).split("?")[0].rstrip("/").endswith(ending):
            return dialect
    if isinstance(body.get("messages"), list):
        return "messages" if _is_anthropic(body) else "chat"
    if "input" in body:
        return "responses"
    if "prompt" in body:
        return "completions"
    raise LogError("expected an object with messages, input or prompt")


def _is_anthropic(body: Mapping[str, object]) -> bool:
    if "system" in body or "cache_control" in body or "anthropic_version" in body:
        return True
    tools = body.get("tools")
    if isinstance(tools, list) and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools):
        return True
    messages = body["messages"]
    assert isinstance(messages, list)
    blocks = [
        block for m in messages if isinstance(m, dict) and isinstance(m.get("content"), list) for block in m["content"]
    ]
    return any(
        isinstance(block, dict) and (block.get("type") in ("tool_use", "tool_result") or "cache_control" in block)
        for block in blocks
    )


def _parts(dialect: Dialect, body: Mapping[str, object]) -> Iterator[list[Part]]:
    if dialect == "completions":
        prompts = body["prompt"] if isinstance(body.get("prompt"), list) else [body.get("prompt")]
        assert isinstance(prompts, list)
        if prompts and all(isinstance(token, int) for token in prompts):
            prompts = [prompts]  # one prompt of token ids
        for index, prompt in enumerate(prompts):
            path: Path = ("prompt", index) if isinstance(body.get("prompt"), list) and len(prompts) > 1 else ("prompt",)
            text = prompt if isinstance(prompt, str) else compact(prompt)
            yield [Part("messages", "prompt", path, text)]
        return
    parts = list(_tools(body))
    if dialect == "messages":
        parts += _content(body.get("system"), "system", "system", ("system",))
    if dialect == "responses":
        parts += _content(body.get("instructions"), "system", "system", ("instructions",))
    name = "input" if dialect == "responses" else "messages"
    items = body.get(name)
    if isinstance(items, str):
        parts.append(Part("messages", "user", (name,), items))
    elif isinstance(items, list):
        for index, item in enumerate(items):
            parts += _message(item, (name, index))
    else:
        raise LogError(f"{name}: expected a list")
    yield parts


def _tools(body: Mapping[str, object]) -> Iterator[Part]:
    tools = body.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        shown = (
            {key: value for key, value in tool.items() if key != "cache_control"} if isinstance(tool, dict) else tool
        )
        yield Part("tools", "tools", ("tools", index), compact(shown), "tool", _marker(tool), opens=index == 0)


def _message(item: object, path: Path) -> Iterator[Part]:
    if not isinstance(item, dict):
        raise LogError(f"{path[0]}[{path[1]}]: expected an object")
    if item.get("type") == "function_call":
        yield Part("messages", "assistant", (*path, "arguments"), _call(item), "tool_use")
        return
    if item.get("type") == "function_call_output":
        yield from _content(item.get("output"), "messages", "tool", (*path, "output"), kind="tool_result")
        return
    role = item.get("role")
    if not isinstance(role, str):
        raise LogError(f"{path[0]}[{path[1]}].role: expected text")
    section: Section = "system" if role in ("system", "developer") else "messages"
    parts = list(
        _content(item.get("content"), section, role, (*path, "content"), "tool_result" if role == "tool" else "text")
    )
    calls = item.get("tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            where = (*path, "tool_calls", index, "function", "arguments")
            parts.append(Part(section, role, where, _call(function), "tool_use", opens=not parts))
    yield from parts


def _call(function: Mapping[str, object]) -> str:
    arguments = function.get("arguments")
    return f"{function.get('name')}({arguments if isinstance(arguments, str) else compact(arguments)})"


def _content(content: object, section: Section, role: str, path: Path, kind: str = "text") -> Iterator[Part]:
    if content is None or content == []:
        return
    if isinstance(content, str):
        yield Part(section, role, path, content, kind)
        return
    if not isinstance(content, list):
        yield Part(section, role, path, compact(content), "other")
        return
    for index, block in enumerate(content):
        if isinstance(block, str):
            yield Part(section, role, (*path, index), block, kind, opens=index == 0)
            continue
        block_kind, where, text = _block(block, (*path, index), kind)
        yield Part(section, role, where, text, block_kind, _marker(block), opens=index == 0)


def _block(block: object, path: Path, kind: str) -> tuple[str, Path, str]:
    """Kind, path and text of a content block."""
    if not isinstance(block, dict):
        return "other", path, compact(block)
    if isinstance(block.get("text"), str):
        return kind, (*path, "text"), str(block["text"])
    if block.get("type") == "tool_use":
        return "tool_use", (*path, "input"), f"{block.get('name')}({compact(block.get('input'))})"
    if block.get("type") == "tool_result":
        content = block.get("content")
        return "tool_result", (*path, "content"), content if isinstance(content, str) else compact(content)
    return "other", path, compact({key: value for key, value in block.items() if key != "cache_control"})


def _marker(holder: object) -> str | None:
    control = holder.get("cache_control") if isinstance(holder, dict) else None
    if not isinstance(control, dict) or control.get("type") != "ephemeral":
        return None
    return "1h" if control.get("ttl") == "1h" else "5m"


def _time(record: Mapping[str, object]) -> float | None:
    for name in _TIMES:
        value = record.get(name)
        if isinstance(value, bool):
            continue
        if isinstance(value, int | float) and abs(value) < 1e15:
            return (
                float(value) / 1000 if value > 1e11 else float(value)
            )  # milliseconds since 1970 are beyond any second
        if isinstance(value, str):
            try:
                return datetime.fromisoformat(value).timestamp()
            except ValueError:
                continue
    return None
