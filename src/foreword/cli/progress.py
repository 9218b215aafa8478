"""A bar for work that goes on for a while."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from foreword.cli.console import err_console

_SHOW_AFTER_S = 1.0


@contextmanager
def progress(*, hidden: bool) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr, once the work has gone on for a second."""
    console = err_console()
    if hidden or not console.is_terminal:
        yield lambda what, done: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("reading", total=1.0)
    started = time.monotonic()
    is_shown = False

    def tell(what: str, done: float) -> None:
        nonlocal is_shown
        bar.update(task, description=what, completed=done)
        if not is_shown and time.monotonic() - started > _SHOW_AFTER_S:
            bar.start()
            is_shown = True

    try:
        yield tell
    finally:
        if is_shown:
            bar.stop()
