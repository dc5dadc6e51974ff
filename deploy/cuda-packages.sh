#!/usr/bin/env bash
# The options that keep torch and its CUDA packages out of `uv sync`, for machines that take PyTorch's CPU build instead.
set -euo pipefail
cd "$(dirname "$0")/.."
sed -nE 's/^name = "(torch|triton|nvidia-.*|cuda-.*)"$/--no-install-package \1/p' uv.lock | tr '\n' ' '
