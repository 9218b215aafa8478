"""Prompt beginnings from an operator's files, read once and shared by all tenants.

    notes.txt       text, as `/v1/completions` reads it
    support.json    a list of messages, or an object with `messages` or `prompt`, as `/cache/warm` reads them

Only whole blocks of a listed beginning are shared, and only with prompts that begin with all of them. A prompt that has
a part of it, and whatever stands behind it, stay their tenant's own.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from foreword.core.errors import ForewordError, InvalidRequestError
from foreword.core.types import TokenId
from foreword.server.context import Asker
from foreword.server.errors import ApiError
from foreword.server.prompt_body import PromptBody, encoder
from foreword.server.service import Service

MAX_FILES = 128
MAX_FILE_BYTES = 8 << 20
SUFFIXES = (".json", ".txt")


def publish_files(service: Service, paths: Sequence[Path]) -> dict[str, int]:
    """Publish what files, or files in folders, hold; to be called before the engine's thread is started.

    Returns:
        Name of each file, and how many tokens of it are shared.

    Raises:
        ForewordError: a file can't be read, is none of ours, or does not fit; names it.
    """
    files = [file for path in paths for file in _files(path)]
    if len(files) > MAX_FILES:
        raise InvalidRequestError("publish", f"at most {MAX_FILES} files", len(files))
    if files and service.loaded.events is not None:
        raise InvalidRequestError("publish", "no --kv-events, which can't tell of what is shared", "both")
    prompts = [(str(file), _token_ids(service, file)) for file in files]
    published = {}
    for name, ids in sorted(prompts, key=lambda prompt: len(prompt[1])):  # what others begin with goes first
        try:
            published[name] = service.loaded.engine.publish(ids)
        except ForewordError as error:
            raise ForewordError(f"{name}: {error}") from None
    return published


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if path.suffix not in SUFFIXES:
        raise InvalidRequestError("publish", "a folder, or a file that ends in .txt or .json", path.name)
    return [path]


def _token_ids(service: Service, file: Path) -> list[TokenId]:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InvalidRequestError("size", f"at most {MAX_FILE_BYTES} bytes", "more")
        tenant = service.keys.local
        asker = Asker(tenant=tenant, namespace=tenant.namespace(), started=0.0)
        return [TokenId(token) for token in encoder(service, _body(service, file, data), asker)().token_ids]
    except OSError as error:
        raise ForewordError(f"{file}: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ForewordError(f"{file}: {error}") from None
    except ApiError as error:
        raise ForewordError(f"{file}: {error.message}") from None
    except ForewordError as error:
        raise ForewordError(f"{file}: {error}") from None


def _body(service: Service, file: Path, data: bytes) -> PromptBody:
    model: dict[str, object] = {"model": service.names[0], "add_generation_prompt": False}
    if file.suffix == ".txt":
        return PromptBody(model=service.names[0], prompt=data.decode())
    value = msgspec.json.decode(data)
    return msgspec.convert((value if isinstance(value, dict) else {"messages": value}) | model, PromptBody)
