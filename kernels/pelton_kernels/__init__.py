"""The kernels that Pelton's workers run on: plain references, Rust for CPUs, Triton for GPUs; `ops` is their one door.

Never here: requests, steps, models, how a checkpoint is stored.
"""
