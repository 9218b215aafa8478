"""`prompt_cache_diagnostics` of `/v1/responses`: what kept a request from reading all of an earlier one's prompt."""

from foreword.server.cache_policy.diagnostics import RequestMemory, divergence, fingerprint
from foreword.server.context import Asker
from foreword.server.openai.responses_schema import ResponsesRequest
from foreword.server.openai.responses_tools import told_tools
from foreword.server.prompts import Prompt
from foreword.server.service import Service


def diagnose(
    service: Service, memory: RequestMemory, body: ResponsesRequest, asker: Asker, prompt: Prompt, answer_id: str
) -> dict[str, object] | None:
    """What is told of a request that names a response to be compared with; each is remembered. For `off_loop`.

    What only the provider's cache depends on (the model's name, the key, the form of the answer) is a reason where its
    rules are followed, and not where the engine's own cache is told of.
    """
    parts: dict[str, object] = {"tools_changed": told_tools(body.tools)}
    if service.emulation is not None and service.emulation.provider == "openai":
        text_format = None if body.text is None else body.text.format
        first: dict[str, object] = {"model_changed": body.model, "prompt_cache_key_changed": body.prompt_cache_key}
        parts = {**first, **parts, "text_format_changed": text_format}
    now = fingerprint(asker.namespace, parts, prompt.token_ids)
    memory.remember(answer_id, now)
    compared = None if body.prompt_cache_options is None else body.prompt_cache_options.comparison_response_id
    if compared is None:
        return None
    before = memory.find(compared, asker.namespace)
    if before is None:
        return {"type": "comparison_response_not_found"}
    found = divergence(before, now)
    if found is None:
        return {"type": "cache_hit"}
    return {
        "type": "cache_miss",
        "reason": found.part or "input_changed",
        "cache_missed_tokens": found.num_behind,
        "comparison_reusable_tokens": found.position,
    }
