"""`diagnostics` of `/v1/messages`: what changed since the request of an earlier answer."""

from foreword.server.anthropic.schema import MessagesRequest
from foreword.server.anthropic.tools import tools_of
from foreword.server.cache_policy.diagnostics import RequestMemory, divergence, fingerprint
from foreword.server.context import Asker
from foreword.server.prompts import Prompt


def diagnose(
    memory: RequestMemory, body: MessagesRequest, asker: Asker, prompt: Prompt, answer_id: str
) -> dict[str, object] | None:
    """The answer's `diagnostics`, for a request that asks for it; it is remembered for the next. For `off_loop`.

    None says that there is nothing to compare with, or that nothing diverges.
    """
    assert body.diagnostics is not None
    system = [block.text for block in body.system] if isinstance(body.system, list) else [body.system or ""]
    parts = {
        "model_changed": body.model,
        "tools_changed": [tool.as_json() for tool in tools_of(body.tools)],
        "system_changed": "\n".join(system),
        "unavailable": [body.tool_choice, body.thinking, body.output_config],
    }
    now = fingerprint(asker.namespace, parts, prompt.token_ids)
    memory.remember(answer_id, now)
    previous = body.diagnostics.previous_message_id
    if previous is None:
        return None
    before = memory.find(previous, asker.namespace)
    if before is None:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    found = divergence(before, now)
    if found is None:
        return None
    reason: dict[str, object] = {"type": found.part or "messages_changed"}
    if found.part != "unavailable":
        reason["cache_missed_input_tokens"] = found.num_lost
    return {"cache_miss_reason": reason | {"token_position": found.position}}
