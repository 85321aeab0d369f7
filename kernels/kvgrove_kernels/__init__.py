"""Ops on KV blocks: CUDA kernels for device arrays, NumPy for host arrays, one typed function each (`ops`)."""
