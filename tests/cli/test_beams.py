"""`foreword generate --beam-width`: what `LLM.beam_search` finds, best first, with its scores."""

import pytest

from foreword import LLM, BeamSearchParams
from tests.cli.conftest import Run

PARAMS = BeamSearchParams(beam_width=3, max_tokens=6, length_penalty=0.5)
COMMAND = ("generate", "hello", "--beam-width", "3", "--length-penalty", "0.5", "--max-tokens", "6")


def test_json_holds_the_beams_of_the_search(run: Run, tiny: str) -> None:
    with LLM(tiny, threads=1, kv_memory_bytes=4 << 20) as llm:
        (expected,) = llm.beam_search("hello", PARAMS)

    found = run(*COMMAND, "--raw", "--json", "--token-ids", "-m", tiny, "--kv-memory", "4MiB").json

    beams = found["outputs"]
    assert isinstance(beams, list)
    assert [beam["token_ids"] for beam in beams] == [beam.token_ids for beam in expected.sequences]
    assert [beam["score"] for beam in beams] == [beam.score for beam in expected.sequences]
    assert [beam["cumulative_logprob"] for beam in beams] == [b.cumulative_logprob for b in expected.sequences]
    assert found["text"] == beams[0]["text"]
    assert found["prompt_token_ids"] == expected.prompt_token_ids


def test_people_see_every_beam_best_first(run: Run, tiny: str) -> None:
    ran = run(*COMMAND, "-m", tiny)

    heads = [line for line in ran.out.splitlines() if " · logprob " in line]
    scores = [float(line.split("score ")[1].split()[0]) for line in heads]
    assert ran.code == 0
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert "in 3 beams" in ran.err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--beam-width", "2", "--n", "2"), "--beam-width: of the sampling options only"),
        (("--beam-width", "2", "--temperature", "1"), "--beam-width: of the sampling options only"),
        (("--beam-width", "2", "--stop", "x"), "--beam-width: of the sampling options only"),
        (("--beam-width", "0"), "beam_width: expected an integer"),
        (("--beam-width", "2", "--length-penalty", "nan"), "length_penalty: expected a number"),
        (("--length-penalty", "2"), "need --beam-width"),
        (("--early-stopping",), "need --beam-width"),
    ],
)
def test_what_has_no_meaning_together_is_refused(run: Run, tiny: str, argv: tuple[str, ...], told: str) -> None:
    ran = run("generate", "hello", "-m", tiny, *argv)

    assert ran.code == 2
    assert told in ran.err
    assert ran.err.count("\n") == 1
