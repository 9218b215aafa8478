#!/usr/bin/env python3
"""Makes docs/reference/*.md from the code: commands from their signatures, settings from their records.

    python scripts/make_reference.py           # write
    python scripts/make_reference.py --check   # exit 1, naming the pages that are not fresh

Nothing here depends on the terminal or on how Typer formats help, so the pages are the same on every machine.
"""

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields
from typer.models import ArgumentInfo, OptionInfo

from foreword.cli.main import make_app
from foreword.cli.options import ModelOptions, SamplingOptions
from foreword.core.config import CacheConfig, SchedulerConfig
from foreword.core.sampling_params import SamplingParams
from foreword.core.structured_output import StructuredOutput
from foreword.events import EventOptions
from foreword.llm import EngineOptions

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
MARK = "<!-- Made by scripts/make_reference.py from the code. Do not edit. -->\n"

SHARED = {"options of the model": ModelOptions, "options of sampling": SamplingOptions}

_ABOUT = """\
`foreword COMMAND --help` shows the same. Exit codes: 0 done, 1 `doctor` found something to fix, a claim of
`demo` does not hold or `lint --min-hit-rate` is not reached, 2 refused with one line on stderr, 130 stopped by Ctrl-C,
141 whoever read the output has gone.
"""

MEANINGS: dict[type, dict[str, str]] = {
    EngineOptions: {
        "threads": "Threads of a kernel; `None`: one a physical core this process may use.",
        "backend": "Which kernels run. `reference` is NumPy: slow, and the oracle.",
        "instruction_set": "`auto`: the best here; or `avx2`, `neon`, `scalar`. Part of the cache identity.",
        "weight_dtype": "Weights in memory; `auto` keeps the file's where it packs exactly.",
        "kv_cache": "`False`: the naive loop, every step computes every known token again.",
        "kv_dtype": "How K and V are stored, rounded once, when written; `int16`, `int8`: codes with scales.",
        "kv_memory_bytes": "Bytes of the KV pool; `None`: a quarter of what is free, and no more than is of use.",
        "block_size": "Tokens of a block: 8, 16, 32, 64 or 128.",
        "max_model_len": "Most known tokens of a sequence; `None`: the model's, or what the pool holds.",
        "max_num_seqs": "Most sequences that run at once.",
        "token_budget": "Most tokens a step computes, over all sequences.",
        "prefix_cache": "How prefixes are found again; `none` switches reuse off.",
        "reuse_generated": "`tenant`: later prompts of the namespace may hit generated tokens; `off`: prompts only.",
        "retention": "Which cached prefix goes first: segmented LRU, LRU, LFU or cost of computing it again.",
        "speculation": "`prompt_lookup`: what a sequence said before is computed on the guess that it comes again.",
        "debug": "Fill fresh blocks with NaN and check every invariant after each step.",
        "kv_events": "Where to publish KV events, [how](../kv_events.md); `None`: nowhere.",
    },
    EventOptions: {
        "endpoint": "Of the stream: `tcp://HOST:PORT` or `ipc://PATH`; port 0 takes a free one.",
        "replay_endpoint": "Where missed batches are asked for; `None`: the next port, or the path with `-replay`.",
        "topic": "First frame of every message, such as `kv@POD@MODEL`.",
        "form": "`map`: as vLLM 0.33; `array`: for older consumers.",
        "int_hashes": "Hashes as their low 64 bits, an integer; else 32 bytes.",
        "allow_remote": "Allow an address that other machines can reach.",
        "open_namespace": "The namespace whose blocks carry no mark in `extra_keys`.",
    },
    CacheConfig: {
        "num_blocks": "Blocks of the pool.",
        "block_size": "Tokens of a block: 8, 16, 32, 64 or 128.",
        "kv_dtype": "How K and V are stored; `int16`, `int8`: as codes, with a scale a token and head.",
        "prefix_cache": "`radix`: exact to the token; `hash`: whole blocks; `none`: nothing is found.",
        "reuse_generated": "`tenant`: later prompts of the namespace may hit generated tokens; `off`: prompts only.",
        "retention": "Which cached prefix goes first: segmented LRU, LRU, LFU or cost of computing it again.",
        "hint_share": "Most of the pool that priorities and lifetimes may keep.",
        "pin_share": "Most of the pool that pins may hold.",
        "tenant_share": "Most of the pool that one tenant's findable blocks may take.",
        "debug": "Fill fresh blocks with NaN and check every invariant after each step.",
    },
    SchedulerConfig: {
        "max_num_seqs": "Most sequences that run at once.",
        "token_budget": "Most tokens a step computes, over all sequences.",
        "max_model_len": "Most known tokens of a sequence, prompt and output together.",
        "watermark": "Share of the pool that stays available when a new request is admitted beside others.",
        "max_waiting": "Most sequences that wait; more are refused.",
        "admission_order": "`longest_hit`: longest stored prefix first within a tenant, with ageing; or `arrival`.",
        "recompute_all": "The naive loop: every step computes every known token again.",
        "speculation": "`prompt_lookup`: what a sequence said before is computed on the guess that it comes again.",
    },
    SamplingParams: {
        "n": "Answers to one prompt, 1 to 16; they share its blocks.",
        "temperature": "0 to 100; below 0.0001 the likeliest token always wins.",
        "top_k": "Keep the k likeliest tokens; 0 and -1: all.",
        "top_p": "Keep the shortest run of likeliest tokens that reaches this probability; above 0, at most 1.",
        "min_p": "Keep tokens at least this likely, relative to the likeliest; 0 to 1.",
        "repetition_penalty": "Divide or multiply logits of tokens in prompt or output (CTRL's rule); above 0.",
        "presence_penalty": "Subtract from logits of tokens in the output, once; -2 to 2.",
        "frequency_penalty": "Subtract from logits of tokens in the output, once each time; -2 to 2.",
        "logit_bias": "Token id to a number added to its logit, -100 to 100; at most 1,024 entries.",
        "seed": "Same seed, same answer, in any company; `None`: drawn when the request is added.",
        "max_tokens": "Most tokens to generate; `None`: until the context is full.",
        "min_tokens": "No end before this many tokens.",
        "stop": "Text, or up to 16 texts, that end the answer.",
        "stop_token_ids": "Tokens that end the answer, up to 128.",
        "include_stop_str_in_output": "Keep the stop text in the answer.",
        "ignore_eos": "Go on after the model's end token.",
        "logprobs": "Logprobs of the drawn token and of this many likeliest, 0 to 20; `None`: none.",
        "prompt_logprobs": "The same for each prompt token.",
        "skip_special_tokens": "Leave special tokens out of the text.",
        "structured_output": "The form the answer must have. It comes before `min_tokens` and `ignore_eos`.",
    },
    StructuredOutput: {
        "json_object": "Any JSON object.",
        "json_schema": "A JSON Schema, as text or as a mapping, up to 64 KiB and 64 deep.",
        "regex": "A pattern the whole answer matches, up to 64 KiB.",
        "grammar": "A grammar in llguidance's dialect of Lark, up to 64 KiB.",
        "choice": "The answer is one of these, at most 1024 of them, up to 64 KiB.",
        "origin": "What the field is called in errors, where it came from another's request.",
        "parts": "Of a grammar made of several wishes these, so that an error names the one to blame.",
    },
}


