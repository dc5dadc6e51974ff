"""`python -m pelton.worker --listen ADDRESS`: serves one router at a time, until it is told to end."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from concurrent import futures
from pathlib import Path

import grpc

from pelton.command_line import Parser
from pelton.rpc.worker_pb2_grpc import add_WorkerServicer_to_server
from pelton.worker.address import AddressError, UnixAddress, clear, parse
from pelton.worker.end import End
from pelton.worker.handover import MemorySocket
from pelton.worker.service import Service, TokenCheck
from pelton.worker.session import Session

log = logging.getLogger("pelton.worker")

# Calls that last (Steps, Load, Drain) and short ones beside them (Health, Shutdown, a second router's Handshake).
CONTROL_THREADS = 8
GRACE_S = 1.0  # for the answer to Shutdown to get out
END_S = 5.0  # who is told to end has ended by then, whatever gRPC or a log waits for
OPTIONS = [
    ("grpc.so_reuseport", 0),  # a port that is taken is an error, not shared
    ("grpc.max_receive_message_length", 1 << 30),  # a frame; its own bounds are checked when it is taken
    ("grpc.max_send_message_length", 1 << 30),
    # A router whose host has died is noticed by pings, and its stream ends.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]


def main() -> int:
    """Runs the worker; 0 after an orderly end, 2 if it could not start."""
    args = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    end = End()
    # Ctrl-C reaches a spawned worker too, and so does a SIGTERM to all of a service's processes (systemd, Slurm). The router still
    # drains then, and ends it when it is done; and whoever kills the router kills it.
    for number in (signal.SIGTERM, signal.SIGINT):
        if args.spawned:
            signal.signal(number, signal.SIG_IGN)
        else:
            end.hear(number)
    try:
        server, sockets = _start(args, end)
    except (AddressError, OSError, RuntimeError) as error:  # RuntimeError: gRPC could not bind
        log.error("cannot listen on %s: %s", args.listen, error)
        return 2
    log.info("worker %d listens on %s", os.getpid(), args.listen)
    end.wait()
    last = threading.Timer(END_S, os._exit, [0])
    last.daemon = True
    last.start()
    server.stop(GRACE_S).wait()
    for path in sockets:
        path.unlink(missing_ok=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = Parser("pelton worker", "Serves one router at a time, until it is told to end.")
    parser.add_argument("--listen", required=True, help="unix:///path/to/worker.sock or tcp://HOST:PORT")
    parser.add_argument("--token-file", type=Path, help="file with the token that routers must show; tcp only")
    parser.add_argument("--tls-cert", type=Path, help="certificate chain (PEM); tcp only")
    parser.add_argument("--tls-key", type=Path, help="its private key (PEM)")
    parser.add_argument(
        "--spawned", action="store_true", help="a router has started it, and ends it: signals are the router's"
    )
    args = parser.read()
    is_tcp = args.listen.startswith("tcp://")
    if is_tcp and args.token_file is None:
        parser.error("a tcp worker needs --token-file: whoever reaches the port can run the model")
    if not is_tcp and (args.token_file or args.tls_cert or args.tls_key):
        parser.error("--token-file, --tls-cert and --tls-key are for tcp; a Unix socket is guarded by its user")
    if (args.tls_cert is None) != (args.tls_key is None):
        parser.error("--tls-cert and --tls-key come together")
    return args


def _start(args: argparse.Namespace, end: End) -> tuple[grpc.Server, list[Path]]:
    """Binds everything; returns the server, and the sockets to remove at the end."""
    address = parse(args.listen)
    token = None if args.token_file is None else args.token_file.read_text().strip()
    if token == "":
        raise AddressError(f"{args.token_file} is empty")
    server = grpc.server(
        futures.ThreadPoolExecutor(CONTROL_THREADS, thread_name_prefix="control"),
        interceptors=[] if token is None else [TokenCheck(token)],
        options=OPTIONS,
    )
    session = Session()
    sockets = []
    memory = None
    if isinstance(address, UnixAddress):
        sockets, memory = [address.path, address.memory], address.memory
        for path in sockets:
            clear(path)
        os.umask(0o077)  # sockets of this user alone
        MemorySocket(memory, session)
    add_WorkerServicer_to_server(Service(session, memory, end), server)
    if args.tls_cert is None:
        server.add_insecure_port(address.grpc)
        if token is not None:
            log.warning("without --tls-cert the token and all text travel in the clear")
    else:
        pair = (args.tls_key.read_bytes(), args.tls_cert.read_bytes())
        server.add_secure_port(address.grpc, grpc.ssl_server_credentials([pair]))
    server.start()
    return server, sockets


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    # Not sys.exit: it would wait for threads that wait for a router, and for a step that may hang.
    os._exit(code)
