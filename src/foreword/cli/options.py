"""Options that commands share, as records, and `grouped`, which lets a command take one whole."""

import functools
import inspect
import math
import re
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from foreword.cli.environment import DEFAULT_MODEL, keep_blas_single
from foreword.cli.text_input import parse_json, read_text
from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.core.sampling_params import SamplingParams
from foreword.core.structured_output import StructuredOutput

if TYPE_CHECKING:
    from foreword.llm import EngineOptions

_ENGINE = "Engine"
_SAMPLING = "Sampling"
_FORM = "Form of the answer"
_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B?)", re.IGNORECASE)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else.")]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", help="No summary, progress or remarks on stderr.")]


class OnOff(StrEnum):
    """A switch with both positions named."""

    on = "on"
    off = "off"


class KVDtype(StrEnum):
    """How K and V are stored."""

    f32 = "f32"
    f16 = "f16"
    int16 = "int16"
    int8 = "int8"


class Weights(StrEnum):
    """How weights are held in memory."""

    auto = "auto"
    f32 = "f32"
    q8 = "q8"
    q4 = "q4"


class PrefixCache(StrEnum):
    """How prefixes are found again."""

    radix = "radix"
    hash = "hash"
    none = "none"


class ReuseGenerated(StrEnum):
    """Whether later prompts may hit what was generated, or only what was once a prompt."""

    tenant = "tenant"
    off = "off"


class Retention(StrEnum):
    """Which cached prefix goes first."""

    slru = "slru"
    lru = "lru"
    lfu = "lfu"
    cost = "cost"


class Speculation(StrEnum):
    """Whether several tokens may be computed in one step on a guess."""

    off = "off"
    prompt_lookup = "prompt_lookup"


class BackendName(StrEnum):
    """Which kernels run."""

    cpu = "cpu"
    reference = "reference"


