"""Which weights are quantised, and how: by the checkpoint, or rounded to nearest when they are loaded.

Never here: kernels, layers' arithmetic, files. In: config.json and the wish. Out: a `Storage` for each matrix product, or a
`LoadError` that names what is not supported and what is.
"""

from pelton.quantization.choice import Quantization, quantization_of, skips

__all__ = ["Quantization", "quantization_of", "skips"]
