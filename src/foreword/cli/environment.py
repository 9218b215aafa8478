"""The only place that reads the environment, and where models lie on this machine."""

import os
from pathlib import Path

DEFAULT_MODEL = "smollm2"


def home() -> Path:
    """Folder of everything foreword keeps: `FOREWORD_HOME`, else `~/.cache/foreword`."""
    chosen = os.environ.get("FOREWORD_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "foreword"


def models_folder() -> Path:
    """Where `foreword pull` puts models."""
    return home() / "models"
