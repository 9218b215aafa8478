"""An answer of `/v1/responses` as items: gathered from text and calls, whole or in pieces, with the events of each."""

from collections.abc import Iterator

from foreword.server.openai.responses_items import new_id
from foreword.text.early_calls import ToolCallDelta
from foreword.text.partial_json import completed_object
from foreword.text.tool_calls import ToolEvent

Event = tuple[str, dict[str, object]]
"""An event's type, and its fields but for type and sequence number."""
Logprobs = list[dict[str, object]]


class OutputItems:
    """The items of one answer. At most the last one is open; its number is its place in `items`."""

    def __init__(self) -> None:
        self.items: list[dict[str, object]] = []
        self._open: dict[str, object] | None = None
        self._text: list[str] = []  # of the open item: what it says, or a call's arguments
        self._logprobs: Logprobs = []

    def add(self, event: ToolEvent, logprobs: Logprobs | None = None) -> Iterator[Event]:
        """Text, with its probabilities where they are told, or a part of a call."""
        if isinstance(event, str):
            yield from self._say(event, logprobs or [])
        else:
            yield from self._call(event)

    def close(self, *, is_cut: bool) -> Iterator[Event]:
        """The answer is over. `is_cut`: before its end, and then text is incomplete, and so may be a call."""
        if not self.items:
            yield from self._open_message()
        yield from self._close("incomplete" if is_cut else "completed")

    def _say(self, text: str, logprobs: Logprobs) -> Iterator[Event]:
        if self._open is None or self._open["type"] != "message":
            yield from self._close("completed")
            yield from self._open_message()
        self._text.append(text)
        self._logprobs += logprobs
        yield "response.output_text.delta", {**self._place, "content_index": 0, "delta": text, "logprobs": logprobs}

    def _call(self, delta: ToolCallDelta) -> Iterator[Event]:
        if delta.name is not None:
            yield from self._close("completed")
            ids = {"id": new_id("fc"), "call_id": new_id("call")}
            yield from self._begin({**ids, "type": "function_call", "name": delta.name, "arguments": ""})
        if delta.arguments:
            self._text.append(delta.arguments)
            yield "response.function_call_arguments.delta", {**self._place, "delta": delta.arguments}

    def _open_message(self) -> Iterator[Event]:
        yield from self._begin({"id": new_id("msg"), "type": "message", "role": "assistant", "content": []})
        yield "response.content_part.added", {**self._place, "content_index": 0, "part": _part("", [])}

    def _begin(self, item: dict[str, object]) -> Iterator[Event]:
        self._open = {**item, "status": "in_progress"}
        self._text, self._logprobs = [], []
        self.items.append(self._open)
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": dict(self._open)}

    def _close(self, status: str) -> Iterator[Event]:
        item, text = self._open, "".join(self._text)
        if item is None:
            return
        if item["type"] == "message":
            item["status"], part = status, _part(text, self._logprobs)
            item["content"] = [part]
            at = {**self._place, "content_index": 0}
            yield "response.output_text.done", {**at, "text": text, "logprobs": self._logprobs}
            yield "response.content_part.done", {**at, "part": part}
        else:
            is_whole = status == "completed" or completed_object(text) == text
            item["status"], item["arguments"] = "completed" if is_whole else status, text
            yield "response.function_call_arguments.done", {**self._place, "arguments": text}
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": dict(item)}
        self._open = None

    @property
    def _place(self) -> dict[str, object]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}


def _part(text: str, logprobs: Logprobs) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
