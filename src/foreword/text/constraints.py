"""Structured output in tokens, over `llguidance`: what to allow next is computed from a grammar and the vocabulary.

    StructuredOutput ──a Lark grammar──▶ LLMatcher at its start, kept ──a copy──▶ one state for each sequence

Every kind becomes a Lark grammar that leaves the choice of tokens to the model: any token whose bytes fit is allowed,
in whatever way the tokenizer itself would have cut the text. So no text is ever tokenised here.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from foreword.core.errors import ConstraintError, InvalidRequestError
from foreword.core.structured_output import StructuredOutput
from foreword.core.types import TokenId
from foreword.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_CACHED = 32
"""Compiled constraints kept for the next request that asks for the same; each may grow to `MAX_LEXER_STATES`."""

MAX_STEP_ITEMS = 3_000
"""Parser items made for the mask of one token, whose cost grows with their square: some milliseconds. An object of 200
optional properties takes half of them."""
MAX_ROW_ITEMS = 1_500
"""Parser items alive after one byte of the answer: what taking in a token costs."""
STEP_LEXER_FUEL = 50_000
"""Steps of regular expressions for the mask of one token: about 14,000 a millisecond."""
COMPILE_LEXER_FUEL = 200_000
"""The same, for all of them at the start."""
MAX_LEXER_STATES = 10_000
"""States kept of one form's expressions, by all its answers together: about 1 KB each."""
MAX_GRAMMAR_SYMBOLS = 100_000

MAX_INDENT = 32
_WHITE_SPACE = rf"[ ]|\n[ ]{{0,{MAX_INDENT}}}"
_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
_CAUSE = re.compile(r"^error: (.{1,200})$", re.MULTILINE)  # of the library for regular expressions
_NO_FORCING = '%llguidance {"no_forcing": true}\n'


class TokenMaskState:
    """A `ConstraintState` over a matcher of its own."""

    __slots__ = ("_allowed", "_matcher")

    def __init__(self, matcher: "LLMatcher", allowed: bytes) -> None:
        self._matcher = matcher
        self._allowed = allowed

    @property
    def allowed_tokens(self) -> bytes:
        """See `ConstraintState`."""
        return self._allowed

    @property
    def is_finished(self) -> bool:
        """See `ConstraintState`."""
        return self._matcher.is_stopped()

    def accept(self, token_id: TokenId) -> None:
        """See `ConstraintState`."""
        _take_in(self._matcher, [token_id])
        self._allowed = _allowed_tokens(self._matcher)


class GrammarConstraint:
    """A `TokenConstraint`: a matcher at its start, which is copied and never moved."""

    __slots__ = ("_allowed", "_matcher")

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher
        self._allowed = _allowed_tokens(matcher)

    def start(self, token_ids: Iterable[TokenId] = ()) -> TokenMaskState:
        """See `TokenConstraint`. Tokens generated before are taken in without their masks."""
        matcher, past = self._matcher.deep_copy(), list(token_ids)
        if not past:
            return TokenMaskState(matcher, self._allowed)
        _take_in(matcher, past)
        return TokenMaskState(matcher, _allowed_tokens(matcher))


