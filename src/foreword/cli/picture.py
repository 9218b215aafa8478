"""Where a picture may be written, told before the work that it shows."""

from pathlib import Path

from foreword.core.errors import ForewordError, InvalidRequestError

SUFFIXES = (".svg", ".png", ".pdf")


def check_plot(path: Path) -> None:
    """Refuse what could not be drawn or written, before hours of work.

    Raises:
        InvalidRequestError: another suffix than a picture's.
        ForewordError: matplotlib is not here, or the folder.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidRequestError("plot", f"a file name that ends in {', '.join(SUFFIXES)}", str(path))
    if not path.absolute().parent.is_dir():
        raise ForewordError(f"plot: no folder {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401  # a search for its spec would find a broken installation too
    except ImportError:
        raise ForewordError("plot: pictures need matplotlib: pip install 'foreword[plot]'") from None
