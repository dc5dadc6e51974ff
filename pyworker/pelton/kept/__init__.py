"""What loading made, kept for the next start: packed weights and the recorded program, in a bounded folder. Without torch,
which takes longer to import than a small model to read.

A worker that finds its entry needs neither the checkpoint nor PyTorch. An entry is used for exactly what it was made of
(`key`), and only if every byte is as it was written; else it is deleted and made again.
Never here: how a checkpoint is read, how a model is recorded.
"""
