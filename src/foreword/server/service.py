"""What all routes share: the model, its engine, and the work that must not block the event loop."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from msgspec import Struct
from starlette.requests import Request

import foreword
from foreword.core.errors import InvalidRequestError, QueueFullError
from foreword.core.probe import Probe
from foreword.core.sampling_params import SamplingParams
from foreword.core.sequence import Lease
from foreword.core.token_constraint import TokenConstraint
from foreword.engine.async_engine import AsyncEngine
from foreword.engine.engine_request import EngineRequest
from foreword.llm.loading import LoadedModel
from foreword.llm.outputs import RequestOutput
from foreword.server.admission import Admission, Ticket
from foreword.server.body import BodyReader, is_long
from foreword.server.cache_policy.emulation import Emulation
from foreword.server.call_reading import CallReading
from foreword.server.constraining import Constraining
from foreword.server.context import Asker
from foreword.server.errors import ApiError, queue_full
from foreword.server.fingerprint import fingerprint
from foreword.server.generation import Generation, StepReceiver
from foreword.server.limits import MAX_PROMPT_LOGPROBS, Limits
from foreword.server.metrics import Metrics
from foreword.server.prompts import Prompt, PromptEncoder
from foreword.server.quotas import Permit, Quotas
from foreword.server.recording import TraceRecorder
from foreword.server.response_cache import Question
from foreword.server.reuse import Asked, ResponseReuse, Started, open_response_cache
from foreword.server.tenant_store import open_response_store
from foreword.server.tenants import KeyRing, Tenant
from foreword.server.watchdog import Watchdog

ResultT = TypeVar("ResultT")
NUM_TEXT_THREADS = 2


class _Plan(Struct, frozen=True):
    """What is started, once there is a place for it."""

    prompts: Sequence[Prompt]
    params: SamplingParams
    asker: Asker
    reads: Probe | bool  # not to be answered: a probe, or only what it stores, is wanted
    remember: bool
    constraint: TokenConstraint | None
    calls: CallReading | None


class Service:
    """One model, served. Construction starts nothing."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        names: Sequence[str],
        keys: KeyRing | None = None,
        limits: Limits | None = None,
        emulation: Emulation | None = None,
    ) -> None:
        self.loaded = loaded
        self.emulation = emulation
        self.names = tuple(names)
        self.keys = keys or KeyRing()
        self.limits = limits or Limits()
        self.created = int(time.time())
        self.fingerprint = fingerprint(loaded)
        self.engine = AsyncEngine(loaded.engine, queue_timeout_s=self.limits.queue_timeout_s)
        self._watchdog = Watchdog(self.engine, self.limits, os._exit)
        self.admission = Admission(self.limits, num_startable=lambda: self.engine.stats.num_startable)
        self.quotas = Quotas()
        self.bodies = BodyReader(self.limits, self.off_loop, self.share_of)
        self.metrics = Metrics(self.names[0])
        places, queue = lambda: self.admission.num_places, lambda: self.admission.num_requests
        self.metrics.watch_gauge("foreword:queue_places", "Requests that may wait, by the pace of late", places)
        self.metrics.watch_gauge("foreword:queue_requests", "Of these, requests that wait", queue)
        self.recorder: TraceRecorder | None = None  # of what the engine is asked
        self.metrics.watch(lambda: self.engine.stats, lambda: self.engine.step_failures)
        self.tokenizer = loaded.tokenizer
        self._eos = frozenset(loaded.tokenizer.eos_token_ids)
        self.prompts = PromptEncoder(loaded)
        self._pool = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="foreword-text")
        self.responses = open_response_cache(self.limits, self._identity, self.metrics)
        self._reuse = ResponseReuse(self.responses, self.off_loop)
        self.stored_responses = open_response_store(self.limits, self.metrics)
        self._constraining = Constraining(loaded.tokenizer)

    def _identity(self) -> bytes:
        return f"{foreword.__version__} {self.fingerprint} {self.tokenizer.digest.hex()}".encode()

    @property
    def max_model_len(self) -> int:
        """Most tokens of a prompt and its answer together."""
        return self.loaded.summary.max_model_len

    def is_healthy(self) -> bool:
        """True while the engine answers and no step hangs."""
        return self.engine.is_alive and not self.is_stuck

    @property
    def is_stuck(self) -> bool:
        """True while a step takes longer than one may."""
        return self._watchdog.is_stuck()

    def check_model(self, name: str) -> None:
        """Refuse a model that isn't served.

        Raises:
            ApiError: 404.
        """
        if name not in self.names:
            message = f"the model does not exist here; this server has {', '.join(self.names)}"
            raise ApiError(404, message, "model", "model_not_found")

    def permit(self, tenant: Tenant) -> Permit | None:
        """Leave for one more request; counts refusals.

        Raises:
            ApiError: 429, the tenant has reached a limit.
        """
        try:
            return self.quotas.enter(tenant.domain, tenant.limits)
        except ApiError:
            self.metrics.refused("rate_limit")
            raise

    def may_refuse(self) -> bool:
        """False where `refusal` would refuse nobody."""
        return self.admission.num_requests > 0 or self.keys.has_limits

    def refusal(self, tenant: Tenant) -> ApiError | None:
        """Why one more request would get no permit or no place, where it would not; takes neither, counts refusals."""
        try:
            self.quotas.check(tenant.domain, tenant.limits)
        except ApiError as error:
            self.metrics.refused("rate_limit")
            return error
        wait_s = self.admission.wait_s(self.share_of(tenant))
        if wait_s is None:
            return None
        self.metrics.refused("queue_full")
        return queue_full(wait_s)

    def share_of(self, tenant: Tenant | None) -> bytes:
        """Who has a share of what is bounded; empty without keys, where all are one."""
        return b"" if tenant is None or self.keys.is_open else tenant.domain

    async def start(self) -> None:
        """Start the engine's thread."""
        self.engine.start()
        self._watchdog.start()
        await self._share_pool(self.keys)

    async def use_keys(self, keys: KeyRing) -> None:
        """Let other keys and limits hold from now on; requests under way go on."""
        await self._share_pool(keys)
        self.keys = keys

    async def _share_pool(self, keys: KeyRing) -> None:
        tenants = [tenant for tenant in keys.tenants if tenant.limits.kv_share is not None]
        shares = {tenant.domain: tenant.limits.kv_share or 0.0 for tenant in tenants}
        await self.engine.run(lambda engine: engine.share_pool(shares))

    async def drain(self) -> None:
        """Take nothing more, and let running answers finish within the grace."""
        await self.engine.drain(self.limits.grace_s)

    async def close(self) -> None:
        """End everything."""
        self._watchdog.stop()
        await self.engine.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._constraining.close()

    async def off_loop(self, work: Callable[[], ResultT]) -> ResultT:
        """Run tokenising, rendering or other work on text in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def digest(self, request: Request, work: Callable[[], ResultT]) -> ResultT:
        """What `work` makes of a request's body once it was read; of a long one in a thread."""
        return await self.off_loop(work) if is_long(request) else work()

    def enter(self, tenant: Tenant | None = None) -> Ticket:
        """A place in the queue; counts refusals. With keys, a tenant takes no more places than stay free.

        Raises:
            QueueFullError: no place is left.
        """
        try:
            return self.admission.enter(self.share_of(tenant))
        except QueueFullError:
            self.metrics.refused("queue_full")
            raise

    async def queued(self, work: Callable[[], ResultT]) -> ResultT:
        """As `off_loop`, in a place of the queue.

        Raises:
            QueueFullError: no place is left.
        """
        ticket = self.enter()
        try:
            return await self.off_loop(work)
        finally:
            ticket.leave()

    async def generate(
        self,
        encode: Callable[[], Sequence[Prompt]],
        params: SamplingParams,
        asker: Asker,
        *,
        prefill_only: bool = False,
        probe: Probe | None = None,
        remember: bool = False,
        question: Question | None = None,
        calls: CallReading | None = None,
        is_quick: bool = False,
    ) -> Generation:
        """Take a place in the queue, let `encode` make the prompts off the loop, and start answering all or none.

        Where `is_quick`, there is no text in it and so little to do that a thread would take longer to be woken.

        With a `probe` prompts are read to their end, and the outputs have what it found.

        The place is left when the first token is there, or on failure. With a `question` the answer may come from the
        response cache, if there is one. `calls` says how to look for calls of tools.

        Raises:
            ApiError, ForewordError: a prompt can't be answered, or not now.
        """
        ticket = self.enter(asker.tenant)
        try:
            if is_quick:
                prompts = self._checked(encode(), params)
            else:
                prompts = await self.off_loop(lambda: self._checked(encode(), params))
            constraint = await self._constraining.compile(params.structured_output)
            plan = _Plan(prompts, params, asker, probe or prefill_only, remember, constraint, calls)
            asked = Asked(
                question=question,
                params=params,
                asker=asker,
                prompts=[prompt.token_ids for prompt in prompts],
                start=lambda: self._start(plan, ticket),
                on_replay=lambda output: self.prompts.remember_all(output, asker.namespace) if remember else None,
            )
            started, reuse = await self._reuse.begin(asked)
        except BaseException as error:
            ticket.leave()
            if isinstance(error, QueueFullError):
                self.metrics.refused("queue_full")
            raise
        plans = [prompt.plan for prompt in prompts]
        permit, note = asker.permit, None
        if self.recorder is not None:
            note = partial(self.recorder.note, asker.namespace, asker.started)
        return Generation(
            started.outputs,
            started.stream,
            ticket,
            self.metrics,
            asker.started,
            plans,
            prefilled=self.loaded.engine.prefilled,
            reuse=reuse,
            permit=permit,
            note=note,
        )

    def _start(self, plan: _Plan, ticket: Ticket) -> Started:
        num_tokens = sum(len(prompt.token_ids) for prompt in plan.prompts)
        ticket.charge(num_tokens)
        if plan.asker.permit is not None:
            try:
                plan.asker.permit.take("tokens", num_tokens)
            except ApiError:
                self.metrics.refused("rate_limit")
                raise
        outputs = [RequestOutput(self.engine.new_request_id(), p.text, p.token_ids, []) for p in plan.prompts]
        namespace = plan.asker.namespace
        receiver = StepReceiver(
            outputs,
            plan.params,
            self.tokenizer,
            self.loaded.engine,
            lambda output, index: self.prompts.remember(output, index, namespace) if plan.remember else None,
            plan.calls,
        )
        requests = [
            self._request(output, plan, prompt.leases) for output, prompt in zip(outputs, plan.prompts, strict=True)
        ]
        return Started(outputs, self.engine.submit(requests, receiver))

    def _request(self, output: RequestOutput, plan: _Plan, leases: tuple[Lease, ...]) -> EngineRequest:
        return EngineRequest(
            request_id=output.request_id,
            prompt_token_ids=output.prompt_token_ids,
            params=plan.params,
            eos_token_ids=self._eos,
            namespace=plan.asker.namespace,
            tenant=plan.asker.tenant.domain,
            prefill_only=bool(plan.reads),
            probe=plan.reads if isinstance(plan.reads, Probe) else None,
            constraint=plan.constraint,
            leases=leases,
        )

    def _checked(self, prompts: Sequence[Prompt], params: SamplingParams) -> Sequence[Prompt]:
        if params.prompt_logprobs is not None:
            asked = sum(len(prompt.token_ids) for prompt in prompts) * (1 + params.prompt_logprobs)
            if asked > MAX_PROMPT_LOGPROBS:
                raise InvalidRequestError("logprobs", f"at most {MAX_PROMPT_LOGPROBS} of all prompts together", asked)
        for prompt in prompts:
            self.loaded.engine.check_alone(prompt.token_ids, params)
        return prompts
