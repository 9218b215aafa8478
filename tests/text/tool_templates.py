"""Chat templates that know of tools, in the manner of families whose models call them, and conversations for them.

Only the standard library, for the script that renders them by `transformers` in an environment of its own.
"""

from typing import Any

from tests.text.golden_strings import Draw

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'Be of help.' }}
    {%- endif %}
    {{- '\\n\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\nAnswer with <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) or
           (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != 'tool') %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA = """{%- set ns = namespace(system='', told=false) %}
{%- if messages[0].role == 'system' %}
    {%- set ns.system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '<|start|>system\\n' }}
{%- if tools is not none %}
    {{- 'Tools: ipython\\n' }}
{%- endif %}
{{- ns.system + '<|end|>' }}
{%- for message in messages %}
    {%- if message.role == 'user' and tools and not ns.told %}
        {%- set ns.told = true %}
        {{- '<|start|>user\\nAnswer with {"name": function name, "parameters": dictionary}.\\n\\n' }}
        {%- for t in tools %}
            {{- t | tojson(indent=4) }}
            {{- '\\n\\n' }}
        {%- endfor %}
        {{- message.content | trim + '<|end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- for call in message.tool_calls %}
            {{- '<|start|>assistant\\n<|python_tag|>' + call.function.name + '.call(' }}
            {%- for name, value in call.function.arguments.items() %}
                {{- name + '=' + (value | string) }}
                {%- if not loop.last %}
                    {{- ', ' }}
                {%- endif %}
            {%- endfor %}
            {{- ')' }}
            {{- '{"name": "' ~ call.function.name ~ '", "parameters": ' ~ (call.function.arguments | tojson) }}
            {{- '}<|end|>' }}
        {%- endfor %}
    {%- elif message.role == 'tool' or message.role == 'ipython' %}
        {{- '<|start|>ipython\\n' }}
        {%- if message.content is mapping or (message.content is iterable and message.content is not string) %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '\\n' + message.content | trim + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}
"""

MISTRAL = """{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{{- '<s>' }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and message == users[-1] %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in tool.items() if key != 'return' %}
                    {%- if value is string %}
                        {{- '"' + key + '": "' + value + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + value | tojson }}
                    {%- endif %}
                    {{- ', ' if not loop.last }}
                {%- endfor %}
                {{- '}}' }}
                {{- ', ' if not loop.last else ']' }}
            {%- endfor %}
            {{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls | length > 0 %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] }}
            {%- if call.id is not defined or call.id | length != 9 %}
                {{- raise_exception('ids of nine letters') }}
            {%- endif %}
            {{- ', "id": "' + call.id + '"}' }}
            {{- ', ' if not loop.last else ']</s>' }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content | trim + '</s>' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}' }}
    {%- endif %}
{%- endfor %}
"""

TEMPLATES = {"qwen": QWEN, "llama": LLAMA, "mistral": MISTRAL}
NUM_CONVERSATIONS = 60
_TEXTS = ("Hi.", " a\n b ", "naïve <b> & 'c'", 'say "x" \\ y', "日本 😀", "1 < 2 > 0", "tab\there")


def _value(draw: Draw, depth: int = 0) -> Any:
    kind = draw.below(9 if depth < 2 else 6)
    if kind == 6:
        return [_value(draw, depth + 1) for _ in range(draw.below(3))]
    if kind > 6:
        return {draw.choose(("z", "a", "é", 'q"')): _value(draw, depth + 1) for _ in range(draw.below(3))}
    return (None, draw.below(2) == 0, draw.below(2000) - 1000, 2.5, 1e-7, draw.choose(_TEXTS))[kind]


def _tool(draw: Draw, index: int) -> dict[str, Any]:
    described = {"description": draw.choose(_TEXTS)} if draw.below(3) else {}
    properties = {name: {"type": "string", "enum": [_value(draw)]} for name in ("zebra", "ant", "écu")[: draw.below(4)]}
    parameters = {"type": "object", "properties": properties, "required": sorted(properties)[:1]}
    return {"type": "function", "function": {"name": f"tool_{index}", **described, "parameters": parameters}}


def golden_tool_conversations() -> list[tuple[list[dict[str, Any]], list[dict[str, Any]], bool]]:
    """Messages, tools (some have none), and whether an answer is asked for; the same on every machine."""
    draw, found = Draw(11), []
    for number in range(NUM_CONVERSATIONS):
        tools = [_tool(draw, index) for index in range(draw.below(4))]
        messages: list[dict[str, Any]] = []
        if draw.below(2):
            messages.append({"role": "system", "content": draw.choose(_TEXTS)})
        for turn in range(1 + draw.below(3)):
            messages.append({"role": "user", "content": draw.choose(_TEXTS)})
            if tools and draw.below(3):
                ids = [f"call{number:03d}{turn}{i}" for i in range(1 + draw.below(2))]
                calls: list[dict[str, Any]] = [
                    {
                        "id": call_id,
                        "type": "function",
                        "function": {
                            "name": draw.choose(tools)["function"]["name"],
                            "arguments": {key: _value(draw) for key in ("b", "a", "ü")[: draw.below(4)]},
                        },
                    }
                    for call_id in ids
                ]
                messages.append({"role": "assistant", "content": draw.choose(("", *_TEXTS)), "tool_calls": calls})
                names = [call["function"]["name"] for call in calls]
                messages += [
                    {"role": "tool", "name": name, "tool_call_id": call_id, "content": draw.choose(_TEXTS)}
                    for call_id, name in zip(ids, names, strict=True)
                ]
            messages.append({"role": "assistant", "content": draw.choose(_TEXTS)})
        is_asked = draw.below(2) == 0
        found.append((messages[:-1] if is_asked else messages, tools, is_asked))
    return found