class ConstraintCompiler:
    """Compiles structured output for one vocabulary, and keeps what was asked for last. Safe to use from any thread.

    Nothing is loaded before the first constraint is asked for; the vocabulary then takes about 0.3 s, once.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_cached: int = MAX_CACHED) -> None:
        self._tokenizer = tokenizer
        self._max_cached = max_cached
        self._lock = threading.Lock()
        self._kept: OrderedDict[StructuredOutput, GrammarConstraint] = OrderedDict()
        self._vocabulary: LLTokenizer | None = None

    def compile(self, wanted: StructuredOutput) -> GrammarConstraint:
        """The constraint, compiled or kept.

        Raises:
            InvalidRequestError: it is malformed, can't be enforced, allows no answer, or takes more work than is
                granted. Nothing was changed.
        """
        with self._lock:
            found = self._kept.get(wanted)
            if found is None:
                found = self._kept[wanted] = self._compile(wanted)
                if len(self._kept) > self._max_cached:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(wanted)
            return found

    def _compile(self, wanted: StructuredOutput) -> GrammarConstraint:
        from llguidance import LLMatcher

        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._tokenizer)
        matcher = LLMatcher(self._vocabulary, _grammar(wanted), log_level=0, limits=_limits())
        try:
            if matcher.is_error():
                raise ConstraintError(matcher.get_error())
            constraint = GrammarConstraint(matcher)
        except ConstraintError as error:
            for part in wanted.parts:
                self._compile(part)  # says which of them it is
            raise _refusal(wanted, error.reason) from None
        ends = sum(1 << token_id for token_id in self._tokenizer.eos_token_ids)
        if not int.from_bytes(constraint.start().allowed_tokens, "little") & ~ends:
            raise _refusal(wanted, "it allows only an empty answer")
        return constraint


class _Vocabulary:
    """What `LLTokenizer` asks of a tokenizer."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in ids]
        self.special_token_ids = sorted(tokenizer.special_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self.end_token_ids = sorted(tokenizer.eos_token_ids)
        if not self.end_token_ids:  # one beyond the vocabulary, which no mask reaches
            self.end_token_ids = [len(self.tokens)]
            self.special_token_ids.append(len(self.tokens))
            self.tokens.append(b"<end>")
        self.eos_token_id = self.end_token_ids[0]

    def __call__(self, text: bytes | str) -> Sequence[int]:
        """Text is never tokenised, see above; the library wants to be able to ask."""
        return ()


def _vocabulary(tokenizer: Tokenizer) -> "LLTokenizer":
    from llguidance import LLTokenizer, TokenizerWrapper

    vocabulary = _Vocabulary(tokenizer)
    return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=vocabulary.end_token_ids)


def _limits() -> "LLParserLimits":
    """By counts, so that the same form is granted or refused on any machine, whatever else it does."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        step_max_items=MAX_STEP_ITEMS,
        max_items_in_row=MAX_ROW_ITEMS,
        step_lexer_fuel=STEP_LEXER_FUEL,
        initial_lexer_fuel=COMPILE_LEXER_FUEL,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )


def _grammar(wanted: StructuredOutput) -> str:
    """As Lark."""
    if wanted.kind == "grammar":
        return wanted.source + "\n" + _NO_FORCING
    return f"{_NO_FORCING}start: {form_rule(wanted)}"


def form_rule(wanted: StructuredOutput) -> str:
    """What a form that is no grammar of its own is in Lark: the right side of a rule.

    Raises:
        InvalidRequestError: it says of itself what is the server's to say.
    """
    if wanted.kind == "regex":
        from llguidance import regex_to_lark

        return f"/{regex_to_lark(wanted.source, '')}/"
    if wanted.kind == "choice":
        choices: Sequence[str] = wanted.choice or ()
        return " | ".join(json.dumps(choice) for choice in choices)
    return f"%json {_with_options(wanted)}"


def _with_options(wanted: StructuredOutput) -> str:
    """A schema with what the library is told beside it; a caller has no say in that.

    White space is bounded, else a model unsure of itself fills its answer with it.
    """
    schema = json.loads(wanted.source)
    if "x-guidance" in schema:
        raise _refusal(wanted, "x-guidance is the server's to say")
    options = {"whitespace_flexible": True, "whitespace_pattern": _WHITE_SPACE, "lenient": False}
    return json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def _take_in(matcher: "LLMatcher", token_ids: Sequence[TokenId]) -> None:
    if not matcher.consume_tokens([*token_ids]):
        told = "a token does not fit, or takes more work than is granted"
        raise ConstraintError(f"{told} ({_first_line(matcher.get_error())})")


def _allowed_tokens(matcher: "LLMatcher") -> bytes:
    """The mask of what may come next; of a matcher that has stopped, the end alone."""
    allowed = matcher.compute_bitmask()
    if matcher.is_error():
        told = "which token may come next takes more work than is granted"
        raise ConstraintError(f"{told} ({_first_line(matcher.get_error())})")
    if not any(allowed):
        raise ConstraintError("no token of the vocabulary can follow")
    return allowed


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0][:300]


def _refusal(wanted: StructuredOutput, reason: str) -> InvalidRequestError:
    source = wanted.source if not wanted.parts else " and ".join(part.source for part in wanted.parts)
    return InvalidRequestError(wanted.name, f"one that can be enforced ({_reason(wanted, reason)})", source)


def _reason(wanted: StructuredOutput, text: str) -> str:
    """What the library has to say, on one line: its own place in a grammar that isn't the caller's says nothing."""
    cause = _CAUSE.search(text)
    if cause is not None:
        return f"invalid regex: {cause[1]}"
    line = _first_line(text)
    return line if wanted.kind == "grammar" else _PLACE.sub("", line)
