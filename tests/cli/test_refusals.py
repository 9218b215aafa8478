"""Bad input: one clear line on stderr, exit code 2, nothing on stdout."""

from pathlib import Path

import pytest

from foreword.cli.session import find_model
from foreword.models.catalogue import CATALOGUE
from tests.cli.conftest import Ran, Run


def _assert_one_line(ran: Ran, *parts: str) -> None:
    assert ran.code == 2
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("foreword: ")
    for part in parts:
        assert part in lines[0]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--temperature", "nan"], "temperature: expected a number from 0 to 100, got nan"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "warm"], "--temperature"),
        (["--n", "0"], "n: expected an integer from 1 to 16, got 0"),
        (["--top-p", "0"], "top_p"),
        (["--top-k", "-2"], "top_k"),
        (["--min-p", "2"], "min_p"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--min-tokens", "999"], "min_tokens"),
        (["--repetition-penalty", "0"], "repetition_penalty"),
        (["--logprobs", "21"], "logprobs"),
        (["--logit-bias", "nonsense"], "logit_bias"),
        (["--logit-bias", "99999=1"], "logit_bias"),
        (["--stop", ""], "stop"),
        (["--stop-token-id", "99999"], "stop_token_ids"),
        (["--kv-dtype", "f64"], "--kv-dtype"),
        (["--weights", "q3"], "--weights"),
        (["--kv-cache", "maybe"], "--kv-cache"),
        (["--kv-memory", "plenty"], "kv_memory: expected a size such as 2GiB"),
        (["--kv-memory", "1"], "kv_memory"),
        (["--block-size", "10"], "block_size"),
        (["--block-size", "15"], "block_size: expected 8, 16, 32, 64 or 128, got 15"),
        (["--threads", "0"], "threads"),
        (["--threads", "many"], "--threads"),
        (["--max-model-len", "1"], "max_model_len"),
        (["--max-model-len", "100000"], "max_model_len"),
        (["--max-num-seqs", "0"], "max_num_seqs"),
        (["--token-budget", "0"], "token_budget"),
        (["--instruction-set", "sse9"], "instruction_set"),
        (["--backend", "gpu"], "--backend"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_an_unusable_option_is_named(run: Run, tiny: str, options: list[str], part: str) -> None:
    _assert_one_line(run("generate", "hello", "--model", tiny, "--quiet", *options), part)


@pytest.mark.parametrize("text", ["{bad", "[1]", "[" * 100_000, ""])
def test_a_schema_that_is_none_is_named_with_its_file(run: Run, tiny: str, tmp_path: Path, text: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(text)

    _assert_one_line(
        run("generate", "x", "--model", tiny, "-q", "--json-schema", str(path)), "--json-schema", str(path)
    )


@pytest.mark.parametrize("option", ["--grace", "--stuck-after", "--response-cache-ttl", "--response-store-ttl"])
def test_a_time_that_is_no_number_is_refused(run: Run, tiny: str, option: str) -> None:
    """Nothing is ever later than it: a watchdog would sleep for good, and an answer never be too old."""
    _assert_one_line(run("serve", tiny, option, "nan"), option, "nan is not a number")


@pytest.mark.parametrize("how", ["--raw", "--chat"])
def test_an_empty_prompt_is_refused(run: Run, tiny: str, how: str) -> None:
    _assert_one_line(run("generate", "", how, "-q", "--model", tiny), "prompt: expected at least one character")
    _assert_one_line(run("generate", "-", how, "-q", "--model", tiny), "prompt: expected at least one character")


def test_a_prompt_over_the_context_is_refused(run: Run, tiny: str) -> None:
    _assert_one_line(run("generate", "x" * 600, "--raw", "-q", "--model", tiny), "prompt", "512", "600")


def test_an_unknown_model_is_refused(run: Run) -> None:
    _assert_one_line(run("generate", "hello", "--model", "nowhere.gguf"), "nowhere.gguf")


def test_a_model_not_pulled_yet_comes_with_the_cure(run: Run) -> None:
    _assert_one_line(run("generate", "hello", "--model", "smollm2"), "run: foreword pull smollm2")


def test_an_unknown_name_to_pull_is_refused(run: Run) -> None:
    _assert_one_line(run("pull", "gpt-5"), "gpt-5", "smollm2")


def test_a_truncated_gguf_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 40)

    _assert_one_line(run("generate", "hello", "--model", str(path)), "broken.gguf")


def test_a_file_that_is_no_model_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("these are notes\nof two lines")

    _assert_one_line(run("generate", "hello", "--model", str(path)), "notes.gguf")


def test_an_empty_folder_is_refused(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "empty\nfolder"
    folder.mkdir()

    _assert_one_line(run("generate", "hello", "--model", str(folder)), "empty folder")


def test_a_missing_document_is_refused(run: Run, tiny: str) -> None:
    ran = run("generate", "who?", "--document", "missing.txt", "--model", tiny)

    _assert_one_line(ran, "missing.txt: no such file or directory")


def test_a_prompt_file_that_is_no_text_is_refused(run: Run, tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(b"abc\xff\xfe")

    _assert_one_line(run("generate", "--file", str(path), "--model", tiny), "not UTF-8 text (byte 3)")


def test_two_prompts_are_refused(run: Run, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("hello")

    ran = run("generate", "hello", "--file", str(tmp_path / "prompt.txt"), "--model", tiny)

    _assert_one_line(ran, "either PROMPT or --file")


def test_chat_without_a_template_is_refused(run: Run, tiny_raw: str) -> None:
    _assert_one_line(run("generate", "hello", "--chat", "-q", "--model", tiny_raw), "chat template")
    _assert_one_line(run("chat", "-q", "--model", tiny_raw, stdin="hello\n"), "foreword generate --raw")


def test_a_system_message_without_a_template_is_refused(run: Run, tiny_raw: str) -> None:
    _assert_one_line(run("generate", "hello", "-q", "--system", "be kind", "--model", tiny_raw), "--system")


def test_an_unknown_command_is_refused(run: Run) -> None:
    _assert_one_line(run("serv"), "serv")


def test_unusable_bench_arguments_are_refused(run: Run, tiny: str) -> None:
    _assert_one_line(run("bench", "flops", "--model", tiny), "flops")
    _assert_one_line(run("bench", "--model", tiny), "rows", "decode")
    _assert_one_line(run("bench", "decode", "-q", "--repeats", "0", "--model", tiny), "repeats")
    _assert_one_line(run("bench", "prefill", "-q", "--lengths", "many", "--model", tiny), "lengths")
    _assert_one_line(run("bench", "prefill", "-q", "--lengths", "-5", "--model", tiny), "lengths")
    _assert_one_line(run("bench", "prefill", "-q", "--lengths", "4000", "--model", tiny), "512")
    _assert_one_line(run("bench", "waste", "-q", "--trace", "missing.csv"), "missing.csv: no such file")


def test_a_trace_that_is_no_trace_is_refused_with_its_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,12,7\nnow,twelve,7\n")
    _assert_one_line(run("bench", "waste", "-q", "--trace", str(path)), "trace.csv: line 3")

    path.write_text("a,b\n1,2\n")
    _assert_one_line(run("bench", "waste", "-q", "--trace", str(path)), "no column ContextTokens")


def test_a_pulled_models_name_means_it_beside_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = tmp_path / "home" / "models" / CATALOGUE["smollm2"].file_name
    pulled.parent.mkdir(parents=True)
    pulled.touch()
    monkeypatch.setenv("FOREWORD_HOME", str(tmp_path / "home"))
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)

    assert find_model("smollm2") == pulled
    assert find_model("./smollm2") == Path("smollm2")
