"""Generated logs of an application that does everything right, and of the same with one fault planted, or several."""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
Plant = Callable[[list[Body], random.Random], None]

_WORDS = ("river stone lantern keeper harbour ledger window signal winter copper garden letter bridge market").split()  # noqa: SIM905  # a list of words reads as words
TOOLS = [
    {
        "name": name,
        "description": f"Look up {name.replace('_', ' ')} for the reader and answer with what is known about it.",
        "input_schema": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}},
    }
    for name in ("find_book", "find_author", "list_shelves", "reserve_copy")
]


def prose(rng: random.Random, words: int) -> str:
    """Plain words, no digits."""
    return " ".join(rng.choice(_WORDS) for _ in range(words)).capitalize() + "."


def clean_log(*, conversations: int = 6, turns: int = 5, seed: int = 0) -> list[Body]:
    """Anthropic requests, a minute apart: tools, a long system prompt, two examples, and a conversation that grows."""
    rng = random.Random(seed)
    system = " ".join(prose(rng, 40) for _ in range(30))
    examples = [
        message
        for _ in range(3)
        for message in (
            {"role": "user", "content": "Example question: " + prose(rng, 30)},
            {"role": "assistant", "content": "Example answer: " + prose(rng, 30)},
        )
    ]
    log: list[Body] = []
    for _ in range(conversations):
        history: list[Body] = []
        for _ in range(turns):
            history.append({"role": "user", "content": prose(rng, 30)})
            body: Body = {
                "model": "m",
                "max_tokens": 50,
                "cache_control": {"type": "ephemeral"},
                "tools": copy.deepcopy(TOOLS),
                "system": [{"type": "text", "text": system}],
                "messages": copy.deepcopy([*examples, *history]),
            }
            body["messages"][5]["content"] = [
                {"type": "text", "text": examples[5]["content"], "cache_control": {"type": "ephemeral"}}
            ]
            log.append({"timestamp": 1000.0 + 60 * len(log), "path": "/v1/messages", "body": body})
            history.append({"role": "assistant", "content": prose(rng, 40)})
    return log


def _system(record: Body) -> Body:
    return record["body"]["system"][0]  # type: ignore[no-any-return]


def changing_id(log: list[Body], rng: random.Random) -> None:
    for record in log:
        _system(record)["text"] = f"Request req-{rng.getrandbits(48):012x}. " + _system(record)["text"]


def changing_time(log: list[Body], rng: random.Random) -> None:
    for number, record in enumerate(log):
        stamp = f"2026-11-30T{number // 60:02d}:{number % 60:02d}:07Z"
        _system(record)["text"] = f"It is now {stamp} and the library is open. " + _system(record)["text"]


def user_data_in_system(log: list[Body], rng: random.Random) -> None:
    for number, record in enumerate(log):
        name = ("Ada", "Grace", "Barbara", "Edith")[number % 4]
        _system(record)["text"] = f"You are talking to {name}, who likes plain words. " + _system(record)["text"]


def tools_reordered(log: list[Body], rng: random.Random) -> None:
    for record in log:
        rng.shuffle(record["body"]["tools"])


def tools_changed(log: list[Body], rng: random.Random) -> None:
    for number, record in enumerate(log):
        if number % 2:
            record["body"]["tools"][0]["description"] += " Be quick."


def keys_reordered(log: list[Body], rng: random.Random) -> None:
    for record in log:
        for index, tool in enumerate(record["body"]["tools"]):
            keys = list(tool)
            rng.shuffle(keys)
            record["body"]["tools"][index] = {key: tool[key] for key in keys}


def whitespace_drift(log: list[Body], rng: random.Random) -> None:
    for number, record in enumerate(log):
        if number % 2:
            text = _system(record)["text"]
            _system(record)["text"] = text[:60] + text[60:].replace(". ", ".\n  ")


def unstable_few_shots(log: list[Body], rng: random.Random) -> None:
    for record in log:
        messages = record["body"]["messages"]
        pairs = [messages[i : i + 2] for i in (0, 2, 4)]
        rng.shuffle(pairs)
        messages[:6] = [message for pair in pairs for message in pair]


