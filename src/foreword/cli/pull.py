"""`foreword pull`: fetch a model once."""

from typing import Annotated

import typer

from foreword.cli.console import err_console, human_bytes, out_console, write_json
from foreword.cli.environment import DEFAULT_MODEL, models_folder
from foreword.cli.options import JsonFlag, QuietFlag


def pull(
    name: Annotated[str, typer.Argument(help="Which model.")] = DEFAULT_MODEL,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Fetch a model, check its digest and keep it; nothing happens where it is here already."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from foreword.models.pull import pull as fetch

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    console = err_console()
    hidden = json or quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(name, total=None)
        pulled = fetch(
            name,
            models_folder(),
            progress=lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total),
        )
    if json:
        write_json({"model": name, "path": str(pulled.path), "sha256": pulled.sha256, "bytes": pulled.num_bytes})
    elif not quiet:
        out_console().print(f"{name}: {pulled.path} ({human_bytes(pulled.num_bytes)})", markup=False, soft_wrap=True)
