"""What `cache_control` asks for: where its breakpoints lie among the tokens, how long what they cover should stay."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from foreword.server.anthropic.cache_control import SYSTEM, TOOLS, Slot
from foreword.server.anthropic.schema import Conversation, InputMessage
from foreword.server.anthropic.tools import tools_of
from foreword.server.cache_policy.anthropic_rules import Block, decide
from foreword.server.cache_policy.emulation import Emulation
from foreword.server.cache_policy.outcome import EmulatedPlan
from foreword.server.cache_policy.plan import EnginePlan
from foreword.server.cache_policy.points import CachePoint, PointMap, lease
from foreword.server.context import Asker
from foreword.server.prompts import Prompt
from foreword.server.service import Service

_CLOSING = InputMessage("user", "-")
"""Stands behind a beginning while it is read, so that an assistant's turn at its end is no beginning of an answer."""


def with_cache(service: Service, body: Conversation, asker: Asker, prompt: Prompt) -> Prompt:
    """The prompt with what its breakpoints ask for. For `off_loop`. Cost: a rendering a breakpoint.

    Whatever matches is read and whatever is computed is stored, marked or not. Marks keep it: a lease each, for the
    lifetime it names, from each use.
    """
    points = cache_points(service, body, asker)
    places = PointMap(points, prompt.token_ids)
    marked = [(places.position(index), point.ttl) for index, point in enumerate(points) if point.ttl is not None]
    leases = tuple(lease(position, ttl) for position, ttl in marked if position)
    if service.emulation is not None and service.emulation.provider == "anthropic":
        plan = _emulated(service.emulation, body, asker, prompt, places)
        return replace(prompt, leases=leases, plan=plan)
    one_hour_end = max((position for position, ttl in marked if ttl == "1h"), default=0)
    return replace(prompt, leases=leases, plan=EnginePlan(one_hour_end))


def _emulated(emulation: Emulation, body: Conversation, asker: Asker, prompt: Prompt, places: PointMap) -> EmulatedPlan:
    ledger = emulation.ledger
    now = ledger.clock()
    blocks = [Block(point.kind, point.ttl) for point in places.points]
    digests = emulation.digests(body.model, asker.namespace, prompt.token_ids)
    outcome = decide(blocks, places.position, digests, ledger, emulation.minimum(body.model), now)
    return EmulatedPlan(outcome, ledger, now)


def cache_points(service: Service, body: Conversation, asker: Asker) -> list[CachePoint]:
    """The end of every block that may carry a breakpoint, in the order of the prompt."""

    def beginning(slot: Slot) -> Callable[[], list[int]]:
        def encode() -> list[int]:
            cut = _cut(body, slot)
            messages, tools = cut.template_messages(), [tool.as_json() for tool in tools_of(cut.tools)]
            begun = messages[:-1] or messages  # a template wants a message even where only tools are asked after
            return service.prompts.encode_chat(
                begun, asker.namespace, tools=tools, add_generation_prompt=False
            ).token_ids

        return encode

    return [CachePoint(beginning(slot), slot.kind, slot.ttl) for slot in body.slots() if slot.is_eligible]


def _cut(body: Conversation, slot: Slot) -> Conversation:
    """The conversation up to the end of a block, and one message more.

    Of a tool, with the whole system text: a template may write it first.
    """
    if slot.message == TOOLS:
        return msgspec.structs.replace(body, tools=(body.tools or [])[: slot.block + 1], messages=[_CLOSING])
    system, messages = body.system, list(body.messages[: slot.message + 1])
    if slot.message == SYSTEM:
        messages = []
        system = system if system is None or isinstance(system, str) else system[: slot.block + 1]
    elif not isinstance(messages[-1].content, str):
        content = messages[-1].content[: slot.block + 1]
        messages[-1] = msgspec.structs.replace(messages[-1], content=content)
    return msgspec.structs.replace(body, system=system, messages=[*messages, _CLOSING])
