"""Kernels as functions on arrays: the seam for backends. The contract is `backend.Backend`."""
