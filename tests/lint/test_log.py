"""Every dialect's bodies become parts in the order of a prefix; malformed lines get one line that says where."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.core.errors import ForewordError
from foreword.lint import assert_prefix_stable
from foreword.lint.lint import lint
from foreword.lint.log import from_bodies, read_log
from foreword.lint.request import LogError, parse_requests
from tests.lint.faults import PLANTS, clean_log

CHAT = {
    "model": "m",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "messages": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "R"},
    ],
}
MESSAGES = {
    "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "tools": [{"name": "f", "input_schema": {}, "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"b": 1, "a": 2}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "R"}]}],
        },
    ],
}
RESPONSES = {
    "instructions": "S",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "A"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "output": "R"},
    ],
}


def parts(record: object) -> list[tuple[str, str, str, str]]:
    (request,) = parse_requests(1, record)
    return [(part.place, part.section, part.kind, part.text) for part in request.parts]


def test_chat() -> None:
    assert parts(CHAT) == [
        ("tools[0]", "tools", "tool", '{"type":"function","function":{"name":"f"}}'),
        ("messages[0].content", "system", "text", "S"),
        ("messages[1].content[0].text", "messages", "text", "A"),
        ("messages[1].content[1]", "messages", "other", '{"type":"image_url","image_url":{"url":"u"}}'),
        ("messages[2].tool_calls[0].function.arguments", "messages", "tool_use", "f({})"),
        ("messages[3].content", "messages", "tool_result", "R"),
    ]


def test_anthropic_messages() -> None:
    assert parts(MESSAGES) == [
        ("tools[0]", "tools", "tool", '{"name":"f","input_schema":{}}'),
        ("system[0].text", "system", "text", "S"),
        ("messages[0].content", "messages", "text", "A"),
        ("messages[1].content[0].input", "messages", "tool_use", 'f({"b":1,"a":2})'),
        ("messages[2].content[0].content", "messages", "tool_result", '[{"type":"text","text":"R"}]'),
    ]
    (request,) = parse_requests(1, MESSAGES)
    assert [part.marker for part in request.parts] == ["5m", "1h", None, None, None]


def test_responses_and_completions() -> None:
    assert [(place, text) for place, _, _, text in parts(RESPONSES)] == [
        ("instructions", "S"),
        ("input[0].content[0].text", "A"),
        ("input[1].arguments", "f({})"),
        ("input[2].output", "R"),
    ]
    assert parts({"input": "A"}) == [("input", "messages", "text", "A")]
    assert parts({"prompt": "A"}) == [("prompt", "messages", "text", "A")]
    assert parts({"prompt": [1, 2]}) == [("prompt", "messages", "text", "[1,2]")]
    assert [r.parts[0].place for r in parse_requests(1, {"prompt": ["A", "B"]})] == ["prompt[0]", "prompt[1]"]


@pytest.mark.parametrize(
    ("record", "dialect"),
    [
        (CHAT, "chat"),
        (MESSAGES, "messages"),
        ({"messages": [{"role": "user", "content": "A"}]}, "chat"),
        ({"messages": [{"role": "user", "content": "A"}], "system": "S"}, "messages"),
        ({"path": "/v1/messages", "body": {"messages": [{"role": "user", "content": "A"}]}}, "messages"),
        ({"url": "http://x/v1/chat/completions?beta=1", "request": MESSAGES}, "chat"),
    ],
)
def test_dialects_are_told_apart(record: dict[str, Any], dialect: str) -> None:
    (request,) = parse_requests(1, record)
    assert request.dialect == dialect


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (5, 5.0),
        (1764500000123, 1764500000.123),
        ("2026-11-30T00:00:00+00:00", 1795996800.0),
        ("soon", None),
        (True, None),
        (None, None),
    ],
)
def test_times(time: object, seconds: float | None) -> None:
    (request,) = parse_requests(1, {"timestamp": time, "body": CHAT, "tenant": "t"})
    assert request.time_s == seconds
    assert request.tenant == "t"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "expected an object"),
        ("{}", "expected an object with messages, input or prompt"),
        ('{"messages": 3, "path": "/v1/messages"}', "messages: expected a list"),
        ('{"messages": [3]}', "messages[0]: expected an object"),
        ('{"messages": [{"content": "A"}]}', "messages[0].role: expected text"),
        ("{", "is not JSON"),
        ("\ufffd", "is not JSON"),
        ("[" * 100_000, "is not JSON, or nested too deep"),
    ],
)
def test_malformed_lines_name_the_line(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(CHAT) + "\n\n" + line + "\n")

    with pytest.raises(ForewordError) as caught:
        list(read_log(path))

    assert f"line 3: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gzip_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(CHAT) + "\n").encode()))
    assert len(list(read_log(path))) == 1


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_BLOCK = st.fixed_dictionaries(
    {}, optional={name: _JSON for name in ("type", "text", "input", "content", "cache_control", "name")}
)
_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
    optional={"content": _JSON | st.lists(_BLOCK, max_size=3), "tool_calls": _JSON, "type": _JSON},
)
_BODY = st.fixed_dictionaries(
    {"messages": st.lists(_MESSAGE, max_size=4)},
    optional={"tools": _JSON | st.lists(_JSON, max_size=3), "system": _JSON, "model": _JSON, "cache_control": _JSON},
)


@given(st.lists(_BODY, max_size=6))
def test_whatever_a_client_sent_is_read_or_refused(bodies: list[dict[str, Any]]) -> None:
    readable = []
    for body in bodies:
        try:
            list(parse_requests(1, body))
            readable.append(body)
        except LogError:
            pass
    requests = from_bodies(readable)

    report = lint(lambda: iter(requests))

    assert report.requests == len(readable)
    assert all(0 <= score.read <= score.tokens for score in report.scores)


def test_an_application_can_assert_that_its_prefixes_are_stable() -> None:
    assert_prefix_stable(clean_log(), min_hit_rate=0.9)

    broken = clean_log()
    PLANTS["changing_time"].plant(broken, random.Random(1))
    with pytest.raises(AssertionError, match=r"changing_time at system\[0\]\.text, 10 characters in"):
        assert_prefix_stable(broken)
    assert_prefix_stable(broken, allow=["changing_time"])
    with pytest.raises(AssertionError, match=r"hit rate .*, expected at least 90\.0%"):
        assert_prefix_stable(broken, allow=["changing_time"], min_hit_rate=0.9)
    with pytest.raises(ForewordError, match="request 2: expected an object"):
        assert_prefix_stable([CHAT, 3])
