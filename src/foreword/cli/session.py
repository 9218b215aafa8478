"""From options to a loaded model, and what a person is told about it."""

import gc
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from foreword.cli.console import err_console, human_bytes, human_s, remark
from foreword.cli.environment import models_folder
from foreword.cli.options import ModelOptions
from foreword.core.errors import ModelNotFoundError

if TYPE_CHECKING:
    from foreword.bench.timing import StreamClock
    from foreword.llm import LLM, EngineOptions, LoadSummary, RequestOutput, TextDelta


@contextmanager
def collector_held() -> Iterator[None]:
    """Within, no garbage is looked for, and what is there afterwards counts as there to stay.

    Imports and a model make hundreds of thousands of objects that all stay; the collector would walk them at every
    growth by a quarter, a twentieth of a server's start, and then again while it serves.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def find_model(name: str) -> Path:
    """The file or folder that a `--model` means: the name of a pulled model, or a path.

    A pulled model's name means that model wherever one stands; `./smollm2` is the folder of that name.

    Raises:
        ModelNotFoundError: there is neither; the message has the cure.
    """
    from foreword.models.catalogue import CATALOGUE

    if name in CATALOGUE:
        pulled = models_folder() / CATALOGUE[name].file_name
        if pulled.exists():
            return pulled
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name in CATALOGUE:
        raise ModelNotFoundError(f"model {name} is not here yet; run: foreword pull {name}")
    names = ", ".join(sorted(CATALOGUE))
    raise ModelNotFoundError(f"no file or folder {name}, and no model of that name to pull (there is: {names})")


def open_model(model: ModelOptions, *, quiet: bool) -> "LLM":
    """Load the model of the options, and say on stderr what was decided at start.

    Raises:
        ForewordError: no usable model there, or an option out of range.
    """
    path = find_model(model.model)
    options = model.engine_options()
    from foreword.llm import LLM

    if quiet:
        return LLM(path, **asdict(options))
    with err_console().status(f"Loading {path.name} …"):
        llm = LLM(path, **asdict(options))
    for line in summary_lines(llm.summary, options):
        remark(line)
    return llm


def summary_lines(summary: "LoadSummary", options: "EngineOptions") -> list[str]:
    """What was loaded, and every memory budget with how it was decided."""
    kernels = f"{summary.backend} {summary.instruction_set}".strip()
    weights = "as in the file" if summary.weight_dtype == "auto" else summary.weight_dtype
    threads = "1 thread" if summary.threads == 1 else f"{summary.threads} threads"
    first = (
        f"{summary.model} · {summary.architecture} · weights {human_bytes(summary.weight_bytes)} ({weights}) · "
        f"{kernels}, {threads} · loaded in {human_s(summary.load_s)}"
    )
    if not summary.kv_cache:
        return [first, "KV cache off: every step computes every token again"]
    second = (
        f"KV pool {human_bytes(summary.kv_pool_bytes)} {summary.kv_dtype} ({kv_decision(summary, options)}) · "
        f"{summary.kv_pool_tokens:,} tokens in blocks of {summary.block_size} · "
        f"context {summary.max_model_len:,} · prefix cache {summary.prefix_cache}"
    )
    return [first, second]


def kv_decision(summary: "LoadSummary", options: "EngineOptions") -> str:
    """Why the KV pool has the size it has."""
    from foreword.llm.loading import DEFAULT_KV_SHARE

    if options.kv_memory_bytes is not None:
        return "as asked"
    share = int(summary.available_bytes * DEFAULT_KV_SHARE)
    one_block = summary.kv_bytes_per_token * summary.block_size
    if summary.kv_pool_bytes > share - one_block:
        return f"{DEFAULT_KV_SHARE:.0%} of the {human_bytes(summary.available_bytes)} free"
    return f"all that {options.max_num_seqs} full-length sequences can use"


def follow(
    clock: "StreamClock", deltas: "Generator[TextDelta, None, None]", show: "Callable[[TextDelta], None]"
) -> "RequestOutput | None":
    """Show a stream as it comes; returns the request as far as it got, None when it was stopped before its first step.

    The stream is closed on every way out, so that nothing keeps running in the engine.

    Raises:
        Interrupted: Ctrl-C came between two steps; `clock.output` holds what there is.
    """
    with closing(deltas):
        for delta in clock.watch(deltas):
            show(delta)
    return clock.output
