"""The small parts that models are made of. They allocate what they return and call `pelton_kernels.ops`, nothing else.

Never here: devices, files, names in a checkpoint, requests. A layer knows which weights it wants and how to hold them.
"""