def history_rewritten(log: list[Body], rng: random.Random) -> None:
    for number, record in enumerate(log):
        messages = record["body"]["messages"]
        if number % 5 and len(messages) > 9:
            messages[6]["content"] = f"(shortened) {prose(rng, 6)}"


def history_dropped(log: list[Body], rng: random.Random) -> None:
    for record in log:
        record["body"]["messages"][6:] = record["body"]["messages"][6:][-5:]


def model_changed(log: list[Body], rng: random.Random) -> None:
    for number, record in enumerate(log):
        record["body"]["model"] = f"m{number % 2}"


def no_marker(log: list[Body], rng: random.Random) -> None:
    for record in log:
        del record["body"]["cache_control"]
        del record["body"]["messages"][5]["content"][0]["cache_control"]


def marker_moved(log: list[Body], rng: random.Random) -> None:
    """The only marker is on the newest message, and the next request has it on its own."""
    for record in log:
        del record["body"]["cache_control"]
        del record["body"]["messages"][5]["content"][0]["cache_control"]
        text = record["body"]["messages"][-1]["content"]
        record["body"]["messages"][-1]["content"] = [
            {"type": "text", "text": text + " Answer in a word.", "cache_control": {"type": "ephemeral"}}
        ]


def lookback_exceeded(log: list[Body], rng: random.Random) -> None:
    """Turns of 30 blocks: the marker of the turn before is out of reach."""
    for record in log:
        for message in record["body"]["messages"][6:]:
            if message["role"] == "user":
                words = message["content"].split()
                message["content"] = [
                    {"type": "text", "text": f"{i} {word} {' '.join(words[i:])}"} for i, word in enumerate(words)
                ]


def ttl_passed(log: list[Body], rng: random.Random) -> None:
    for number, record in enumerate(log):
        record["timestamp"] = 1000.0 + 1200 * number


def under_minimum(log: list[Body], rng: random.Random) -> None:
    for record in log:
        _system(record)["text"] = _system(record)["text"][:400]
        del record["body"]["tools"]
        record["body"]["messages"] = record["body"]["messages"][:7]


@dataclass(frozen=True)
class Planted:
    """How a fault is planted, and where a linter should see it first."""

    plant: Plant
    places: tuple[str, ...]
    offset: int = 0
    can_be_mended: bool = True


_TOOLS = tuple(f"tools[{index}]" for index in range(len(TOOLS)))
_NEXT_TURN = ("messages[8].content",)
PLANTS: dict[str, Planted] = {
    "changing_id": Planted(changing_id, ("system[0].text",), len("Request ")),
    "changing_time": Planted(changing_time, ("system[0].text",), len("It is now ")),
    "user_data_in_system": Planted(user_data_in_system, ("system[0].text",), len("You are talking to ")),
    "tools_reordered": Planted(tools_reordered, _TOOLS),
    "tools_changed": Planted(tools_changed, ("tools[0]",), can_be_mended=False),
    "keys_reordered": Planted(keys_reordered, _TOOLS),
    "whitespace_drift": Planted(whitespace_drift, ("system[0].text",), 277),
    "unstable_few_shots": Planted(unstable_few_shots, ("messages[0].content", "messages[2].content")),
    "history_rewritten": Planted(history_rewritten, ("messages[6].content",), can_be_mended=False),
    "history_dropped": Planted(history_dropped, ("messages[6].content",), can_be_mended=False),
    "model_changed": Planted(model_changed, ("tools[0]",), can_be_mended=False),
    "no_marker": Planted(no_marker, _NEXT_TURN),
    "marker_moved": Planted(marker_moved, ("messages[8].content[0].text",)),
    "lookback_exceeded": Planted(lookback_exceeded, ("messages[8].content[29].text",), can_be_mended=False),
    "ttl_passed": Planted(ttl_passed, _NEXT_TURN),
    "under_minimum": Planted(under_minimum, ("messages[6].content",), can_be_mended=False),
}
