"""What `prompt_cache_…` asks for: where breakpoints lie among the tokens, how long what they cover should stay."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from foreword.server.cache_policy.emulation import Emulation
from foreword.server.cache_policy.openai_rules import Point, decide, decide_by_interval
from foreword.server.cache_policy.outcome import EmulatedPlan
from foreword.server.cache_policy.points import CachePoint, PointMap, lease
from foreword.server.context import Asker
from foreword.server.openai.messages import plain_messages
from foreword.server.openai.schema import CacheBreakpoint, CacheOptions, ChatMessage, ChatRequest, TextPart
from foreword.server.prompts import Prompt
from foreword.server.service import Service

MAX_WRITES = 4
"""Breakpoints of a request that are kept; the implicit one is one of them."""
DEFAULT_TTL = "30m"


def with_cache(service: Service, body: ChatRequest, asker: Asker, prompt: Prompt) -> Prompt:
    """The prompt with what its fields ask for. For `off_loop`. Cost: a rendering a breakpoint.

    Whatever matches is read and whatever is computed is stored, asked for or not. A breakpoint, or a lifetime for the
    whole prompt, keeps it: a lease each, from each use.
    """
    options = body.prompt_cache_options or CacheOptions()
    whole = [] if options.mode == "explicit" else [options.ttl or body.prompt_cache_retention]
    leases = [lease(len(prompt.token_ids), ttl) for ttl in whole if ttl is not None]
    points = cache_points(service, body, asker)
    places = PointMap(points, prompt.token_ids)
    marked = [(index, point.ttl) for index, point in enumerate(points) if point.ttl is not None]
    for index, ttl in marked[-(MAX_WRITES - len(whole)) :]:
        position = places.position(index)
        leases += [lease(position, ttl)] if position else []
    prompt = replace(prompt, leases=tuple(leases))
    emulation = service.emulation
    if emulation is None or emulation.provider != "openai":
        return prompt
    if emulation.counts_intervals(body.model):
        return replace(prompt, plan=_by_interval(emulation, body.model, asker, prompt, body.prompt_cache_retention))
    return replace(prompt, plan=_by_breakpoint(emulation, body, asker, prompt, places))


def completion_with_cache(service: Service, model: str, asker: Asker, prompt: Prompt) -> Prompt:
    """A prompt that is no conversation: its end is the only breakpoint. For `off_loop`."""
    emulation = service.emulation
    if emulation is None or emulation.provider != "openai":
        return prompt
    if emulation.counts_intervals(model):
        return replace(prompt, plan=_by_interval(emulation, model, asker, prompt, None))
    message = ChatMessage("user", "")
    places = PointMap([CachePoint(lambda: prompt.token_ids, message.role, None, True)], prompt.token_ids)
    body = ChatRequest(model=model, messages=[message])
    return replace(prompt, plan=_by_breakpoint(emulation, body, asker, prompt, places))


def _by_breakpoint(
    emulation: Emulation, body: ChatRequest, asker: Asker, prompt: Prompt, places: PointMap
) -> EmulatedPlan:
    options, ledger = body.prompt_cache_options or CacheOptions(), emulation.ledger
    now = ledger.clock()
    outcome = decide(
        [Point(point.kind, point.ttl, point.is_message_end) for point in places.points],
        places.position,
        emulation.digests(body.model, asker.namespace, prompt.token_ids, body.prompt_cache_key),
        ledger,
        is_explicit=options.mode == "explicit",
        ttl=options.ttl or DEFAULT_TTL,
        minimum=emulation.minimum(body.model),
        now=now,
    )
    return EmulatedPlan(outcome, ledger, now)


def _by_interval(emulation: Emulation, model: str, asker: Asker, prompt: Prompt, retention: str | None) -> EmulatedPlan:
    ledger, digests = emulation.ledger, emulation.digests(model, asker.namespace, prompt.token_ids)
    now, minimum, total = ledger.clock(), emulation.minimum(model), len(prompt.token_ids)
    outcome = decide_by_interval(total, digests, ledger, retention=retention or "24h", minimum=minimum, now=now)
    return EmulatedPlan(outcome, ledger, now)


def cache_points(service: Service, body: ChatRequest, asker: Asker) -> list[CachePoint]:
    """The end of every message, and every explicit breakpoint, in the order of the prompt."""
    options = body.prompt_cache_options or CacheOptions()
    points = []
    for number, message in enumerate(body.messages):
        marks = _marks(message)
        for part, mark in marks.items():
            ttl = mark.ttl or options.ttl or DEFAULT_TTL
            is_end = part == _num_parts(message) - 1
            points.append(CachePoint(_beginning(service, body, asker, number, part), message.role, ttl, is_end))
        if _num_parts(message) - 1 not in marks:
            points.append(CachePoint(_beginning(service, body, asker, number, None), message.role, None, True))
    return points


def _marks(message: ChatMessage) -> dict[int, CacheBreakpoint]:
    """Index of a part -> the breakpoint at its end."""
    if message.content is None or isinstance(message.content, str):
        return {}
    texts = [(index, part) for index, part in enumerate(message.content) if isinstance(part, TextPart)]
    return {index: part.prompt_cache_breakpoint for index, part in texts if part.prompt_cache_breakpoint is not None}


def _num_parts(message: ChatMessage) -> int:
    return 1 if message.content is None or isinstance(message.content, str) else len(message.content)


def _beginning(
    service: Service, body: ChatRequest, asker: Asker, number: int, part: int | None
) -> Callable[[], Sequence[int]]:
    def encode() -> Sequence[int]:
        messages = list(body.messages[: number + 1])
        if part is not None:
            content = messages[-1].content
            assert isinstance(content, list)
            messages[-1] = msgspec.structs.replace(messages[-1], content=content[: part + 1])
        plain, kwargs, tools = plain_messages(messages), body.chat_template_kwargs, body.tool_use().as_json()
        return service.prompts.encode_chat(
            plain, asker.namespace, tools=tools, add_generation_prompt=False, kwargs=kwargs
        ).token_ids

    return encode
