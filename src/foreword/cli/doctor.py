"""`foreword doctor`: what is true on this machine, one line each: ok, warn (it runs, but …), fix (it does not)."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct
from msgspec.structs import asdict

from foreword.cli.asking import KeyOption, UrlOption, as_list, ask
from foreword.cli.console import err_console, human_bytes, one_line, out_console, write_json
from foreword.cli.options import JsonFlag, ModelOptions, grouped
from foreword.cli.session import find_model, kv_decision
from foreword.core.errors import ForewordError
from foreword.core.finding import Finding, Status
from foreword.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from foreword.llm import LLM

_STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fix": "bold red"}
_PROBE = (5, 11, 3)  # token ids every vocabulary has


class DoctorOptions(Struct, frozen=True, kw_only=True):
    """What is examined, and how the report is shown."""

    url: UrlOption = None
    key: KeyOption = None
    json: JsonFlag = False


@grouped
def doctor(*, shown: DoctorOptions, model: ModelOptions) -> None:
    """Check kernels, threads, memory, model and cache, or with --url a running server (an operator's key is needed).

    Exit code 1 when something needs fixing.
    """
    if shown.url is not None:
        _examine_server(shown.url, shown)
        return
    findings = []
    for finding in examine(model):
        findings.append(finding)
        if not shown.json:
            _print(finding)
    if shown.json:
        write_json({"ok": all(f.status != "fix" for f in findings), "checks": [asdict(f) for f in findings]})
    if any(finding.status == "fix" for finding in findings):
        raise typer.Exit(1)


def _examine_server(url: str, shown: DoctorOptions) -> None:
    report = ask(url, "/doctor", shown.key)
    findings = [_read_finding(url, entry) for entry in as_list(url, report.get("checks"))]
    if shown.json:
        write_json(report)
    else:
        for finding in findings:
            _print(finding)
    if any(finding.status == "fix" for finding in findings):
        raise typer.Exit(1)


def _read_finding(url: str, entry: Any) -> Finding:
    """A server's line, which need not be ours: made safe to print."""
    fields = [entry.get(name) if isinstance(entry, dict) else None for name in ("check", "status", "detail", "cure")]
    check, status, detail, cure = (one_line(field) if isinstance(field, str) else None for field in fields)
    if check is None or detail is None or status not in _STYLES:
        raise ForewordError(f"{url}: not a report of foreword's")
    return Finding(check, status, detail, cure)


def examine(model: ModelOptions) -> Iterator[Finding]:
    """Every finding, as it is made."""
    from foreword import __version__

    yield Finding("version", "ok", f"foreword {__version__}, Python {platform.python_version()}, {platform.machine()}")
    yield _kernels(model)
    yield _self_test(model)
    yield _threads(model)
    yield from _model(model)


def _kernels(model: ModelOptions) -> Finding:
    from foreword.llm.loading import make_backend
    from foreword.ops.cpu import available_instruction_sets

    available = available_instruction_sets()
    try:
        backend = make_backend(model.engine_options())
    except (ForewordError, ValueError) as error:
        return Finding("kernels", "fix", one_line(str(error)), f"choose among auto, {', '.join(available)}")
    detail = f"{backend.name} {backend.instruction_set}; here: {', '.join(available)}"
    if backend.name == "reference":
        return Finding("kernels", "warn", detail, "--backend cpu is much faster")
    if backend.instruction_set == "scalar":
        cure = "use --instruction-set auto" if len(available) > 1 else "a machine with AVX2 is several times faster"
        return Finding("kernels", "warn", detail, cure)
    return Finding("kernels", "ok", detail)


def _self_test(model: ModelOptions) -> Finding:
    """Three rows through a matrix product of each packed kind, on the backend in use and on the reference."""
    from foreword.cli.self_test import TOLERANCE, largest_difference
    from foreword.llm.loading import make_backend

    try:
        difference = largest_difference(make_backend(model.engine_options()))
    except (ForewordError, ValueError) as error:
        return Finding("self-test", "fix", one_line(str(error)), "see the line above")
    detail = f"products of f32, 8-bit and 4-bit weights differ from the reference by at most {difference:.1e}"
    if difference <= TOLERANCE:
        return Finding("self-test", "ok", detail)
    return Finding("self-test", "fix", detail, "try --instruction-set scalar, and report this machine's processor")


def _threads(model: ModelOptions) -> Finding:
    from foreword.llm.machine import physical_cores

    cores = physical_cores()
    threads = cores if model.threads is None else model.threads
    detail = f"{threads} of {cores} physical cores granted to this process"
    if threads > cores:
        return Finding("threads", "warn", detail, f"--threads {cores} is as fast or faster")
    if threads < cores:
        return Finding("threads", "warn", detail, f"--threads {cores} uses them all")
    return Finding("threads", "ok", detail)


def _model(model: ModelOptions) -> Iterator[Finding]:
    from foreword.llm.findings import cache_findings

    try:
        path = find_model(model.model)
        yield _formats(path)
        with _loaded(model, path) as llm:
            yield _memory(llm)
            yield from cache_findings(llm.summary)
            yield _answers(llm)
    except ForewordError as error:
        message, _, cure = str(error).partition("; run: ")
        yield Finding("model", "fix", one_line(message), f"run: {cure}" if cure else _another(model.model))


def _another(name: str) -> str:
    from foreword.models.catalogue import CATALOGUE

    return f"run: foreword pull {name}, which mends a damaged file" if name in CATALOGUE else "another with --model"


def _formats(path: "Path") -> Finding:
    from collections import Counter

    from foreword.models.registry import open_model_files
    from foreword.ops.raw_tensor import PACKED_EXACTLY

    with open_model_files(path) as files:
        types = Counter(tensor.type for tensor in files.tensors.values())
        notes = files.notes
        kind, architecture = files.kind, files.config.architecture
    listed = ", ".join(f"{count} {name}" for name, count in types.most_common())
    detail = f"{path.name}: {kind}, {architecture}, tensors: {listed}"
    others = sorted(set(types) - set(PACKED_EXACTLY))
    if others:
        return Finding(
            "model", "warn", detail, f"{', '.join(others)} run as 8-bit: a Q8_0 or Q4_K file is kept exactly"
        )
    if notes:
        return Finding("model", "warn", detail, one_line("; ".join(notes)))
    return Finding("model", "ok", detail)


def _memory(llm: "LLM") -> Finding:
    from foreword.llm.machine import available_bytes, resident_bytes

    summary, free = llm.summary, available_bytes()
    detail = (
        f"weights {human_bytes(summary.weight_bytes)}, KV pool {human_bytes(summary.kv_pool_bytes)} "
        f"({kv_decision(summary, llm.options)}), process {human_bytes(resident_bytes())}, free {human_bytes(free)}"
    )
    if summary.kv_pool_bytes > free:
        return Finding("memory", "warn", detail, "the KV pool could outgrow memory: lower --kv-memory")
    full = summary.kv_pool_tokens // summary.max_model_len
    if full < llm.options.max_num_seqs and llm.options.kv_memory_bytes is not None:
        cure = (
            f"room for {full} full-length sequences of {llm.options.max_num_seqs}: raise --kv-memory if they are long"
        )
        return Finding("memory", "warn", detail, cure)
    return Finding("memory", "ok", detail)


def _answers(llm: "LLM") -> Finding:
    """Three tokens, twice: the same tokens both times, and all books balanced after it."""
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    prompt = {"prompt_token_ids": [token % llm.tokenizer.vocab_size for token in _PROBE]}
    first, second = (llm.generate(prompt, params)[0].outputs[0].token_ids for _ in range(2))
    if first != second:
        return Finding("engine", "fix", f"the same prompt gave {first}, then {second}", "report this: it is a bug")
    llm.check_invariants()
    return Finding("engine", "ok", "answers, the same twice; every block accounted for")


@contextmanager
def _loaded(model: ModelOptions, path: "Path") -> "Iterator[LLM]":
    options = model.engine_options()
    from foreword.llm import LLM

    with err_console().status(f"Loading {path.name} …"):
        llm = LLM(path, **asdict(options))
    with llm:
        yield llm


def _print(finding: Finding) -> None:
    from rich.text import Text

    line = Text.assemble(
        (f"{finding.status:<5}", _STYLES[finding.status]), (f"{finding.check:<13}", "bold"), finding.detail
    )
    if finding.cure:
        line.append(f"  → {finding.cure}", style="dim")
    out_console().print(line, soft_wrap=True)
