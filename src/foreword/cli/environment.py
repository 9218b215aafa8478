"""The only place that reads and changes the environment, and where models lie on this machine."""

import os
from pathlib import Path

DEFAULT_MODEL = "smollm2"


def home() -> Path:
    """Folder of everything foreword keeps: `FOREWORD_HOME`, else `~/.cache/foreword`."""
    chosen = os.environ.get("FOREWORD_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "foreword"


def keep_blas_single() -> None:
    """Have NumPy's BLAS, when it is imported later, start no threads: they spin for 60 ms, and compute nothing.

    The kernels have their own. What the user chose stays, and so does the backend that multiplies with NumPy.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def models_folder() -> Path:
    """Where `foreword pull` puts models."""
    return home() / "models"
