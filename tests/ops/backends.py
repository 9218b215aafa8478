"""The backends that are held to one another, and random arrays for them."""

import numpy as np
from hypothesis import strategies as st

from foreword.ops.backend import F32
from foreword.ops.cpu import CpuBackend, available_instruction_sets
from foreword.ops.reference import ReferenceBackend

EPS = float(np.finfo(np.float32).eps)
REFERENCE = ReferenceBackend()
BACKENDS = {
    (isa, threads): CpuBackend(num_threads=threads, instruction_set=isa)
    for isa in available_instruction_sets()
    for threads in (1, 2)
}
backends = st.sampled_from(sorted(BACKENDS)).map(BACKENDS.__getitem__)


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return np.asarray(rng.standard_normal(shape), np.float32)
