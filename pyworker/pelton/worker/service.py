"""The worker's gRPC service: it converts and calls. See proto/pelton/v1/worker.proto for what the calls mean.

What goes wrong becomes a status here and nowhere else:
  FAILED_PRECONDITION   trying again does not help: versions, model, flags, order of calls
  UNAVAILABLE           another router holds the worker
  INTERNAL              our fault; the traceback is in the log
"""

from __future__ import annotations

import dataclasses
import hmac
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import grpc
from pelton_kernels._native import RECORDS_CHECKSUM

import pelton
from pelton.rpc import worker_pb2 as pb
from pelton.rpc.worker_pb2_grpc import WorkerServicer
from pelton.worker import about, inline
from pelton.worker.end import End
from pelton.worker.session import BusyError, ClaimError, Session

log = logging.getLogger("pelton.worker")

PROTOCOL = 1  # of the contract; `pelton_rpc::WORKER_PROTOCOL`


class Service(WorkerServicer):  # type: ignore[misc]  # generated code has no types
    """All calls of one worker."""

    def __init__(self, session: Session, memory_socket: Path | None, end: End) -> None:
        """`end` is set to end the process."""
        self._session = session
        self._memory_socket = memory_socket
        self._end = end

    def Handshake(self, request: pb.HandshakeRequest, context: grpc.ServicerContext) -> pb.HandshakeResponse:  # noqa: N802
        for name, got, ours in (
            ("protocol", request.protocol, PROTOCOL),
            ("records_checksum", request.records_checksum, RECORDS_CHECKSUM),
        ):
            if got != ours:
                why = f"`{name}` is {got} in the router and {ours} in the worker: install the same version of both"
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        _answering(context, lambda: self._session.handshake(request.nonce, request.epoch))
        device, device_name = about.device()
        return pb.HandshakeResponse(
            protocol=PROTOCOL,
            records_checksum=RECORDS_CHECKSUM,
            pid=os.getpid(),
            device=device,
            device_name=device_name,
            worker_version=pelton.__version__,
            memory_socket=str(self._memory_socket or ""),
        )

    def Load(self, request: pb.LoadRequest, context: grpc.ServicerContext) -> Iterator[pb.LoadProgress]:  # noqa: N802
        from pelton.loading.error import ContextError, LoadError
        from pelton.loading.ready import Progress
        from pelton.loading.wish import Wish

        try:
            for said in self._session.load(Wish.of_request(request), context.is_active):
                yield _progress(said) if isinstance(said, Progress) else _report(said)
        except ContextError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except LoadError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except GeneratorExit:
            raise
        except BaseException as error:  # a panic in Rust is no `Exception`, and gRPC would answer nothing
            _abort(context, error)

    def Steps(self, requests: Iterator[pb.StepsRequest], context: grpc.ServicerContext) -> Iterator[pb.StepsResponse]:  # noqa: N802
        first = next(requests, None)
        if first is None or first.WhichOneof("kind") != "attach":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message of `Steps` is `attach`")
        try:
            yield from inline.serve(self._session, first.attach, requests)
        except ValueError as error:  # capacities out of bounds
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except GeneratorExit:
            raise
        except BaseException as error:
            _abort(context, error)

    def Health(self, request: pb.HealthRequest, context: grpc.ServicerContext) -> pb.HealthResponse:  # noqa: N802
        steps, running = self._session.health()
        return pb.HealthResponse(steps=steps, running_step_micros=running, rss_bytes=about.resident_bytes())

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> pb.DrainResponse:  # noqa: N802
        return pb.DrainResponse(steps=self._session.drain())

    def Shutdown(self, request: pb.ShutdownRequest, context: grpc.ServicerContext) -> pb.ShutdownResponse:  # noqa: N802
        context.add_callback(self._end.set)  # runs once the answer is on its way
        return pb.ShutdownResponse()


class TokenCheck(grpc.ServerInterceptor):
    """Lets through calls with the right token, on every method."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        self._refusal: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(_refuse)

    def intercept_service(self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails) -> Any:
        given = next((value for key, value in details.invocation_metadata if key == "authorization"), "")
        given_bytes = given if isinstance(given, bytes) else given.encode()
        return continuation(details) if hmac.compare_digest(given_bytes, self._expected) else self._refusal


def _refuse(_request: bytes, context: grpc.ServicerContext) -> NoReturn:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token in `authorization: Bearer ...` is not this worker's")
    raise AssertionError("abort raises")


def _answering(context: grpc.ServicerContext, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        _abort(context, error)


def _abort(context: grpc.ServicerContext, error: BaseException) -> None:
    """Ends the call with the status that says whose fault it was."""
    if isinstance(error, BusyError):
        context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    if isinstance(error, ClaimError):
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    log.error("a call failed", exc_info=error)
    context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")


def _progress(said: Any) -> pb.LoadProgress:
    budget = pb.Budget(**dataclasses.asdict(said.budget)) if said.budget else None
    return pb.LoadProgress(stage=said.stage, done=said.done, total=said.total, budget=budget)


def _report(loaded: Any) -> pb.LoadProgress:
    budget = pb.Budget(**dataclasses.asdict(loaded.budget))
    report = pb.ModelReport(
        family=loaded.family,
        dtype=loaded.dtype,
        vocab_size=loaded.vocab,
        max_model_len=loaded.budget.max_model_len,
        block_size=loaded.shape.block_size,
        blocks=loaded.budget.blocks,
        kinds=[_kind(kind) for kind in loaded.shape.kinds],
        budget=budget,
        numerics_id=loaded.numerics_id,
        invariant=loaded.is_invariant,
        pooling=pb.Pooling(**dataclasses.asdict(loaded.pooling)) if loaded.pooling else None,
        embed_width=loaded.embed_width,
    )
    return pb.LoadProgress(stage="ready", done=1, total=1, budget=budget, report=report)


def _kind(kind: Any) -> pb.Kind:
    return pb.Kind(full=pb.Full()) if kind.window is None else pb.Kind(window=pb.Window(tokens=kind.window))
