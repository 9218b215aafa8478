"""What answers of one seed depend on, as a short name for clients."""

import hashlib

from foreword.llm.loading import LoadedModel


def fingerprint(loaded: LoadedModel) -> str:
    """Changes with whatever may change an answer of the same seed."""
    s = loaded.summary
    parts = (s.model, s.architecture, s.weight_bytes, s.weight_dtype, s.kv_dtype, s.backend, s.instruction_set)
    return "fp_" + hashlib.sha256(repr(parts).encode()).hexdigest()[:10]
