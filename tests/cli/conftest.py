"""A tiny model that can chat, and a way to run command lines."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from foreword.cli.main import main
from tests.factories import tiny_model_files

_SPECIAL = ("<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Ran:
    """What a command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, object]:
        """The last line of stdout as JSON."""
        found = json.loads(self.out.splitlines()[-1])
        assert isinstance(found, dict)
        return found


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in this process, with `stdin` as a pipe."""

    def run(*argv: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"))
        capsys.readouterr()
        code = main(argv)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a tiny random model of 512 positions, with a byte-level tokenizer and a chat template."""
    return tiny_chat_model(tmp_path_factory.mktemp("tiny"))


def tiny_chat_model(folder: Path, **changes: Any) -> str:
    """Write what `tiny` gives below `folder`; `changes` are those of `tiny_config`."""
    path = tiny_model_files(folder, vocab_size=256 + len(_SPECIAL), **changes)
    write_tokenizer(path, _SPECIAL)
    config = {"eos_token": _SPECIAL[1], "chat_template": _TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return str(path)


@pytest.fixture(scope="session")
def tiny_raw(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same without a chat template."""
    folder = tiny_model_files(tmp_path_factory.mktemp("tiny-raw"), vocab_size=257)
    write_tokenizer(folder, ("</s>",))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return str(folder)


def write_tokenizer(folder: Path, special: tuple[str, ...]) -> None:
    """Write a byte-level `tokenizer.json` with some special tokens behind its 256 bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