class ModelOptions(Struct, frozen=True, kw_only=True):
    """Which model, and how it is run."""

    model: Annotated[
        str,
        typer.Option("--model", "-m", envvar="FOREWORD_MODEL", help="A pulled name, a .gguf file or a folder."),
    ] = DEFAULT_MODEL
    threads: Annotated[
        int | None,
        typer.Option("--threads", "-t", envvar="FOREWORD_THREADS", help="Default: one a physical core."),
    ] = None
    kv_cache: Annotated[
        OnOff, typer.Option(help="off: recompute everything at every step.", rich_help_panel=_ENGINE)
    ] = OnOff.on
    kv_dtype: Annotated[
        KVDtype,
        typer.Option(
            help="How K and V are stored; int16: integers, fastest on long prompts; f16: 3 % less memory; int8: half.",
            rich_help_panel=_ENGINE,
        ),
    ] = KVDtype.int16
    kv_memory: Annotated[
        str | None,
        typer.Option(
            help="Memory for K and V, e.g. 2GiB. Default: a quarter of what is free, if so much is of use.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    block_size: Annotated[int, typer.Option(help="Tokens a KV block.", rich_help_panel=_ENGINE)] = 16
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest sequence. Default: the model's.", rich_help_panel=_ENGINE)
    ] = None
    max_num_seqs: Annotated[int, typer.Option(help="Sequences run at once.", rich_help_panel=_ENGINE)] = 16
    token_budget: Annotated[int, typer.Option(help="Most tokens a step computes.", rich_help_panel=_ENGINE)] = 512
    weights: Annotated[
        Weights, typer.Option(help="Weights in memory; auto keeps the file's.", rich_help_panel=_ENGINE)
    ] = Weights.auto
    prefix_cache: Annotated[
        PrefixCache, typer.Option(help="How prefixes are found again.", rich_help_panel=_ENGINE)
    ] = PrefixCache.radix
    reuse_generated: Annotated[
        ReuseGenerated, typer.Option(help="off: only what was once a prompt can be hit.", rich_help_panel=_ENGINE)
    ] = ReuseGenerated.tenant
    retention: Annotated[Retention, typer.Option(help="Which cached prefix goes first.", rich_help_panel=_ENGINE)] = (
        Retention.slru
    )
    speculation: Annotated[
        Speculation,
        typer.Option(help="prompt_lookup: compute what was said before on a guess.", rich_help_panel=_ENGINE),
    ] = Speculation.off
    backend: Annotated[BackendName, typer.Option(help="Which kernels run.", rich_help_panel=_ENGINE)] = BackendName.cpu
    instruction_set: Annotated[str, typer.Option(help="auto, avx2, neon or scalar.", rich_help_panel=_ENGINE)] = "auto"
    debug: Annotated[
        bool, typer.Option("--debug", help="Poison unused K and V, check every invariant.", rich_help_panel=_ENGINE)
    ] = False

    def engine_options(self) -> "EngineOptions":
        """The same for `LLM`; numbers are checked where they are used.

        Raises:
            InvalidRequestError: `--kv-memory` is not a size.
        """
        if self.backend is BackendName.cpu:
            keep_blas_single()
        from foreword.llm import EngineOptions

        return EngineOptions(
            threads=self.threads,
            backend=self.backend.value,
            instruction_set=self.instruction_set,
            weight_dtype=self.weights.value,
            kv_cache=self.kv_cache is OnOff.on,
            kv_dtype=self.kv_dtype.value,
            kv_memory_bytes=None if self.kv_memory is None else parse_bytes("kv_memory", self.kv_memory),
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            token_budget=self.token_budget,
            prefix_cache=self.prefix_cache.value,
            reuse_generated=self.reuse_generated.value,
            retention=self.retention.value,
            speculation=self.speculation.value,
            debug=self.debug,
        )


class SamplingOptions(Struct, frozen=True, kw_only=True):
    """How tokens are chosen: the fields of `SamplingParams`."""

    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.0
    seed: Annotated[int | None, typer.Option(help="Same seed, same answer.")] = None
    n: Annotated[int, typer.Option("--n", help="Answers to one prompt.", rich_help_panel=_SAMPLING)] = 1
    top_k: Annotated[int, typer.Option(help="0: all tokens.", rich_help_panel=_SAMPLING)] = 0
    top_p: Annotated[float, typer.Option(rich_help_panel=_SAMPLING)] = 1.0
    min_p: Annotated[float, typer.Option(rich_help_panel=_SAMPLING)] = 0.0
    repetition_penalty: Annotated[float, typer.Option(rich_help_panel=_SAMPLING)] = 1.0
    presence_penalty: Annotated[float, typer.Option(rich_help_panel=_SAMPLING)] = 0.0
    frequency_penalty: Annotated[float, typer.Option(rich_help_panel=_SAMPLING)] = 0.0
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="TOKEN_ID=VALUE; may be repeated.", rich_help_panel=_SAMPLING)
    ] = None
    min_tokens: Annotated[int, typer.Option(help="No end before.", rich_help_panel=_SAMPLING)] = 0
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; may be repeated.")] = None
    stop_token_id: Annotated[
        list[int] | None, typer.Option(help="Token that ends the answer; may be repeated.", rich_help_panel=_SAMPLING)
    ] = None
    include_stop: Annotated[
        bool, typer.Option("--include-stop", help="Keep the stop text.", rich_help_panel=_SAMPLING)
    ] = False
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the end token.", rich_help_panel=_SAMPLING)
    ] = False
    logprobs: Annotated[
        int | None, typer.Option(help="Logprobs of this many likely tokens, in --json.", rich_help_panel=_SAMPLING)
    ] = None
    prompt_logprobs: Annotated[int | None, typer.Option(help="The same for the prompt.", rich_help_panel=_SAMPLING)] = (
        None
    )
    json_schema: Annotated[
        str | None, typer.Option(help="File with a JSON Schema the answer must fit.", rich_help_panel=_FORM)
    ] = None
    regex: Annotated[str | None, typer.Option(help="Pattern the whole answer must match.", rich_help_panel=_FORM)] = (
        None
    )
    grammar: Annotated[
        str | None, typer.Option(help="File with a Lark grammar of the answer.", rich_help_panel=_FORM)
    ] = None
    show_special: Annotated[
        bool, typer.Option("--show-special", help="Show special tokens.", rich_help_panel=_SAMPLING)
    ] = False

    def params(self) -> SamplingParams:
        """The same as `SamplingParams`.

        Raises:
            InvalidRequestError: a value is out of its range.
            ForewordError: a file can't be read.
        """
        return SamplingParams(
            n=self.n,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=_parse_bias(self.logit_bias or []),
            seed=self.seed,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_id or ()),
            include_stop_str_in_output=self.include_stop,
            ignore_eos=self.ignore_eos,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            skip_special_tokens=not self.show_special,
            structured_output=self._structured_output(),
        )

    def _structured_output(self) -> StructuredOutput | None:
        if self.json_schema is None and self.regex is None and self.grammar is None:
            return None
        return StructuredOutput(
            json_schema=None if self.json_schema is None else _read_schema(self.json_schema),
            regex=self.regex,
            grammar=None if self.grammar is None else read_text(self.grammar),
        )


def _read_schema(file: str) -> str:
    text = read_text(file)
    if not isinstance(parse_json(text, f"--json-schema {file}"), dict):
        raise ForewordError(f"--json-schema {file}: expected a JSON object")
    return text


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take records of options: Typer sees one option a field.

    Fifteen engine options belong to four commands; writing them into each signature would be the same list four times.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {p.name: p.annotation for p in signature.parameters.values() if _is_record(p.annotation)}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        group = groups.get(parameter.name)
        parameters += [parameter] if group is None else _parameters_of(group)
    parameters.sort(key=lambda p: p.kind)  # positional ones first, as a signature must have them

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field: values.pop(field) for field in group.__struct_fields__})
        command(**values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def parse_bytes(name: str, text: str) -> int:
    """`2GiB`, `512M` or a plain number as bytes; units are powers of 1024.

    Raises:
        InvalidRequestError: not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    value = math.inf if match is None else float(match[1]) * _UNITS[match[2].upper()]
    if not 0 < value < 2**63:
        raise InvalidRequestError(name, "a size such as 2GiB or 512MiB", text)
    return int(value)


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=field.type)
        for field in fields(group)
    ]


def _is_record(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _default(field: FieldInfo) -> object:
    return inspect.Parameter.empty if field.default is NODEFAULT else field.default


def _parse_bias(entries: list[str]) -> dict[int, float]:
    bias = {}
    for entry in entries:
        token, _, value = entry.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise InvalidRequestError("logit_bias", "TOKEN_ID=VALUE such as 198=-5", entry) from None
    return bias
