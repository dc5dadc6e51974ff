"""Models that `transformers` defines, on the blocks and the attention of this server.

The package is imported only when such a model is loaded. Whatever its modules compute between two layers of attention they compute
in PyTorch, one step at a time, through Python: every model that asks for attention by transformers' interface runs, none as fast as
a native one, and none with the promise that a row's bits do not depend on its company.
"""
