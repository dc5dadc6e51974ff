"""From a folder in Hugging Face layout to a model whose weights are packed, with progress, within a budget.

Never here: steps, requests, gRPC. In: `Wish`. Out: progress, then `Loaded`; or `LoadError`, with what to change.
"""
