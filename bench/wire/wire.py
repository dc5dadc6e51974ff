"""How long a step takes to get to a worker and back: the frame against grpcio unary and ZeroMQ, in one run (goal W3).

    .venv/bin/python bench/wire/wire.py [--rounds 2000] [--sequences 256] [--repeat 5]

Each peer is a process of its own that takes a step of 256 sequences, looks at all of it, and answers one token per sequence; no
model runs. The frame's worker is the real `WorkerEnd` under Python, with the arrays seen without a copy. grpcio and ZeroMQ carry what such
servers send: one protobuf message per sequence, and for ZeroMQ flat arrays as the frame's, its best case. What is timed is the same for all: the
step is put together, goes, is looked at, and its answer is read; NumPy is the hand of both flat ones.
Peers are interleaved and repeated; the medians of the repetitions' medians count.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent import futures
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pelton.machine import description

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def quantiles(micros: list[float]) -> dict[str, float]:
    """Median and tail of one repetition."""
    ordered = sorted(micros)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[int(len(ordered) * 0.99)]}


def frame(rounds: int, sequences: int, pause_us: int) -> dict[str, float]:
    """The frame: router side in Rust, worker side in Python."""
    out = subprocess.run(
        [
            str(ROOT / "target/release/examples/wire_router"),
            sys.executable,
            str(HERE / "frame_worker.py"),
            str(rounds),
            str(sequences),
            str(pause_us),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return quantiles([float(line) for line in out.split()])


def grpc_worker(pipe: Connection) -> None:
    """Answers unary calls; touches every sequence of the message, as a worker has to."""
    import grpc
    from bench_step_pb2 import StepResult  # type: ignore[import-not-found]
    from bench_step_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server  # type: ignore[import-not-found]

    class Worker(WorkerServicer):  # type: ignore[misc]
        def Step(self, request: Any, context: Any) -> Any:  # noqa: N802
            return StepResult(tokens=[row.slot + row.start for row in request.rows])

    server = grpc.server(futures.ThreadPoolExecutor(1))
    add_WorkerServicer_to_server(Worker(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    pipe.send(port)
    pipe.recv()
    server.stop(None)


def grpc_unary(rounds: int, sequences: int, pause_us: int) -> dict[str, float]:
    """One unary call per step."""
    import grpc
    from bench_step_pb2 import Row, StepRequest
    from bench_step_pb2_grpc import WorkerStub

    near, far = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=grpc_worker, args=(far,))
    process.start()
    taken = []
    with grpc.insecure_channel(f"127.0.0.1:{near.recv()}") as channel:
        stub = WorkerStub(channel)
        for step in range(rounds + 50):
            time.sleep(pause_us / 1e6)
            begin = time.perf_counter_ns()
            rows = [Row(slot=slot, start=step, count=1, token=slot) for slot in range(sequences)]
            result = stub.Step(StepRequest(step=step, rows=rows))
            assert len(result.tokens) == sequences
            taken.append((time.perf_counter_ns() - begin) / 1e3)
    near.send(None)
    process.join()
    return quantiles(taken[50:])


def zmq_worker(pipe: Connection) -> None:
    """Answers on a REP socket with flat arrays."""
    import numpy as np
    import zmq

    socket = zmq.Context().socket(zmq.PAIR)
    path = pipe.recv()
    socket.bind(path)
    pipe.send(None)
    while message := socket.recv():
        rows = np.frombuffer(message, dtype=np.int32).reshape(-1, 4)
        socket.send((rows[:, 0] + rows[:, 1]).astype(np.int32).tobytes())


def zmq_pair(rounds: int, sequences: int, pause_us: int) -> dict[str, float]:
    """One message each way per step, over a Unix socket."""
    import numpy as np
    import zmq

    near, far = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=zmq_worker, args=(far,))
    process.start()
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        path = f"ipc://{folder}/bench"
        near.send(path)
        near.recv()
        socket = zmq.Context().socket(zmq.PAIR)
        socket.connect(path)
        slots = np.arange(sequences, dtype=np.int32)
        for step in range(rounds + 50):
            time.sleep(pause_us / 1e6)
            begin = time.perf_counter_ns()
            rows = np.empty((sequences, 4), dtype=np.int32)
            rows[:, 0] = rows[:, 3] = slots
            rows[:, 1], rows[:, 2] = step, 1
            socket.send(rows.tobytes())
            assert np.frombuffer(socket.recv(), dtype=np.int32).shape == (sequences,)
            taken.append((time.perf_counter_ns() - begin) / 1e3)
        socket.send(b"")
        process.join()
        socket.close()
    return quantiles(taken[50:])


def make_stubs(folder: str) -> None:
    """The message per sequence that grpcio carries."""
    from grpc_tools import protoc

    code = protoc.main(
        ["protoc", f"-I{HERE}", f"--python_out={folder}", f"--grpc_python_out={folder}", str(HERE / "bench_step.proto")]
    )
    assert code == 0
    sys.path.insert(0, folder)


def machine() -> dict[str, str]:
    """What this ran on."""
    return {"processor": description(), "python": platform.python_version()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pelton-bench-") as folder:
        make_stubs(folder)
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Runs all three, in turns, and says what came out."""
    # With the features of the whole workspace, as the tests have built it.
    build = ["cargo", "build", "--release", "--locked", "-q", "--workspace", "--example", "wire_router"]
    subprocess.run(build, check=True, cwd=ROOT)
    peers = {"frame": frame, "grpcio unary": grpc_unary, "pyzmq": zmq_pair}
    report: dict[str, Any] = {"date": str(date.today()), "machine": machine(), "sequences": args.sequences}
    # Back to back, and with a pause in which both sides fall asleep.
    for name, pause_us in (("back to back", 0), ("asleep", 300)):
        runs: dict[str, list[dict[str, float]]] = {peer: [] for peer in peers}
        for repetition in range(args.repeat):
            for peer, run in peers.items():
                runs[peer].append(run(args.rounds, args.sequences, pause_us))
                print(f"\r{name}: {repetition + 1}/{args.repeat} {peer:<14}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        p50 = {peer: statistics.median(run["p50"] for run in done) for peer, done in runs.items()}
        p99 = {peer: statistics.median(run["p99"] for run in done) for peer, done in runs.items()}
        report[name] = {"p50_us": p50, "p99_us": p99}
        for peer in peers:
            ratio = p50[peer] / p50["frame"]
            print(f"{name:<13} {peer:<13} p50 {p50[peer]:8.1f} us   p99 {p99[peer]:8.1f} us   {ratio:6.2f} x the frame")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
