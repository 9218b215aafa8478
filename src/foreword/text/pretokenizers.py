r"""How each named byte-level tokenizer cuts text before merging: facts of those tokenizers, under GGUF's names.

A chain is written in the form of the `tokenizers` library, from which the models' own files come. `\p{N}` in a split
and the `Digits` step differ in a few code points; each chain uses what its model's own file uses.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from foreword.text.tokenizer_spec import Json

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_OTHER}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_OTHER}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)

# Words of mixed case are cut where a run of lower case ends: "fooBar" -> "foo", "Bar".
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_OTHER_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


def _cased_words(ending: str) -> str:
    lead = r"[^\r\n\p{L}\p{N}]?"
    return rf"{lead}{_UPPER}*{_LOWER}+{ending}|{lead}{_UPPER}+{_LOWER}*{ending}"


_TEKKEN = rf"{_cased_words('')}|\p{{N}}|{_OTHER_SLASH}|{_SPACES}"
_GPT4O = rf"{_cased_words(_CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_OTHER_SLASH}|{_SPACES}"

_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Cased letters without the mathematical alphabets.
_DEEPSEEK_LETTERS = r"\s?[[\p{Lu}\p{Ll}\p{Lt}]&&[^\x{1D400}-\x{1D7FF}]]+"
_DEEPSEEK_CJK = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"


def split(pattern: str) -> Json:
    """Each match of `pattern` becomes a piece of its own."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(*, use_regex: bool) -> Json:
    """Bytes spelled in GPT-2's alphabet; with `use_regex`, cut by GPT-2's pattern first."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _digits(*, individual: bool) -> Json:
    return {"type": "Digits", "individual_digits": individual}


def _chain(*steps: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _splits(*patterns: str) -> Json:
    return _chain(*(split(pattern) for pattern in patterns), byte_level(use_regex=False))


class PreTokenizer(Struct, frozen=True):
    """One named chain, and what llama.cpp takes for granted for files that use it."""

    chain: Json
    ignore_merges: bool = False  # a piece that is a token as it stands is not merged from its parts
    add_bos: bool = False


_GPT2_CHAIN = PreTokenizer(_chain(byte_level(use_regex=True)))
_DIGIT_CHAIN = PreTokenizer(_chain(_digits(individual=True), byte_level(use_regex=True)))
_LLAMA3_CHAIN = PreTokenizer(_splits(_LLAMA3), ignore_merges=True, add_bos=True)
_LLAMA3_MERGED = PreTokenizer(_splits(_LLAMA3))
_QWEN2_CHAIN = PreTokenizer(_splits(_QWEN2))
_GPT4O_CHAIN = PreTokenizer(_splits(_GPT4O))
_DEEPSEEK_CODER_CHAIN = PreTokenizer(
    _chain(
        split(r"[\r\n]"),
        split(r"\s?\p{L}+"),
        split(r"\s?\p{P}+"),
        split(_DEEPSEEK_CJK),
        _digits(individual=True),
        byte_level(use_regex=False),
    )
)
_DEEPSEEK_LLM_CHAIN = PreTokenizer(
    _chain(
        split(r"[\r\n]"),
        split(_DEEPSEEK_LETTERS),
        split(r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"),
        split(r"\s+$"),
        split(_DEEPSEEK_CJK),
        _digits(individual=True),
        byte_level(use_regex=False),
    )
)
_FALCON_CHAIN = PreTokenizer(
    _chain(
        {"type": "Punctuation", "behavior": "Contiguous"},
        byte_level(use_regex=True),
        _digits(individual=False),
        split("[0-9][0-9][0-9]"),
    )
)
_DEFAULT_CHAIN = PreTokenizer(_splits(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "default": _DEFAULT_CHAIN,
        **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"), _GPT2_CHAIN),
        **dict.fromkeys(
            ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum"), _DIGIT_CHAIN
        ),
        **dict.fromkeys(
            ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _LLAMA3_CHAIN
        ),
        **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _LLAMA3_MERGED),
        **dict.fromkeys(
            ("qwen2", "deepseek-r1-qwen", "stablelm2", "kormo", "megrez", "hunyuan", "grok-2", "solar-open"),
            _QWEN2_CHAIN,
        ),
        "qwen35": PreTokenizer(_splits(_QWEN35)),
        "tekken": PreTokenizer(_splits(_TEKKEN), ignore_merges=True, add_bos=True),
        **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O_CHAIN),
        "deepseek-llm": _DEEPSEEK_LLM_CHAIN,
        "deepseek-coder": _DEEPSEEK_CODER_CHAIN,
        **dict.fromkeys(
            ("deepseek-v3", "hunyuan-dense", "joyai-llm"),
            PreTokenizer(_splits(r"\p{N}{1,3}", r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+", _DEEPSEEK3)),
        ),
        "falcon": _FALCON_CHAIN,
    }
)
"""Name in `tokenizer.ggml.pre` -> chain."""
