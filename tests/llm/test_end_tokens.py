"""What ends an answer is what the model's files say ends it."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import tiny as tiny

from foreword import LLM, SamplingParams


@pytest.mark.parametrize(
    ("file", "ends"),
    [("generation_config.json", True), ("config.json", True), ("both", False)],
    ids=["by the generation config", "by the config where there is no other", "not by the config where there is"],
)
def test_an_answer_ends_at_a_token_that_only_a_config_names(tiny: str, tmp_path: Path, file: str, ends: bool) -> None:
    params, options = SamplingParams(temperature=0, max_tokens=8), {"threads": 1, "kv_memory_bytes": 4 << 20}
    with LLM(tiny, **options) as llm:
        whole = llm.generate("hello", params)[0].outputs[0].token_ids
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    name = "config.json" if file == "both" else file
    stated = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps(stated | {"eos_token_id": [whole[3]]}))
    if file == "both":
        (folder / "generation_config.json").write_text("{}")

    with LLM(str(folder), **options) as llm:
        answer = llm.generate("hello", params)[0].outputs[0]

    first = whole.index(whole[3])
    assert len(whole) == 8
    assert answer.token_ids == (whole[: first + 1] if ends else whole)
    assert answer.finish_reason == ("stop" if ends else "length")
