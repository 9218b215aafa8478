"""The `tokenizers` library's side of a tokenizer, built when the first text is encoded."""

import json
import threading
from typing import TYPE_CHECKING

from foreword.core.errors import InvalidRequestError, ModelFormatError
from foreword.text.tokenizer_spec import SPECIAL_KINDS, Json, TokenizerSpec, TokenKind, as_pairs, ids_of

if TYPE_CHECKING:
    import tokenizers
    from tokenizers.models import BPE


class Encoder:
    """Cuts text into tokens. Safe to use from several threads.

    What a file says of normalising and cutting is checked at once, where it says it in its own words; the table of
    merges is built at first use, as it takes a tenth of a server's start and ten megabytes, and whoever sends token ids
    never needs it, nor the library.

    Raises:
        ModelFormatError: the library refuses the pipeline or the vocabulary.
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._checked = None if spec.has_known_pipelines else _build_pipelines(spec)
        self._built: _Pipelines | None = None

    def encode(self, text: str, *, takes_prefix: bool) -> list[int]:
        """Ids of a stretch of text in which nothing is special; `takes_prefix`: one that takes the leading space.

        Raises:
            InvalidRequestError: the text has a lone surrogate.
            ModelFormatError: the vocabulary can't be used, or the pre-tokenizer's pattern needs too many steps.
        """
        first, inner = self._built or self._build()
        try:
            return list((first if takes_prefix else inner).encode(text, add_special_tokens=False).ids)
        except TypeError:  # the library can't take a string that isn't valid Unicode
            raise InvalidRequestError("text", "text without lone surrogates", text) from None
        except BaseException as error:
            if not _is_panic(error):
                raise
            detail = "the pre-tokenizer's pattern needs too many steps on this text"
            raise ModelFormatError(self._spec.source, "pre_tokenizer", detail) from None

    def _build(self) -> "_Pipelines":
        with self._lock:
            if self._built is None:
                first, inner = self._checked or _build_pipelines(self._spec)
                first.model = inner.model = _build_model(self._spec)
                self._built, self._checked = (first, inner), None
            return self._built


def _build_model(spec: TokenizerSpec) -> "BPE":
    """The library's model: every token that text may become. Of tokens that are written alike, the last one counts."""
    from tokenizers.models import BPE

    kinds, merges = spec.kinds, as_pairs(spec.merges)
    absent = set(ids_of(kinds, SPECIAL_KINDS))
    if TokenKind.USER_DEFINED in kinds:  # found in the text before merging; wanted here only as a step of a merge
        merged = {part for left, right in merges for part in (left, right, left + right)}
        absent |= {i for i in ids_of(kinds, (TokenKind.USER_DEFINED,)) if spec.tokens[i] not in merged}
    vocabulary = {token: i for i, token in enumerate(spec.tokens) if i not in absent}
    vocabulary.pop("", None)
    unknown = None
    if spec.unk_token_id is not None and not spec.byte_level and not spec.byte_fallback:
        unknown = "<unknown>"  # a name of ours, so that no text can spell it
        while unknown in vocabulary:
            unknown += ">"
        vocabulary[unknown] = spec.unk_token_id
    try:
        return BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=unknown,
            fuse_unk=spec.fuse_unknown,
            byte_fallback=spec.byte_fallback,
            ignore_merges=spec.ignore_merges,
        )
    except Exception as error:
        raise ModelFormatError(spec.source, "merges", str(error)) from None


_Pipelines = tuple["tokenizers.Tokenizer", "tokenizers.Tokenizer"]
"""For a text's first stretch, and for those behind a special token."""


def _build_pipelines(spec: TokenizerSpec) -> _Pipelines:
    first = _build_pipeline(spec, spec.first)
    return first, first if spec.inner == spec.first else _build_pipeline(spec, spec.inner)


def _build_pipeline(spec: TokenizerSpec, pipeline: Json) -> "tokenizers.Tokenizer":
    import tokenizers

    empty = {"type": "BPE", "vocab": {}, "merges": []}
    document: Json = {"version": "1.0", "added_tokens": [], "post_processor": None, "decoder": None, "model": empty}
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(document | pipeline))
    except Exception as error:
        raise ModelFormatError(spec.source, "pre_tokenizer", str(error).replace("\n", " ")[:200]) from None


def _is_panic(error: BaseException) -> bool:
    """A failure inside the library arrives as a `BaseException` of a class that can't be imported."""
    return type(error).__name__ == "PanicException"
