"""From a model file and a few options to an engine, with every memory budget decided and stated."""

import hashlib
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Self

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from foreword.core.config import (
    CacheConfig,
    KVDtype,
    PrefixCacheKind,
    RetentionKind,
    ReuseGenerated,
    SchedulerConfig,
    SpeculationKind,
)
from foreword.core.errors import CapacityError, InvalidRequestError
from foreword.engine.engine import Engine
from foreword.events.opening import EventPublisher, open_publisher
from foreword.events.options import EventOptions, event_options
from foreword.kv_cache.block_hash import CacheIdentity
from foreword.llm.machine import available_bytes, physical_cores
from foreword.models.base import Model
from foreword.models.registry import ModelFiles, PendingModel, WeightDtype, open_model_files, weights_digest
from foreword.ops.backend import Backend
from foreword.ops.cpu import CpuBackend, available_instruction_sets
from foreword.ops.reference import ReferenceBackend
from foreword.runner.kv_storage import KVStorage, block_bytes
from foreword.runner.model_runner import ModelRunner
from foreword.text.chat_template import ChatTemplate
from foreword.text.loading import load_text
from foreword.text.tokenizer import Tokenizer

DEFAULT_KV_SHARE = 0.25  # of the memory available at start, and no more than all sequences at full length can use
_NO_PART_OF_KV = ("vocab_size", "max_position", "tied_embeddings")  # of a model's sizes


class EngineOptions(Struct, frozen=True, kw_only=True):
    """How to run a model. `None` means: decide from the machine and the model, and say what was decided."""

    threads: int | None = None
    backend: Literal["cpu", "reference"] = "cpu"
    instruction_set: str = "auto"
    weight_dtype: WeightDtype = "auto"
    kv_cache: bool = True  # False: the naive loop that recomputes everything each step
    kv_dtype: KVDtype = "int16"
    kv_memory_bytes: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    max_num_seqs: int = 16
    token_budget: int = 512
    prefix_cache: PrefixCacheKind = "radix"
    reuse_generated: ReuseGenerated = "tenant"
    retention: RetentionKind = "slru"
    speculation: SpeculationKind = "off"
    debug: bool = False
    kv_events: str | EventOptions | None = None  # where to publish what becomes findable and what ceases to be


class LoadSummary(Struct, frozen=True, kw_only=True):
    """What was decided at start, for people and for `--json`."""

    model: str
    architecture: str
    backend: str
    instruction_set: str
    threads: int
    weight_bytes: int
    weight_dtype: str
    kv_cache: bool
    kv_dtype: str
    kv_pool_bytes: int
    kv_bytes_per_token: int
    kv_pool_tokens: int
    num_blocks: int
    block_size: int
    prefix_cache: str
    max_model_len: int
    available_bytes: int
    load_s: float  # from the opening of the files to the engine, whatever the caller did meanwhile


class LoadedModel(Struct, frozen=True):
    """Everything an answer needs: the engine, and the text side of the model."""

    engine: Engine
    model: Model
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None  # None where the model brings none
    summary: LoadSummary
    events: EventPublisher | None = None
    names: tuple[str, ...] = ()  # what its files call the model

    def close(self) -> None:
        """Stop publishing events, once the engine has stopped."""
        if self.events is not None:
            self.events.close()


def load(path: str | Path, options: EngineOptions) -> LoadedModel:
    """Load a model file or folder.

    Raises:
        ModelNotFoundError, ModelFormatError: the path holds no usable model.
        CapacityError: the memory granted is too small.
        InvalidRequestError: an option is out of range.
        ForewordError: events were asked for and can't be published.
    """
    with Loading(path, options) as loading:
        return loading.finish()


class Loading:
    """A model whose weights are being packed while the caller does something else. To be left by `with`.

    Raises as `load` does: what the options and the tensors' shapes say at once, the rest from `finish`.
    """

    def __init__(self, path: str | Path, options: EngineOptions) -> None:
        _check_kinds(options)
        self._options = options
        self._started = time.perf_counter()
        self._free = available_bytes()
        with ExitStack() as held:
            self._events = _open_events(options)
            if self._events is not None:
                held.callback(self._events.close)
            self._files = held.enter_context(open_model_files(path))
            self._backend = make_backend(options)
            self._model = PendingModel(
                self._files, self._backend, weight_dtype=options.weight_dtype, max_model_len=options.max_model_len
            )
            # Before anything that stays: what it uses for a moment is then used again.
            self._tokenizer, self._chat_template = load_text(self._files)
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._held.close()

    def finish(self) -> LoadedModel:
        """The model, with its engine; to be asked for once."""
        model = self._model.finish()
        files, tokenizer, events = self._files, self._tokenizer, self._events
        del self._model, self._files  # a server keeps this object: not the mapped files too, nor their metadata
        engine, summary = self._make_engine(files, model, tokenizer)
        names = (files.path.name, str((files.metadata or {}).get("general.name", "")))
        self._held.pop_all()  # events are the loaded model's from here on
        files.close()
        return LoadedModel(engine, model, tokenizer, self._chat_template, summary, events, names)

    def _make_engine(self, files: ModelFiles, model: Model, tokenizer: Tokenizer) -> tuple[Engine, LoadSummary]:
        """Reserve the KV pool and put the engine together."""
        options, backend, events = self._options, self._backend, self._events
        cache, max_model_len = _plan_pool(model, options, self._free)
        scheduler = SchedulerConfig(
            max_num_seqs=options.max_num_seqs,
            token_budget=options.token_budget,
            max_model_len=max_model_len,
            recompute_all=not options.kv_cache,
            speculation=options.speculation,
        )
        storage = KVStorage(model.config, cache)
        runner = ModelRunner(
            model, backend, storage, cache.block_size, scheduler.token_budget, vocab_size=tokenizer.vocab_size
        )
        summary = LoadSummary(
            model=files.path.name,
            architecture=model.config.architecture,
            backend=backend.name,
            instruction_set=backend.instruction_set,
            threads=backend.num_threads,
            weight_bytes=model.num_bytes,
            weight_dtype=options.weight_dtype,
            kv_cache=options.kv_cache,
            kv_dtype=cache.kv_dtype,
            kv_pool_bytes=storage.num_bytes,
            kv_bytes_per_token=model.config.kv_bytes_per_token(cache.kv_dtype),
            kv_pool_tokens=cache.num_blocks * cache.block_size,
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            prefix_cache=cache.prefix_cache,
            max_model_len=max_model_len,
            available_bytes=self._free,
            load_s=time.perf_counter() - self._started,
        )
        if events is None:  # block hashes stay in the process, where there is one model: nothing to tell apart
            return Engine(runner, cache, scheduler, clock=_milliseconds), summary
        root = cache_identity(files, tokenizer, backend, options).root()
        return Engine(runner, cache, scheduler, publish_events=events.publish, root=root, clock=_milliseconds), summary


