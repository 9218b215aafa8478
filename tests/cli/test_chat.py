import json
from pathlib import Path

import pytest

from foreword.cli.chat_input import MessageReader
from tests.cli.conftest import Run

_SHORT = ("--max-tokens", "4", "--ignore-eos", "--temperature", "0")


def test_each_turn_is_one_line_of_json(run: Run, tiny: str) -> None:
    ran = run("chat", "--model", tiny, *_SHORT, "--json", stdin="hello\nand you\n")

    turns = [json.loads(line) for line in ran.out.splitlines()]
    assert ran.code == 0
    assert [turn["turn"] for turn in turns] == [1, 2]
    assert turns[1]["usage"]["prompt_tokens"] > turns[0]["usage"]["prompt_tokens"]
    assert turns[0]["usage"]["completion_tokens"] == 4


def test_the_history_is_part_of_the_next_prompt(run: Run, tiny: str) -> None:
    both = run("chat", "--model", tiny, *_SHORT, "--json", stdin="hello\nand you\n").out.splitlines()
    alone = run("chat", "--model", tiny, *_SHORT, "--json", stdin="and you\n").out.splitlines()

    assert json.loads(both[1])["usage"]["prompt_tokens"] > json.loads(alone[0])["usage"]["prompt_tokens"]


def test_reset_forgets_the_history(run: Run, tiny: str) -> None:
    ran = run("chat", "--model", tiny, *_SHORT, "--json", stdin="hello\n/reset\nhello\n")

    first, second = (json.loads(line) for line in ran.out.splitlines())
    assert first["text"] == second["text"]
    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]


def test_answers_go_to_stdout_and_what_they_cost_to_stderr(run: Run, tiny: str) -> None:
    ran = run("chat", "--model", tiny, *_SHORT, stdin="hello\n")

    assert ran.out.strip()
    assert "from cache" in ran.err
    assert "from cache" not in ran.out


def test_quit_ends_the_chat_before_the_next_line(run: Run, tiny: str) -> None:
    ran = run("chat", "--model", tiny, *_SHORT, "--json", stdin="/quit\nhello\n")

    assert (ran.code, ran.out) == (0, "")


def test_a_conversation_can_be_saved_and_gone_on_with(run: Run, tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    run("chat", "--model", tiny, *_SHORT, "--system", "be kind", "-q", stdin=f"hello\n/save {path}\n")

    roles = [message["role"] for message in json.loads(path.read_text())["messages"]]
    ran = run("chat", "--model", tiny, *_SHORT, "--load", str(path), "--json", stdin="and you\n")

    assert roles == ["system", "user", "assistant"]
    assert ran.json["turn"] == 2
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "[]",
        '{"messages": 5}',
        '{"messages": [{"role": "operator", "content": "x"}]}',
        '{"messages": [{"role": "user", "content": 5}]}',
        '{"messages": [{"role": "user"}]}',
        "[" * 100_000,
    ],
)
def test_a_malformed_conversation_is_refused(run: Run, tiny: str, tmp_path: Path, content: str) -> None:
    path = tmp_path / "talk.json"
    path.write_text(content)

    ran = run("chat", "--model", tiny, "-q", "--load", str(path))

    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert "talk.json" in ran.err


def test_stats_and_help_answer_on_stderr(run: Run, tiny: str) -> None:
    ran = run("chat", "--model", tiny, "-q", stdin="/help\n/stats\n")

    assert ran.out == ""
    assert "/reset" in ran.err
    assert "num_blocks" in ran.err


def test_an_unknown_command_in_a_pipe_ends_with_one_line(run: Run, tiny: str) -> None:
    ran = run("chat", "--model", tiny, "-q", stdin="/dance\n")

    assert ran.code == 2
    assert ran.err.splitlines() == ["foreword: no command '/dance'; /help lists them"]


def test_a_conversation_over_the_context_says_so(run: Run, tiny: str) -> None:
    ran = run("chat", "--model", tiny, "-q", stdin="x" * 600 + "\n")

    assert ran.code == 2
    assert "512" in ran.err


def test_several_lines_make_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(
        [
            "one\n",
            "two \\\n",
            "lines\n",
            "\n",
            '"""\n',
            "three\n",
            "\n",
            "lines\n",
            '"""\n',
            '"""in one"""\n',
            "last",
            "",
        ]
    )
    monkeypatch.setattr("sys.stdin", type("Input", (), {"readline": lambda self: next(lines)})())

    messages = list(MessageReader(interactive=False))

    assert messages == ["one", "two \nlines", "three\n\nlines", "in one", "last"]
