"""Frames over a gRPC stream, for a router that shares no memory with this worker.

Plans come in on a thread of their own, so that one is queued while another runs; results go out in the order of steps.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator

import grpc
from pelton_kernels._native import WorkerEnd

from pelton.rpc.worker_pb2 import Attach, StepsRequest, StepsResponse
from pelton.worker.session import Session

log = logging.getLogger("pelton.worker")


def serve(session: Session, attach: Attach, requests: Iterator[StepsRequest]) -> Iterator[StepsResponse]:
    """Answers a stream whose first message was `attach`, until it ends."""
    capacities = {field.name: getattr(attach.capacities, field.name) for field in attach.capacities.DESCRIPTOR.fields}
    end = WorkerEnd.inline(capacities, session.epoch)
    masks = session.local_masks(capacities["slots"])
    results: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    loop = session.attach(
        attach.nonce,
        end,
        published=lambda frame: results.put(end.result_bytes(frame)),
        failed=lambda: results.put(None),
        masks=masks,
    )

    def take_plans() -> None:
        try:
            for request in requests:
                if request.WhichOneof("kind") == "mask":
                    masks.accept(request.mask)
                else:
                    end.accept_plan(request.frame)
        except grpc.RpcError:
            pass  # how grpcio says that the router has gone
        except RuntimeError as error:
            log.error("a plan could not be taken: %s", error)
        finally:
            loop.drain()
            results.put(None)

    try:
        yield StepsResponse(layout_checksum=end.layout_checksum)
        threading.Thread(target=take_plans, name="plans", daemon=True).start()
        while (result := results.get()) is not None:
            yield StepsResponse(result=result)
    finally:
        session.detach(loop)
