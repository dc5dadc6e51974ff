"""The worker as a process: handshake, loading, both doors for frames, and the ends of its life."""

from __future__ import annotations

import ctypes
import random
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from pelton.rpc import worker_pb2 as pb
from pelton.rpc.worker_pb2_grpc import WorkerStub
from pelton_kernels._native import RECORDS_CHECKSUM, WorkerEnd
from plans import CAPACITIES, Admit, Plan, Row, table
from random_checkpoints import VOCAB, greedy
from vector_checkpoints import classes, write
from worker_process import DEADLINE_S, SharedFrames, Worker, hand_over, running

PROMPT = [random.Random(4).randrange(VOCAB) for _ in range(10)]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with running(f"unix://{tmp_path_factory.mktemp('worker')}/w.sock") as started:
        yield started


def prefill(step: int = 1, epoch: int = 1) -> Plan:
    return Plan(step, epoch, admits=[Admit(3)], appends=table(3, [9, 4]), rows=[Row(3, 0, len(PROMPT), PROMPT, True)])


def decode(step: int, epoch: int = 1) -> Plan:
    """One step ahead: the token is what the step before drew."""
    return Plan(step, epoch, rows=[Row(3, len(PROMPT) + step - 2, 1, [], True)])


def status_of(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    return error.value.code(), error.value.details() or ""


def test_the_handshake_needs_no_torch() -> None:
    script = "import sys, pelton, pelton.worker.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_the_handshake_says_what_the_worker_is(worker: Worker) -> None:
    _, answer = worker.handshake()
    assert (answer.protocol, answer.records_checksum) == (1, RECORDS_CHECKSUM)
    assert answer.pid == worker.process.pid
    assert answer.memory_socket == f"{worker.path}.memory"
    assert answer.device in {"cpu", "cuda:0"}
    assert answer.device_name
    assert answer.worker_version


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"protocol": 2}, "`protocol` is 2 in the router and 1 in the worker"),
        ({"records_checksum": 5}, "`records_checksum` is 5 in the router"),
        ({"nonce": b"short"}, "nonce has 5 bytes"),
    ],
)
def test_a_router_of_another_version_is_refused(worker: Worker, changes: dict[str, object], why: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        worker.handshake(**changes)
    code, details = status_of(error)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert why in details


def test_loading_tells_the_budget_first_and_the_model_last(worker: Worker, checkpoints: Path) -> None:
    worker.handshake()
    said = worker.load(checkpoints / "qwen3")
    budgets = [at for at, progress in enumerate(said) if progress.HasField("budget")]
    weights = [at for at, progress in enumerate(said) if progress.stage == "reading weights" and progress.done > 0]
    assert budgets[0] < weights[0]
    report = said[-1].report
    assert (report.family, report.dtype, report.vocab_size, report.max_model_len) == ("qwen3", "float32", VOCAB, 512)
    assert report.blocks == report.budget.blocks == said[budgets[0]].budget.blocks > 0
    assert report.block_size == 8
    assert report.numerics_id
    assert report.invariant


def test_a_model_that_gives_vectors_says_so_and_takes_no_frames_of_another_width(
    worker: Worker, tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", "qwen3-classes")
    nonce, _ = worker.handshake()
    pooling = worker.load(folder)[-1].report.pooling
    assert (pooling.width, pooling.kind, pooling.normalize, pooling.is_bidirectional) == (4, "classes", False, False)
    assert (list(pooling.labels), pooling.activation) == ([f"LABEL_{at}" for at in range(4)], "sigmoid")
    with worker.steps(nonce) as steps:
        row = Row(3, 0, len(PROMPT), PROMPT, samples=False, pools=True)
        steps.send(Plan(1, admits=[Admit(3)], appends=table(3, [9, 4]), rows=[row]))
        assert steps.last_words(4) == pytest.approx(classes(folder, PROMPT).tolist(), rel=1e-3, abs=1e-3)

    nonce, _ = worker.handshake()
    report = worker.load(write(tmp_path / "wider", "bert"), task="embed", pooling="cls")[-1].report
    assert (report.pooling.width, report.pooling.is_bidirectional) == (64, True)
    with pytest.raises(grpc.RpcError) as error, worker.steps(nonce):
        pass
    assert "frames for vectors of 4 numbers; the model gives 64" in status_of(error)[1]


def test_a_model_that_is_refused_says_why(worker: Worker, tmp_path: Path) -> None:
    worker.handshake()
    with pytest.raises(grpc.RpcError) as error:
        worker.load(tmp_path / "nothing")
    code, details = status_of(error)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "is no folder" in details


def test_frames_inline_and_the_next_router_after_the_first(worker: Worker, checkpoints: Path) -> None:
    expected = greedy(checkpoints / "llama", PROMPT, 3)
    for epoch in (7, 8):  # the second router finds the model loaded, and starts from empty slots
        nonce, _ = worker.handshake(epoch=epoch)
        stages = [progress.stage for progress in worker.load(checkpoints / "llama")]
        assert ("reading weights" in stages) == (epoch == 7)
        with worker.steps(nonce) as steps:
            assert steps.layout_checksum == WorkerEnd.inline(CAPACITIES, epoch).layout_checksum
            for plan in (prefill(epoch=epoch), decode(2, epoch), decode(3, epoch)):
                steps.send(plan)
            assert [steps.result() for _ in range(3)] == [(n + 1, 0, [token]) for n, token in enumerate(expected)]
            health = worker.stub.Health(pb.HealthRequest())
            assert (health.steps, health.running_step_micros) == (3, 0)
            assert health.rss_bytes > 50 << 20

            with pytest.raises(grpc.RpcError) as error:  # a second router, while the first is attached
                worker.handshake()
            assert status_of(error)[0] == grpc.StatusCode.UNAVAILABLE
            assert "serves another router" in status_of(error)[1]


def test_memory_handed_over_carries_steps_until_the_connection_ends(worker: Worker, checkpoints: Path) -> None:
    nonce, answer = worker.handshake()
    worker.load(checkpoints / "llama")
    frames = SharedFrames()
    for wrong, why in (
        ((secrets.token_bytes(16), frames), "nonce"),
        ((nonce, SharedFrames(epoch=2)), "epoch 2"),
    ):
        connection, refusal = hand_over(Path(answer.memory_socket), *wrong)
        connection.close()
        assert refusal is not None
        assert why in refusal

    connection, refusal = hand_over(Path(answer.memory_socket), nonce, frames)
    assert refusal is None
    drawn = []
    for plan in (prefill(), decode(2)):
        frames.submit(plan)
        drawn.append(frames.result())
    first, second = greedy(checkpoints / "llama", PROMPT, 2)
    assert drawn == [(1, 0, [first]), (2, 0, [second])]

    other, refusal = hand_over(Path(answer.memory_socket), nonce, SharedFrames())
    other.close()
    assert refusal is not None
    assert "serves another router" in refusal

    connection.close()
    welcome(worker)


def welcome(worker: Worker) -> bytes:
    """Shakes hands once the worker has noticed that the last router is gone: at its next heartbeat."""
    while True:
        try:
            return worker.handshake()[0]
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise


def test_a_step_that_fails_is_published_as_failed_and_so_are_all_after_it(worker: Worker, checkpoints: Path) -> None:
    nonce = welcome(worker)
    worker.load(checkpoints / "llama")
    without_blocks = Plan(1, admits=[Admit(3)], rows=[Row(3, 0, len(PROMPT), PROMPT, True)])
    with worker.steps(nonce) as steps:
        steps.send(without_blocks)
        steps.send(prefill(2))
        assert [steps.result()[:2] for _ in range(2)] == [(1, 1), (2, 1)]
    nonce = welcome(worker)  # the process lives on, for the next epoch
    worker.load(checkpoints / "llama")
    with worker.steps(nonce) as steps:
        steps.send(prefill())
        assert steps.result() == (1, 0, greedy(checkpoints / "llama", PROMPT, 1))


def test_a_plan_that_points_outside_ends_the_stream(worker: Worker, checkpoints: Path) -> None:
    nonce = welcome(worker)
    worker.load(checkpoints / "llama")
    with worker.steps(nonce) as steps:
        steps.send(Plan(1, admits=[Admit(3)], appends=table(3, [1 << 20]), rows=[Row(3, 0, 1, [1], True)]))
        with pytest.raises(StopIteration):
            steps.result()


def test_steps_before_loading_and_frames_larger_than_loaded_for_are_refused(tmp_path: Path, checkpoints: Path) -> None:
    with running(f"unix://{tmp_path}/w.sock") as fresh:
        nonce, _ = fresh.handshake()
        with pytest.raises(grpc.RpcError) as error, fresh.steps(nonce):
            pass
        assert "no model is loaded" in status_of(error)[1]
        fresh.load(checkpoints / "llama", slots=4)
        with pytest.raises(grpc.RpcError) as error, fresh.steps(nonce):
            pass
        assert "loaded for 4 and 48" in status_of(error)[1]

        # Drained and shut down, it leaves nothing behind.
        fresh.load(checkpoints / "llama")
        with fresh.steps(nonce) as steps:
            steps.send(prefill())
            assert steps.result()[1] == 0
            assert fresh.stub.Drain(pb.DrainRequest(), timeout=DEADLINE_S).steps == 1
        fresh.stub.Shutdown(pb.ShutdownRequest(), timeout=DEADLINE_S)
        assert fresh.process.wait(DEADLINE_S) == 0
        assert list(tmp_path.iterdir()) == []


def test_a_tcp_worker_asks_every_call_for_its_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("something long\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with running(f"tcp://127.0.0.1:{port}", "--token-file", str(token)) as tcp:
        calls = {
            "Handshake": pb.HandshakeRequest(),
            "Drain": pb.DrainRequest(),
            "Health": pb.HealthRequest(),
            "Shutdown": pb.ShutdownRequest(),
        }
        for given in (None, "Bearer something lon", "something long"):
            metadata = None if given is None else [("authorization", given)]
            for name, request in calls.items():
                with pytest.raises(grpc.RpcError) as error:
                    getattr(tcp.stub, name)(request, metadata=metadata, wait_for_ready=True, timeout=DEADLINE_S)
                assert status_of(error)[0] == grpc.StatusCode.UNAUTHENTICATED
            for stream in (
                tcp.stub.Load(pb.LoadRequest(), metadata=metadata),
                tcp.stub.Steps(iter([pb.StepsRequest()]), metadata=metadata),
            ):
                with pytest.raises(grpc.RpcError) as error:
                    list(stream)
                assert status_of(error)[0] == grpc.StatusCode.UNAUTHENTICATED
        right = [("authorization", "Bearer something long")]
        assert tcp.stub.Health(pb.HealthRequest(), metadata=right).steps == 0
        tcp.stub.Shutdown(pb.ShutdownRequest(), metadata=right)
        assert tcp.process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--listen", "tcp://127.0.0.1:0"], "needs --token-file"),
        (["--listen", "unix:///tmp/w.sock", "--token-file", "x"], "are for tcp"),
        (["--listen", "tcp://127.0.0.1:0", "--token-file", "x", "--tls-cert", "x"], "come together"),
        (["--listen", "127.0.0.1:80"], "is no address"),
        (["--listen", "tcp://127.0.0.1:70000", "--token-file", "x"], "is no address"),
        (["--listen", "unix://" + "/long" * 30], "is too long"),
        (["--listen", "tcp://127.0.0.1:0", "--token-file", "/nowhere"], "No such file"),
    ],
)
def test_a_command_line_that_cannot_work_says_so(flags: list[str], why: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pelton.worker", *flags], capture_output=True, text=True)
    assert done.returncode == 2
    assert why in done.stderr


def test_a_socket_of_a_dead_worker_is_replaced_and_that_of_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with running(f"unix://{path}") as live:
        live.handshake()
        second = subprocess.run(
            [sys.executable, "-m", "pelton.worker", "--listen", f"unix://{path}"], capture_output=True, text=True
        )
        assert second.returncode == 2
        assert "another worker listens" in second.stderr
        live.handshake()
        assert path.stat().st_mode & 0o077 == 0, "for this user alone"
        live.process.terminate()
        assert live.process.wait(DEADLINE_S) == 0
        assert list(tmp_path.iterdir()) == []


def test_a_worker_ends_whichever_of_its_threads_the_signal_reaches(tmp_path: Path) -> None:
    for at in range(3):
        with running(f"unix://{tmp_path / str(at)}") as worker:
            worker.handshake()
            pid = worker.process.pid
            others = sorted(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if int(task.name) != pid)
            assert ctypes.CDLL(None).tgkill(pid, others[at], signal.SIGTERM) == 0
            assert worker.process.wait(DEADLINE_S) == 0


# A worker whose loading panics in Rust: no `Exception` comes out of that.
PANICKING = """
import sys
import pelton.worker.__main__ as worker
class PanicException(BaseException):
    pass
def start(wish):
    raise PanicException("no memory for 5 bytes")
    yield
import pelton.loading.start
pelton.loading.start.start = start
sys.argv[0] = "worker"
worker.main()
"""


def test_loading_that_panics_is_answered(tmp_path: Path) -> None:
    listen = f"unix://{tmp_path}/w.sock"
    process = subprocess.Popen([sys.executable, "-c", PANICKING, "--listen", listen])
    try:
        with grpc.insecure_channel(listen.replace("unix://", "unix:")) as channel:
            worker = Worker(process, WorkerStub(channel), tmp_path / "w.sock")
            worker.handshake()
            with pytest.raises(grpc.RpcError) as error:
                worker.load(tmp_path)
            assert status_of(error) == (grpc.StatusCode.INTERNAL, "PanicException: no memory for 5 bytes")
            worker.handshake()
    finally:
        process.kill()
        process.wait()


# A worker whose gRPC never says that it has ended.
ENDLESS = """
import sys, threading
import grpc
made = grpc.server
def server(*args, **options):
    server = made(*args, **options)
    server.stop = lambda grace: threading.Event()
    return server
grpc.server = server
from pelton.worker.__main__ import main
sys.exit(main())
"""


def test_a_worker_that_is_told_to_end_does_whatever_grpc_waits_for(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDLESS, "--listen", f"unix://{tmp_path / 'w.sock'}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stderr is not None
            assert "listens on" in worker.stderr.readline()
            worker.terminate()
            assert worker.wait(DEADLINE_S) == 0
        finally:
            worker.kill()
