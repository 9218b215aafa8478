"""Where the pulled SmolLM2 lies, found before the tests' temporary home takes the place of the real one."""

import os
from pathlib import Path

import pytest

from foreword.models.catalogue import CATALOGUE

_HOME = Path(os.environ.get("FOREWORD_HOME") or Path.home() / ".cache" / "foreword")
SMOLLM2 = _HOME / "models" / CATALOGUE["smollm2"].file_name

needs_smollm2 = pytest.mark.skipif(not SMOLLM2.is_file(), reason=f"{SMOLLM2} is not there; run `foreword pull smollm2`")