def make_backend(options: EngineOptions) -> Backend:
    """The backend that was asked for; never another in its place."""
    if options.backend == "reference":
        return ReferenceBackend()
    if options.backend != "cpu":
        raise InvalidRequestError("backend", "cpu or reference", options.backend)
    threads = physical_cores() if options.threads is None else options.threads
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 256:
        raise InvalidRequestError("threads", "an integer from 1 to 256", threads)
    sets = ("auto", *available_instruction_sets())
    if options.instruction_set not in sets:
        raise InvalidRequestError("instruction_set", " or ".join(sets), options.instruction_set)
    return CpuBackend(num_threads=threads, instruction_set=options.instruction_set)


def _milliseconds() -> int:
    return time.monotonic_ns() // 1_000_000


def cache_identity(files: ModelFiles, tokenizer: Tokenizer, backend: Backend, options: EngineOptions) -> CacheIdentity:
    """What K and V of a model run this way depend on, beside tokens and tenant. Cost: reads all weights once.

    Weights count as they are computed with, so a model quantised at load is another one; so is another backend.
    """
    attention = {name: value for name, value in to_builtins(files.config).items() if name not in _NO_PART_OF_KV}
    return CacheIdentity(
        weights=weights_digest(files.path) + options.weight_dtype.encode(),
        tokenizer=tokenizer.digest,
        attention=hashlib.sha256(json.dumps(attention, sort_keys=True).encode()).digest(),
        kv_dtype=options.kv_dtype,
        block_size=options.block_size,
        instruction_set=f"{backend.name} {backend.instruction_set}",
    )


def _check_kinds(options: EngineOptions) -> None:
    """Refuse what would only fail, or be taken for something else, once the weights are loaded."""
    for name in ("kv_cache", "debug"):
        if not isinstance(getattr(options, name), bool):
            raise InvalidRequestError(name, "true or false", getattr(options, name))
    granted = options.kv_memory_bytes
    if granted is not None and (isinstance(granted, bool) or not isinstance(granted, int) or granted < 1):
        raise InvalidRequestError("kv_memory", "a positive number of bytes", granted)


def _open_events(options: EngineOptions) -> EventPublisher | None:
    """The publisher that was asked for, before anything slow is done."""
    if options.kv_events is None:
        return None
    if options.prefix_cache == "none" or not options.kv_cache:
        raise InvalidRequestError("kv_events", "a prefix cache, whose events they are", "none")
    return open_publisher(event_options(options.kv_events))


def _plan_pool(model: Model, options: EngineOptions, free_bytes: int) -> tuple[CacheConfig, int]:
    """How many blocks the pool has, and the longest sequence it serves."""
    if isinstance(options.max_num_seqs, bool) or not isinstance(options.max_num_seqs, int) or options.max_num_seqs < 1:
        raise InvalidRequestError("max_num_seqs", "an integer of at least 1", options.max_num_seqs)
    longest = model.config.max_position
    one = CacheConfig(
        num_blocks=1,
        block_size=options.block_size,
        kv_dtype=options.kv_dtype,
        prefix_cache=options.prefix_cache if options.kv_cache else "none",
        reuse_generated=options.reuse_generated,
        retention=options.retention,
        debug=options.debug,
    )
    bytes_each = block_bytes(model.config, one)
    budget = options.kv_memory_bytes
    if budget is None:
        # One block a sequence beyond its length: a copied block may stand beside the one it came from.
        useful = (one.blocks_for(longest) + 1) * options.max_num_seqs * bytes_each
        budget = min(int(free_bytes * DEFAULT_KV_SHARE), useful)
    num_blocks = budget // bytes_each
    needed = one.blocks_for(longest)
    if num_blocks < needed and options.max_model_len is not None:
        raise CapacityError(
            f"kv_memory: {longest} tokens need {needed * bytes_each:,} bytes of K and V, {budget:,} were granted"
        )
    if num_blocks < 2:
        raise CapacityError(f"kv_memory: at least {2 * bytes_each:,} bytes are needed, {budget:,} were granted")
    return replace(one, num_blocks=num_blocks), min(longest, num_blocks * one.block_size)