def cli_page() -> str:
    """One section a command: what it does, its arguments, its options; options that commands share stand once."""
    parts = [MARK, "# Commands\n", _ABOUT]
    for title, group in SHARED.items():
        parts += [
            f"## {title}\n",
            f"{inspect.getdoc(group)} Meanings: [settings](config.md).\n",
            _option_table(_rows_of_group(group)),
        ]
    for command in make_app().registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        parts += [f"## foreword {name}\n", f"{inspect.getdoc(command.callback)}\n", *_tables(command.callback)]
    return "\n".join(parts)


def config_page() -> str:
    """One table a record of settings."""
    parts = [MARK, "# Settings\n"]
    parts.append("`LLM(model, **options)` takes every field of `EngineOptions`. All values are checked when given.\n")
    for settings, meanings in MEANINGS.items():
        parts += [f"## {settings.__name__}\n", f"{(settings.__doc__ or '').splitlines()[0]}\n"]
        hints = typing.get_type_hints(settings)
        rows = []
        if {field.name for field in fields(settings)} != meanings.keys():
            raise SystemExit(f"MEANINGS of {settings.__name__} and its fields differ: scripts/make_reference.py")
        for field in fields(settings):
            rows.append(f"| `{field.name}` | {_type(hints[field.name])} | {_default(field)} | {meanings[field.name]} |")
        parts.append("\n".join(["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]))
    return "\n".join(parts)


def _tables(command: Callable[..., Any]) -> Iterator[str]:
    arguments, options = [], []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        _, info = typing.get_args(parameter.annotation)[:2]
        if isinstance(info, ArgumentInfo):
            arguments.append(f"| `{parameter.name.upper()}` | {_cell(info.help or '')} |")
        elif isinstance(info, OptionInfo) and not info.hidden:
            options.append(_row(parameter.name, parameter.annotation, parameter.default))
    if arguments:
        yield "\n".join(["| argument | |", "| --- | --- |", *arguments, ""])
    for title, group in SHARED.items():
        shared = _rows_of_group(group)
        if any(row in options for row in shared):
            link = f"[{title}](#{title.lower().replace(' ', '-')})"
            yield f"Takes the {link}{'' if set(shared) <= set(options) else ', where not said otherwise here'}.\n"
            options = [row for row in options if row not in shared]
    if options:
        yield _option_table(options)


def _option_table(rows: list[str]) -> str:
    return "\n".join(["| option | value | default | |", "| --- | --- | --- | --- |", *rows, ""])


def _rows_of_group(group: type) -> list[str]:
    hints = typing.get_type_hints(group, include_extras=True)
    return [_row(field.name, hints[field.name], field.default) for field in fields(group)]


def _row(name: str, annotation: Any, default: object) -> str:
    kind, info = typing.get_args(annotation)[:2]
    text = _cell(info.help or "")
    if info.envvar:
        text = f"{text} Environment: `{info.envvar}`."
    return f"| {_names(name, kind, info)} | {_choices(kind)} | {_shown(default)} | {text} |"


def _names(name: str, kind: Any, info: OptionInfo) -> str:
    dashed = name.replace("_", "-")
    declared = list(info.param_decls or ())
    if isinstance(info.default, str) and info.default.startswith("-"):
        declared.insert(0, info.default)  # in an annotation Typer takes the first name for the default
    if not declared:
        declared = [f"--{dashed}/--no-{dashed}"] if kind is bool else [f"--{dashed}"]
    return ", ".join(f"`{part}`" for part in declared)


def _shown(default: object) -> str:
    if default is None or isinstance(default, bool):
        return "on" if default else ""
    return f"`{default.value if isinstance(default, Enum) else default}`"


def _choices(kind: Any) -> str:
    members = [part for part in (typing.get_args(kind) or (kind,)) if part is not type(None)]
    inner = [found for part in members for found in (typing.get_args(part) or (part,))]
    if inner == [bool]:
        return ""
    if isinstance(inner[0], type) and issubclass(inner[0], Enum):
        return " ".join(f"`{member.value}`" for member in inner[0])
    names: dict[Any, str] = {int: "number", float: "number", str: "text", Path: "path"}
    return names[inner[0]]


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " ".join(f"`{value}`" for value in typing.get_args(hint))
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(_type(part) for part in typing.get_args(hint))
    if hint is type(None):
        return "`None`"
    if isinstance(hint, type) and not typing.get_args(hint):
        return f"`{hint.__name__}`"
    return f"`{str(hint).replace('collections.abc.', '')}`"


def _default(field: FieldInfo) -> str:
    if field.default_factory is not NODEFAULT:
        return f"`{field.default_factory()!r}`"
    return "required" if field.default is NODEFAULT else f"`{field.default!r}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    """Write the pages, or only compare them."""
    pages = {"cli.md": cli_page(), "config.md": config_page()}
    if sys.argv[1:] == ["--check"]:
        stale = [name for name, text in pages.items() if _read(FOLDER / name) != text]
        for name in stale:
            print(f"docs/reference/{name} is not fresh: run scripts/make_reference.py", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
