"""The worker process: gRPC for control, frames for steps, one model.

Never here: arithmetic, models, what a plan means. `python -m pelton.worker` starts it; it answers the handshake before
torch is imported.
"""
