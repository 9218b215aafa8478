"""What `LLM` gives back. Names follow vLLM's offline API where the meaning is the same."""

from msgspec import Struct, field

from foreword.core.probe import Reading
from foreword.core.sequence import Usage


class TokenLogprob(Struct, frozen=True):
    """Natural log-probability, 1-based rank and text of one token."""

    logprob: float
    rank: int
    decoded_token: str


PositionLogprobs = dict[int, TokenLogprob]
"""Token id -> logprob of one position: the chosen token first, then the most likely ones, best first."""


class CompletionOutput(Struct):
    """One continuation. `stop_reason` is the stop string or stop token id that ended it, if one did."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None  # "stop", "length" or "abort"
    stop_reason: str | int | None = None


class RequestOutput(Struct):
    """A request's prompt, its continuations and its account of tokens."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    usage: Usage = field(default_factory=Usage)
    reading: Reading | None = None  # where a probe took the place of an answer

    @property
    def finished(self) -> bool:
        """True when every continuation has ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens read from the prefix cache."""
        return self.usage.cached_tokens


class BeamSearchSequence(Struct, frozen=True):
    """One beam: what was generated, end token included and prompt not, and what it is ranked by."""

    text: str
    token_ids: list[int]
    cumulative_logprob: float  # sum of the tokens' natural log-probabilities
    score: float  # cumulative_logprob / len(token_ids) ** length_penalty
    finish_reason: str  # "stop" or "length"


class BeamSearchOutput(Struct):
    """A prompt's beams, best first, and its account of tokens."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sequences: list[BeamSearchSequence] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)


class EmbeddingOutput(Struct, frozen=True):
    """A text as a vector of length one: the hidden state of its last token, after the final norm."""

    embedding: list[float]
    prompt_token_ids: list[int]
    usage: Usage


class ScoreOutput(Struct, frozen=True):
    """How well a document answers a query: `p(first label) / (p(first label) + p(second label))`, 0 to 1."""

    score: float
    usage: Usage
    is_cut: bool = False  # the document was longer than it may be


class RerankResult(Struct, frozen=True):
    """One document, by its place among those given."""

    index: int
    relevance_score: float


class RerankOutput(Struct, frozen=True):
    """Documents, best first (equal scores in the order given), and the account of all prompts together."""

    results: list[RerankResult]
    usage: Usage
    cut_documents: list[int]  # those longer than they may be


class TextDelta(Struct, frozen=True):
    """What one step added to one continuation; `text` is safe to show: never half a character or part of a stop."""

    request_index: int  # position of the prompt in the call
    index: int  # which of the prompt's n continuations
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    output: RequestOutput  # the request so far: complete once it has finished


class MissExplanation(Struct, frozen=True):
    """Why a prompt is not read whole from the cache: what would hit, and the first token that would not.

    `cause` is "none" when all that can hit does; `stored` is the text of the token that stands there in the nearest
    stored sequence, when one goes on otherwise.
    """

    prompt_tokens: int
    matched_tokens: int
    cause: str
    matched_text: str
    wanted: str | None
    stored: str | None
