"""Makes `tests/golden/text/tools.json`: conversations with tools, rendered by `transformers`, as digests.

Needs `transformers` (the `golden` extra). Run from the repository's root: python scripts/make_golden_tools.py
"""

import hashlib
import json
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.text.golden_strings import GOLDEN, text_digest
from tests.text.tool_templates import TEMPLATES, golden_tool_conversations


def main() -> None:
    """Write the file."""
    conversations = golden_tool_conversations()
    document: dict[str, object] = {"conversations": text_digest(conversations), "templates": text_digest(TEMPLATES)}
    for name, template in TEMPLATES.items():
        digests = []
        for messages, tools, is_asked in conversations:
            (text,), _ = render_jinja_template(
                [messages], tools=tools or None, chat_template=template, add_generation_prompt=is_asked
            )
            digests.append(hashlib.blake2b(text.encode(), digest_size=8).hexdigest())
        document[name] = digests
    (GOLDEN / "tools.json").write_text(json.dumps(document, indent=0) + "\n")


if __name__ == "__main__":
    main()
