import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_the_answer_alone_goes_to_stdout(run: Run, tiny: str) -> None:
    ran = run("generate", "hello", "--model", tiny, "--max-tokens", "5", "--ignore-eos")

    assert ran.code == 0
    assert ran.out.endswith("\n")
    assert ran.out.strip()
    assert "KV pool" in ran.err
    assert "5 new" in ran.err
    assert "tok/s" in ran.err


def test_quiet_says_nothing_beside_the_answer(run: Run, tiny: str) -> None:
    ran = run("generate", "hello", "--model", tiny, "--max-tokens", "5", "--quiet")

    assert (ran.code, ran.err) == (0, "")


def test_json_is_one_object_with_text_usage_and_timings(run: Run, tiny: str) -> None:
    ran = run(
        "generate", "hello", "--raw", "--model", tiny, "--max-tokens", "6", "--ignore-eos", "--json", "--token-ids"
    )

    answer = json.loads(ran.out)
    assert ran.out.count("\n") == 1
    assert ran.err == ""
    assert answer["finish_reason"] == "length"
    assert len(answer["prompt_token_ids"]) == 5
    assert len(answer["outputs"][0]["token_ids"]) == 6
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["computed_tokens"] + answer["usage"]["cached_tokens"]
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["timings"]["ttft_s"] > 0
    assert answer["timings"]["decode_tok_s"] > 0
    assert answer["engine"]["kv_cache"] is True


def test_streamed_and_json_text_are_the_same(run: Run, tiny: str) -> None:
    arguments = ("generate", "hello", "--model", tiny, "--max-tokens", "20", "--quiet")

    streamed = run(*arguments)
    whole = run(*arguments, "--json")

    assert streamed.out.removesuffix("\n") == str(whole.json["text"]).removesuffix("\n")


def test_one_seed_gives_one_answer(run: Run, tiny: str) -> None:
    def text(seed: str) -> object:
        return run("generate", "hello", "-m", tiny, "--temperature", "1", "--seed", seed, "--json").json["text"]

    assert text("7") == text("7") != text("8")


def test_a_prompt_may_come_from_a_pipe_a_dash_or_a_file(run: Run, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("hello")
    options = ("--model", tiny, "--raw", "--json", "--max-tokens", "4")

    given = run("generate", "hello", *options).json["text"]

    assert run("generate", *options, stdin="hello\n").json["text"] == given
    assert run("generate", "-", *options, stdin="hello").json["text"] == given
    assert run("generate", "--file", str(tmp_path / "prompt.txt"), *options).json["text"] == given


def test_a_document_is_read_before_the_question(run: Run, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "facts.txt").write_text("Cats sleep.\n")
    options = ("--document", str(tmp_path / "facts.txt"), "--model", tiny, "--max-tokens", "4", "--json")

    asked = run("generate", "Who?", *options, "--raw", "--token-ids").json["prompt_token_ids"]
    same = run("generate", "Cats sleep.\n\nQuestion: Who?\nAnswer:", "-m", tiny, "--raw", "--json", "--token-ids").json

    assert asked == same["prompt_token_ids"]


def test_a_model_without_a_template_continues_the_text(run: Run, tiny_raw: str) -> None:
    answer = run("generate", "hello", "--model", tiny_raw, "--json", "--token-ids").json

    assert len(answer["prompt_token_ids"]) == 5  # type: ignore[arg-type]


def test_a_prompt_is_a_chat_message_where_there_is_a_template(run: Run, tiny: str) -> None:
    plain = run("generate", "hello", "--model", tiny, "--raw", "--json").json["usage"]
    chat = run("generate", "hello", "--model", tiny, "--json").json["usage"]
    told = run("generate", "hello", "--model", tiny, "--system", "be kind", "--json").json["usage"]

    assert plain["prompt_tokens"] < chat["prompt_tokens"] < told["prompt_tokens"]  # type: ignore[index]


def test_several_samples_are_printed_one_after_the_other(run: Run, tiny: str) -> None:
    ran = run("generate", "hello", "--model", tiny, "--n", "3", "--temperature", "1", "--max-tokens", "4", "--quiet")

    assert [f"[{number}/3]\n" in ran.out for number in (1, 2, 3)] == [True] * 3


def test_logprobs_come_with_json(run: Run, tiny: str) -> None:
    answer = run(
        "generate",
        "hello",
        "--raw",
        "-m",
        tiny,
        "--json",
        "--logprobs",
        "2",
        "--prompt-logprobs",
        "1",
        "--max-tokens",
        "3",
    ).json

    outputs = answer["outputs"]
    assert isinstance(outputs, list)
    assert len(outputs[0]["logprobs"]) == 3
    assert {"token_id", "logprob", "rank", "decoded_token"} == set(outputs[0]["logprobs"][0][0])
    assert answer["prompt_logprobs"][0] is None  # type: ignore[index]


def test_a_stop_string_ends_the_answer(run: Run, tiny: str) -> None:
    options = ("--model", tiny, "--max-tokens", "30", "--ignore-eos", "--json")
    text = str(run("generate", "hello", *options).json["text"])
    stop = text[10:12]

    answer = run("generate", "hello", *options, "--stop", stop).json

    assert answer["text"] == text[: text.index(stop)]
    assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize("option", [["--kv-cache", "off"], ["--backend", "reference"], ["--prefix-cache", "none"]])
def test_the_text_does_not_depend_on_how_it_is_run(run: Run, tiny: str, option: list[str]) -> None:
    arguments = ("generate", "hello", "--model", tiny, "--max-tokens", "8", "--json")

    assert run(*arguments, *option).json["text"] == run(*arguments).json["text"]


def test_a_long_prompt_leaves_room_for_what_fits(run: Run, tiny: str) -> None:
    answer = run("generate", "x" * 505, "--raw", "--model", tiny, "--ignore-eos", "--json").json

    assert answer["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 512 - 505  # type: ignore[index]


@pytest.mark.parametrize(
    ("option", "form"),
    [("--json-schema", '{"enum": ["yes", "no"]}'), ("--grammar", 'start: "yes" | "no"'), ("--regex", "yes|no")],
)
def test_the_answer_has_the_form_that_was_asked_for(
    run: Run, tiny: str, tmp_path: Path, option: str, form: str
) -> None:
    file = tmp_path / "form"
    file.write_text(form)

    ran = run("generate", "well?", "--model", tiny, "--quiet", option, form if option == "--regex" else str(file))

    assert ran.code == 0
    assert ran.out.strip().strip('"') in ("yes", "no")


def test_a_form_that_can_not_be_enforced_is_one_line(run: Run, tiny: str) -> None:
    ran = run("generate", "well?", "--model", tiny, "--quiet", "--regex", "(a")

    assert ran.code != 0
    assert "structured_output.regex" in ran.err
    assert len(ran.err.strip().splitlines()) == 1
