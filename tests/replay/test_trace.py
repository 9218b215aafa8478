"""Reading traces: formats, sizes, order, and everything a file may have wrong."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.replay import lines
from foreword.replay.formats import MAX_IDS, TracedRequest
from foreword.replay.layout import layout_for
from foreword.replay.trace import ReplayRequest, Trace, TraceOptions, interleaved

MOONCAKE = {"timestamp": 5, "input_length": 1000, "output_length": 3, "hash_ids": [4, 9]}


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def requests_of(path: Path, **options: object) -> list[ReplayRequest]:
    return list(Trace(path, TraceOptions(**options)).requests())  # type: ignore[arg-type]


def symbols(request: ReplayRequest) -> list[int]:
    return np.frombuffer(request.packed, np.int32).tolist()  # type: ignore[no-any-return]


def test_a_mooncake_line_is_one_request_with_a_block_for_each_id(tmp_path: Path) -> None:
    trace = Trace(write(tmp_path / "t", MOONCAKE), TraceOptions())

    (request,) = trace.requests()

    assert trace.format.name == "mooncake"
    assert trace.layout.block_size == 512
    assert symbols(request) == [4] * 8 + [9] * 8
    assert request.num_tokens == 1000


def test_smaller_blocks_spell_an_id_several_times(tmp_path: Path) -> None:
    trace = Trace(write(tmp_path / "t", MOONCAKE), TraceOptions(block_size=256))

    (request,) = trace.requests()

    assert request.num_symbols == 4 * trace.layout.index_block
    assert trace.layout.symbol_tokens * trace.layout.index_block == 256
    assert trace.layout.is_uniform


def test_larger_blocks_take_several_ids(tmp_path: Path) -> None:
    trace = Trace(write(tmp_path / "t", MOONCAKE), TraceOptions(block_size=1024))

    (request,) = trace.requests()

    assert symbols(request) == [4, 4, 4, 4, 9, 9, 9, 9]
    assert not trace.layout.is_uniform


@pytest.mark.parametrize("block_size", [1, 12, 96, 8192])
def test_a_block_size_that_cannot_be_made_of_the_traces_blocks_is_refused(block_size: int) -> None:
    with pytest.raises(InvalidRequestError, match="block_size: expected a multiple of 8 that divides 4096"):
        layout_for(512, block_size)


def test_sub_agents_are_timed_from_their_start_and_share_the_conversations_ids(tmp_path: Path) -> None:
    def request(time_s: float, *runs: int) -> list[object]:
        return [time_s, 64 * sum(runs[1::2]), 1, None, 0.5, "end_turn", list(runs)]

    inner = {"sa": "agent_001", "t": 10.0, "r": [request(0, 7, 2), request(5, 7, 3)]}
    record = {"id": "x", "bs": 64, "r": [request(0, 1, 2), inner, request(12, 1, 2, 30, 1)]}

    found = requests_of(write(tmp_path / "t", record))

    assert [symbols(r)[::8] for r in found] == [[1, 2], [7, 8], [1, 2, 30], [7, 8, 9]]
    assert len({r.namespace for r in found}) == 1


def test_conversations_of_different_lines_never_share(tmp_path: Path) -> None:
    record = {"bs": 64, "r": [[0, 64, 1, 0, 0, "", [1, 1]]]}

    first, second = requests_of(write(tmp_path / "t", record, record))

    assert first.packed == second.packed
    assert first.namespace != second.namespace


def test_each_turn_of_the_assistant_is_a_request_that_begins_with_the_one_before(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi — ü"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "42."},
    ]

    first, second = requests_of(write(tmp_path / "t", {"messages": messages}))

    opening = b"<|assistant|>\n"
    texts = [bytes(symbols(request)) for request in (first, second)]
    assert texts[0] == "<|system|>\nBe kind.\n<|user|>\nHi — ü\n<|assistant|>\n".encode()
    assert texts[1].startswith(texts[0])
    assert texts[1].endswith(b'<|assistant|>\n[{"id": "a"}]\n<|tool|>\n42\n' + opening)


def test_text_that_is_not_utf_8_is_told_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t"
    turns = b'[{"role": "user", "content": "%b"}, {"role": "user", "tool_calls": ["%b"]}, {"role": "assistant"}]'
    path.write_bytes(b'{"messages": ' + turns % (b"x", b"\xff") + b"}\n")
    (request,) = requests_of(path)
    assert "\N{REPLACEMENT CHARACTER}" in bytes(symbols(request)).decode()

    path.write_bytes(b'{"messages": ' + turns % (b"\xff", b"x") + b"}\n")
    with pytest.raises(ForewordError, match="line 1: "):
        requests_of(path)


def test_text_may_be_tokenised_by_a_model(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]

    (request,) = requests_of(write(tmp_path / "t", {"messages": messages}), encode=lambda text: [len(text)])

    assert symbols(request) == [len("<|user|>\nx\n"), len("<|assistant|>\n")]


def test_our_own_lines_hold_tokens_or_blocks(tmp_path: Path) -> None:
    (tokens,) = requests_of(write(tmp_path / "a", {"token_ids": [5, 6], "namespace": "n"}))
    (blocks,) = requests_of(write(tmp_path / "b", {"block_ids": [5, 6], "block_tokens": 32}))

    assert (symbols(tokens), tokens.namespace, tokens.num_tokens) == ([5, 6], b"n", 2)
    assert (symbols(blocks)[::8], blocks.num_tokens) == ([0, 1], 64)  # ids of blocks are numbered as they come


def test_gzip_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain", MOONCAKE, MOONCAKE)
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    assert requests_of(packed) == requests_of(plain)


def test_reading_can_stop_early(tmp_path: Path) -> None:
    path = write(tmp_path / "t", MOONCAKE, MOONCAKE, {"broken": 1})

    assert len(requests_of(path, max_requests=2)) == 2


def test_progress_ends_at_the_files_size(tmp_path: Path) -> None:
    path = write(tmp_path / "t", MOONCAKE, MOONCAKE)
    seen: list[tuple[int, int]] = []

    list(Trace(path, TraceOptions()).requests(lambda done, size: seen.append((done, size))))

    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_conversations_take_turns_by_time_and_a_new_one_starts_where_one_ended() -> None:
    def conversation(name: bytes, *times_s: float) -> list[TracedRequest]:
        return [TracedRequest(1, time_s, lambda: np.empty(0, np.int32), 0, name) for time_s in times_s]

    a, b, c = conversation(b"a", 0, 10, 20), conversation(b"b", 1, 5), conversation(b"c", 0, 6)

    assert b"".join(r.namespace for r in interleaved([a, [], b, c], 2)) == b"abbcaca"
    assert b"".join(r.namespace for r in interleaved([a, b, c], 1)) == b"aaabbcc"


BAD_LINES = {
    "no JSON": (b"{nope\n", "line 2: JSON is malformed"),
    "not UTF-8": (b'{"hash_ids": [\xff], "input_length": 1}\n', "line 2: JSON is malformed"),
    "no object": (b"[1]\n", "line 2: Expected `object`, got `array`"),
    "no field": (b'{"hash_ids": [1]}\n', "line 2: Object missing required field `input_length`"),
    "a wrong kind": (b'{"hash_ids": [1, "2"], "input_length": 9}\n', r"line 2: .* at `\$.hash_ids\[1\]`"),
    "a negative id": (b'{"hash_ids": [-1], "input_length": 9}\n', r"line 2: .* at `\$.hash_ids\[0\]`"),
    "an id past 30 bits": (b'{"hash_ids": [1073741824], "input_length": 9}\n', "line 2: "),
    "endless nesting": (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "line 2: nested too deep"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_told_by_file_line_and_field(tmp_path: Path, name: str) -> None:
    line, message = BAD_LINES[name]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(json.dumps(MOONCAKE).encode() + b"\n" + line)

    with pytest.raises(ForewordError, match=rf"trace\.jsonl: {message}"):
        requests_of(path)


def test_a_line_beyond_the_bound_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 200)
    path = write(tmp_path / "t", MOONCAKE, {**MOONCAKE, "hash_ids": list(range(1000))})

    with pytest.raises(ForewordError, match="line 2: longer than"):
        requests_of(path)


def test_a_run_length_code_cannot_ask_for_gigabytes(tmp_path: Path) -> None:
    bomb = {"bs": 64, "r": [[0, 1, 1, 0, 0, "", [0, MAX_IDS + 1]]]}
    odd = {"bs": 64, "r": [[0, 1, 1, 0, 0, "", [0, 1, 2]]]}

    for record in (bomb, odd):
        with pytest.raises(ForewordError, match="line 1: r: expected pairs of start and length"):
            requests_of(write(tmp_path / "t", record))


def test_small_blocks_cannot_blow_up_a_long_request(tmp_path: Path) -> None:
    record = {"bs": 65536, "r": [[0, 1, 1, 0, 0, "", [0, 10_000]]]}

    with pytest.raises(ForewordError, match="line 1: a request of 10,000 ids is too long to replay"):
        requests_of(write(tmp_path / "t", record), block_size=8)


def test_blocks_of_another_size_than_the_first_lines_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t", {"block_ids": [1], "block_tokens": 16}, {"block_ids": [1], "block_tokens": 32})

    with pytest.raises(ForewordError, match="line 2: expected blocks of 16 tokens"):
        requests_of(path)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_holds_no_request(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)

    with pytest.raises(ForewordError, match="holds no request"):
        Trace(path, TraceOptions())


def test_a_format_that_is_not_known_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ForewordError, match="line 1: expected an object with one of the fields hash_ids, r, messages"):
        Trace(write(tmp_path / "t", {"prompt": "x"}), TraceOptions())


def test_a_missing_file_and_a_folder_are_one_line_each(tmp_path: Path) -> None:
    with pytest.raises(ForewordError, match="no such file"):
        Trace(tmp_path / "none", TraceOptions())
    with pytest.raises(ForewordError, match="is a directory"):
        Trace(tmp_path, TraceOptions())


@pytest.mark.parametrize("damage", ["cut", "flipped", "trailing"])
def test_damaged_gzip_is_one_line(tmp_path: Path, damage: str) -> None:
    noise = np.random.default_rng(0).integers(0, 1000, 20_000).tolist()
    data = gzip.compress(json.dumps({**MOONCAKE, "hash_ids": noise}).encode())
    broken = {"cut": data[:-20], "flipped": data[:3000] + b"\0" * 50 + data[3050:], "trailing": data + b"\x1f\x8bx"}
    path = tmp_path / "t.gz"
    path.write_bytes(broken[damage])

    with pytest.raises(ForewordError, match=r"t\.gz: line"):
        requests_of(path)


@pytest.mark.parametrize("field", ["block_size", "at_once", "max_requests"])
def test_numbers_below_one_are_refused(field: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field}: expected at least 1, got 0"):
        TraceOptions(**{field: 0})  # type: ignore[arg-type]
