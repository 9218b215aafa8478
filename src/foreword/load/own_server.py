"""A server of our own in a process of its own, so that the client takes nothing from its interpreter."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from foreword.core.errors import ForewordError

END_S = 20.0


@contextmanager
def own_server(argv: Sequence[str]) -> Iterator[str]:
    """`foreword serve` with these arguments on a free port of the loopback; gives its address, ends it afterwards.

    Raises:
        ForewordError: it does not start; says its last word.
    """
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "foreword", "serve", *argv, "--port", "0", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=told,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                process.wait(END_S)
                told.seek(0)
                last = told.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise ForewordError(f"the server did not start: {last or f'exit code {process.returncode}'}")
            yield str(json.loads(line)["url"])
        finally:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
