"""Kernels for GPUs in Triton: the twins of `reference`, chosen by `ops` for tensors on a card.

Never here: shapes that do not fit (`ops` has checked them), models, steps. Each kernel is one file with its formula, its grid and
why it is fast. A row's result does not depend on the rows beside it, except where a file says so.
"""
