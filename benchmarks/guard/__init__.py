"""A guard against slower kernels: instructions counted, not seconds, so that a busy machine can't fail it."""
