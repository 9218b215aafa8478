"""Makes `tests/golden/text/*.json`: token ids by `transformers` and by `sentencepiece`, as digests.

Needs `torch transformers sentencepiece gguf protobuf` (the `golden` extra). Run from the repository's root:

    python scripts/make_golden_text.py PATH/TO/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer
from transformers.tokenization_utils_tokenizers import TokenizersBackend

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.text.golden_strings import GOLDEN, golden_conversations, golden_strings, ids_digest, text_digest

SENTENCEPIECE_VOCABULARY = 2000
SENTENCEPIECE_CONTROLS = ["<|im_start|>", "<|im_end|>"]
SENTENCEPIECE_USER_DEFINED = ["<tool>", "</tool>"]


def main() -> None:
    """Write all golden files."""
    write_smollm2(Path(sys.argv[1]))
    write_sentencepiece()


def write_smollm2(path: Path) -> None:
    """Ids of all strings and conversations for SmolLM2.

    `transformers` reads the vocabulary from the GGUF file, but knows no pre-tokenizer by the name "smollm" and takes
    GPT-2's. The model's own `tokenizer.json` cuts out single digits first, so that is put in.
    """
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    strings = golden_strings(tokenizer.all_special_tokens)
    by_gpt2 = [tokenizer(text, add_special_tokens=False).input_ids for text in strings]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in strings]
    print("SmolLM2:", sum(a != b for a, b in zip(ids, by_gpt2, strict=True)), "strings depend on the digits' rule")
    conversations = golden_conversations()
    templated = [
        tokenizer.apply_chat_template(chat, tokenize=True, add_generation_prompt=i % 2 == 0, return_dict=False)
        for i, chat in enumerate(conversations)
    ]
    write("smollm2", specials=tokenizer.all_special_tokens, strings=strings, ids=ids)
    document = {"conversations": text_digest(conversations), "ids": [ids_digest(line) for line in templated]}
    (GOLDEN / "smollm2_chat.json").write_text(json.dumps(document, indent=0) + "\n")


def write_sentencepiece() -> None:
    """A tiny SentencePiece model trained on the golden strings, as GGUF would hold it, and ids of all strings.

    They are those of `transformers`, and must be those of `sentencepiece` itself where a string holds no control token.
    """
    specials = ["<s>", "</s>", *SENTENCEPIECE_CONTROLS]
    strings = golden_strings(specials)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "tokenizer.model")
        model.write_bytes(trained(strings))
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        tokenizer = TokenizersBackend.from_pretrained(folder)
        ids = [tokenizer(text, add_special_tokens=False).input_ids for text in strings]
    own = [processor.encode(text) for text in strings]
    plain = [i for i, text in enumerate(strings) if not any(special in text for special in specials)]
    differing = [i for i in plain if own[i] != ids[i]]
    print(
        "SentencePiece:", len(plain), "plain strings,", len(differing), "on which transformers and sentencepiece differ"
    )
    for i in differing[:10]:
        print(repr(strings[i]), own[i], ids[i])
    write("sentencepiece", specials=specials, strings=strings, ids=ids, own=own, plain=plain)
    (GOLDEN / "sentencepiece_metadata.json").write_text(json.dumps(metadata(processor), ensure_ascii=False) + "\n")


def trained(strings: list[str]) -> bytes:
    """A SentencePiece BPE model with byte fallback, as Llama's."""
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for text in strings[:4000] for line in text.splitlines() if line and "\0" not in line),
        model_writer=buffer,
        model_type="bpe",
        vocab_size=SENTENCEPIECE_VOCABULARY,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        control_symbols=SENTENCEPIECE_CONTROLS,
        user_defined_symbols=SENTENCEPIECE_USER_DEFINED,
        num_threads=1,
        minloglevel=2,
    )
    return buffer.getvalue()


def metadata(processor: Any) -> dict[str, Any]:
    """The model under GGUF's names."""
    kinds = []
    for i in range(processor.get_piece_size()):
        user = processor.id_to_piece(i) in SENTENCEPIECE_USER_DEFINED
        control, unknown, byte = processor.is_control(i), processor.is_unknown(i), processor.is_byte(i)
        kinds.append(4 if user else 2 if unknown else 3 if control else 6 if byte else 1)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in range(processor.get_piece_size())],
        "tokenizer.ggml.scores": [processor.get_score(i) for i in range(processor.get_piece_size())],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
    }


def write(
    name: str,
    *,
    specials: list[str],
    strings: list[str],
    ids: list[list[int]],
    own: list[list[int]] | None = None,
    plain: list[int] | None = None,
) -> None:
    """One golden file; `own` are ids by another program for the strings at `plain`."""
    document: dict[str, Any] = {"specials": specials, "strings": text_digest(strings)}
    document["ids"] = [ids_digest(line) for line in ids]
    if own is not None and plain is not None:
        document["differing"] = [i for i in plain if own[i] != ids[i]]
    (GOLDEN / f"{name}.json").write_text(json.dumps(document, indent=0) + "\n")


if __name__ == "__main__":
    main()
