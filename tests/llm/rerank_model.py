"""A tiny random model whose tokenizer has yes and no, True and False as one token each."""

import json
from pathlib import Path

from tests.factories import tiny_model_files
from tests.text.tiny import byte_level_words, json_document

WORDS = ("True", "False", "yes", "no", " True", " False")


def rerank_model(folder: Path, *, max_position: int = 1024) -> Path:
    """Write the model; returns its folder. It has no chat template, so it is asked in plain text."""
    metadata = byte_level_words(*WORDS)
    tokens = metadata["tokenizer.ggml.tokens"]
    path = tiny_model_files(folder, vocab_size=len(tokens), max_position=max_position)
    document = json_document(
        model__vocab={token: i for i, token in enumerate(tokens)}, model__merges=metadata["tokenizer.ggml.merges"]
    )
    document["added_tokens"] = document["added_tokens"][:3]
    (path / "tokenizer.json").write_text(json.dumps(document))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return path
