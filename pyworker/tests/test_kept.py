"""Loaded models that are kept: read again they give the same bits, without torch; and only what is whole and unchanged is used."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import gc
import io
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pelton import prepare
from pelton.kept.entry import Kept, is_kept, keep, read
from pelton.kept.folder import SPARE_BYTES, KeptFolder
from pelton.kept.key import key_of
from pelton.loading.budget import plan
from pelton.loading.error import LoadError
from pelton.loading.load import Loaded, load_whole
from pelton.loading.ready import Ready
from pelton.loading.start import start
from pelton.loading.wish import Wish
from pelton.models.model import LanguageModel
from pelton_kernels._native import ArenaBytes, HeldBytes
from pelton_kernels.script import ScriptError, rebuild
from plans import Admit
from tiny_router import Request, TinyRouter

PLENTY = 1 << 30


@pytest.fixture
def folder(tmp_path: Path) -> KeptFolder:
    made = KeptFolder.open(tmp_path / "kept", PLENTY)
    assert made is not None
    return made


def wish_for(model: Path, **said: object) -> Wish:
    usual: dict[str, object] = {
        "kv_bytes": 1 << 20, "block_size": 8, "threads": 1, "slots": 8, "token_budget": 48, "device": "cpu",
    }  # fmt: skip
    return Wish(model, **{**usual, **said})  # type: ignore[arg-type]


def ended(steps: Iterator[object]) -> object:
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def draws(loaded: Loaded | Kept, longest: int = 40) -> tuple[list[list[int]], list[object]]:
    requests = [Request(Admit(0, logprobs=3), prompt, 9) for prompt in ([1], [2, 3, 4], list(range(longest)))]
    tokens = TinyRouter(loaded, seed=3).run(*requests)
    return tokens, [request.logprobs for request in requests]


CASES: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen3": {"dtype": "bfloat16"},
    "gemma3": {},
    "gpt2": {},
    "cohere-normed": {"dtype": "bfloat16"},
    "olmo2": {"dtype": "bfloat16", "quantize": "int8"},
    "mistral": {"quantize": "int4", "quantize_skip": "none"},
    "phi3": {"dtype": "bfloat16", "kv_dtype": "int8"},
}


@pytest.mark.parametrize("variant", CASES)
def test_a_kept_model_gives_the_same_bits(checkpoints: Path, folder: KeptFolder, variant: str) -> None:
    wish = wish_for(checkpoints / variant, **CASES[variant])
    assert ended(read(folder, wish)) is None
    loaded = load_whole(wish)
    keep(folder, wish, key_of(wish), loaded)
    kept = ended(read(folder, wish))
    assert isinstance(kept, Kept)
    for name in (
        name for name in dir(Ready) if not name.startswith("_") and name not in {"program", "budget", "arena"}
    ):
        assert getattr(kept, name) == getattr(loaded, name), name
    taken = {"memory_limit_bytes": 0}  # the rest of the budget is the same
    assert dataclasses.replace(kept.budget, **taken) == dataclasses.replace(loaded.budget, **taken)
    assert draws(kept) == draws(loaded)


def test_a_kept_model_starts_without_torch(checkpoints: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pelton.loading.start import start\n"
        "from pelton.loading.wish import Wish\n"
        "import pelton.worker.__main__\n"
        "wish = Wish(Path(sys.argv[1]), kv_bytes=1 << 20, device='cpu', kept_folder=Path(sys.argv[2]), kept_bytes=1 << 30)\n"
        "steps = start(wish)\n"
        "stages = []\n"
        "try:\n"
        "    while True: stages.append(next(steps).stage)\n"
        "except StopIteration as end:\n"
        "    pass\n"
        "import threading\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'keep']\n"
        "import gc\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)), stages[1], gc.isenabled(), gc.get_freeze_count() > 0)\n"
    )

    def said() -> str:
        command = [sys.executable, "-c", code, str(checkpoints / "llama"), str(tmp_path / "kept")]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.strip()

    assert said() == "['torch'] importing PyTorch True True"
    assert said() == "[] reading the kept model True False"


def test_memory_is_urgent_as_long_as_a_start_waits_whether_it_ends_well_or_badly(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []
    monkeypatch.setattr("pelton.loading.start.memory_is_urgent", said.append)
    loading = start(wish_for(checkpoints / "llama"))
    next(loading)
    assert said == [True]
    ended(loading)
    assert said == [True, False]
    with pytest.raises(LoadError):
        ended(start(wish_for(tmp_path)))
    assert said == [True, False] * 2


def test_garbage_of_an_earlier_load_is_not_kept_by_the_next(checkpoints: Path) -> None:
    frozen = gc.get_freeze_count()
    for _ in range(2):  # torch is there already: what is alive now may be garbage later
        ended(start(wish_for(checkpoints / "llama")))
    assert (gc.get_freeze_count(), gc.isenabled()) == (frozen, True)


@pytest.mark.parametrize("place", [0, 40, 5000, -1])
def test_a_damaged_entry_is_deleted_and_made_again(
    checkpoints: Path, tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder = KeptFolder.open(tmp_path, PLENTY)
    assert folder is not None
    wish = wish_for(checkpoints / "llama")
    loaded = load_whole(wish)
    keep(folder, wish, key_of(wish), loaded)
    entry = folder.entry(key_of(wish))
    damaged = bytearray(entry.read_bytes())
    damaged[place] ^= 1
    entry.write_bytes(damaged)
    assert ended(read(folder, wish)) is None
    assert "of no use" in caplog.text
    assert not entry.exists()
    keep(folder, wish, key_of(wish), loaded)
    assert isinstance(ended(read(folder, wish)), Kept)


def test_an_entry_of_another_key_is_of_no_use(checkpoints: Path, folder: KeptFolder) -> None:
    wish = wish_for(checkpoints / "llama")
    keep(folder, wish, key_of(wish), load_whole(wish))
    other = dataclasses.replace(wish, quantize="int8")
    folder.entry(key_of(wish)).rename(folder.entry(key_of(other)))
    assert ended(read(folder, other)) is None
    assert not folder.entry(key_of(other)).exists()


def test_a_kept_model_serves_a_shorter_context(checkpoints: Path, folder: KeptFolder) -> None:
    """`max_model_len` 0 is what fits, which is another one with each start."""
    wish = wish_for(checkpoints / "llama", block_size=1)
    block = load_whole(wish).budget.kv_bytes_per_block
    room = {tokens: dataclasses.replace(wish, kv_bytes=tokens * block) for tokens in (60, 64, 68, 69)}
    loaded = load_whole(room[64])
    assert loaded.budget.max_model_len == 64
    keep(folder, wish, key_of(wish), loaded)
    served: dict[int, Kept] = {}
    for tokens in room:
        kept = ended(read(folder, room[tokens]))
        if isinstance(kept, Kept):
            served[tokens] = kept
    assert {tokens: kept.budget.max_model_len for tokens, kept in served.items()} == {60: 60, 64: 64}
    assert draws(served[60], 10) == draws(load_whole(room[60]), 10)
    assert folder.entry(key_of(wish)).exists()


def test_a_kept_model_is_not_made_again_for_a_little_more_memory(
    checkpoints: Path, folder: KeptFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pelton.kept.entry.TORCH_BYTES_MAX", 1 << 40)  # this process has more than a worker
    wish = wish_for(checkpoints / "llama", block_size=1, kv_bytes=0)
    block = load_whole(wish).budget.kv_bytes_per_block
    loaded = load_whole(dataclasses.replace(wish, kv_bytes=64 * block))
    keep(folder, wish, key_of(wish), loaded)
    assert isinstance(loaded.model, LanguageModel)
    sizes = loaded.model.config, loaded.shape, loaded.budget.weights_bytes, loaded.held_bytes

    def limit_for(tokens: int) -> int:
        """The least memory in which such a context fits."""
        least = plan(dataclasses.replace(wish, kv_bytes=block), *sizes, 1 << 40)
        fixed = loaded.held_bytes + least.weights_bytes
        places = range(fixed, fixed + 2 * least.activation_bytes, 64)
        return places[bisect_left(places, tokens, key=lambda limit: context(limit))]

    def context(limit: int) -> int:
        try:
            return plan(wish, *sizes, limit).max_model_len
        except LoadError:
            return 0

    # A start without PyTorch holds less, and plans as if it held as much.
    monkeypatch.setattr("pelton.kept.entry.machine.memory", lambda limit: (0, limit))
    served = {}
    for tokens in (60, 64, 66, 68, 69):
        free = dataclasses.replace(wish, memory_limit_bytes=limit_for(tokens))
        kept = ended(read(folder, free))
        served[tokens] = kept.budget.max_model_len if isinstance(kept, Kept) else None
    assert served == {60: 60, 64: 64, 66: 64, 68: 64, 69: None}
    of_this_server = dataclasses.replace(wish, memory_limit_bytes=limit_for(68), first_context=68)
    assert ended(read(folder, of_this_server)) is None, "another life of it had more"


def test_angles_that_follow_from_the_context_are_kept_for_that_alone(checkpoints: Path, folder: KeptFolder) -> None:
    wish = wish_for(checkpoints / "llama-dynamic")
    loaded = load_whole(wish)
    keep(folder, wish, key_of(wish), loaded)
    assert ended(read(folder, wish)) is not None
    less = dataclasses.replace(wish, kv_bytes=(loaded.budget.blocks_per_request - 1) * loaded.budget.kv_bytes_per_block)
    assert ended(read(folder, less)) is None


def test_what_does_not_fit_is_refused_as_when_it_is_loaded(checkpoints: Path, folder: KeptFolder) -> None:
    wish = wish_for(checkpoints / "llama")
    keep(folder, wish, key_of(wish), load_whole(wish))
    with pytest.raises(LoadError, match="--memory-limit"):
        ended(read(folder, dataclasses.replace(wish, kv_bytes=1 << 30, memory_limit_bytes=1 << 28)))


def test_starting_keeps_for_the_next_start(checkpoints: Path, tmp_path: Path) -> None:
    wish = wish_for(checkpoints / "llama", kept_folder=tmp_path / "kept", kept_bytes=PLENTY)
    assert isinstance(ended(start(wish)), Loaded)
    entry = tmp_path / "kept" / f"{key_of(wish)}.kept"
    for _ in range(1000):
        if entry.exists():
            break
        time.sleep(0.01)
    assert isinstance(ended(start(wish)), Kept)
    assert isinstance(ended(start(dataclasses.replace(wish, kept_bytes=0))), Loaded), "off is off"


def test_a_model_that_is_still_being_kept_is_gone_before_another_is_read(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = threading.Event()
    monkeypatch.setattr("pelton.loading.start.keep", lambda *_holding_it: written.wait(60))
    wish = wish_for(checkpoints / "llama", kept_folder=tmp_path / "kept", kept_bytes=PLENTY)
    first = ended(start(wish))
    assert isinstance(first, Loaded)
    model = weakref.ref(first.model)
    del first
    following = start(dataclasses.replace(wish, folder=checkpoints / "qwen3"))
    assert next(following).stage == "waiting until the model before is kept"
    assert model() is not None
    written.set()
    said = next(said for said in following if said.stage != "waiting until the model before is kept")
    assert (said.stage, model()) == ("looking for the model", None), "two do not fit"
    following.close()


def entries(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def test_the_folder_is_bounded_and_what_was_used_longest_ago_goes(tmp_path: Path) -> None:
    folder = KeptFolder.open(tmp_path, 100)
    assert folder is not None
    for at, name in enumerate(["old", "older", "new"]):
        folder.entry(name).write_bytes(bytes(30))
        os.utime(folder.entry(name), (1000 + at, 1000 + at))
    folder.use("old")
    assert folder.make_room("new key", 10)
    assert entries(tmp_path) == {"old.kept", "older.kept", "new.kept"}
    assert folder.make_room("new key", 11)
    assert entries(tmp_path) == {"old.kept", "new.kept"}
    assert not folder.make_room("new key", 101)
    assert entries(tmp_path) == {"old.kept", "new.kept"}, "nothing goes for what can never stay"


def test_what_a_worker_had_when_it_kept_a_model_bounds_no_other_start(checkpoints: Path, folder: KeptFolder) -> None:
    """It may have had another model before."""
    wish = wish_for(checkpoints / "llama")
    loaded = dataclasses.replace(load_whole(wish), held_bytes=1 << 50)
    keep(folder, wish, key_of(wish), loaded)
    limited = dataclasses.replace(wish, memory_limit_bytes=16 << 30)
    assert isinstance(ended(read(folder, limited)), Kept)


def test_what_a_start_would_not_take_is_not_kept_already(checkpoints: Path, folder: KeptFolder) -> None:
    wish = wish_for(checkpoints / "llama", max_model_len=0, kv_bytes=0)
    keep(folder, wish, key_of(wish), load_whole(dataclasses.replace(wish, kv_bytes=1 << 16)))
    assert not is_kept(folder, wish), "there is room for a longer context than it has"
    keep(folder, wish, key_of(wish), load_whole(wish))
    assert is_kept(folder, wish)
    assert isinstance(ended(read(folder, wish)), Kept)


def test_prepare_believes_what_it_has_written(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind it the model is there still, and would not fit a second time."""
    wish = wish_for(checkpoints / "llama", kept_folder=tmp_path / "kept", kept_bytes=PLENTY)
    monkeypatch.setattr("pelton.prepare.Wish", SimpleNamespace(of_request=lambda _: wish))
    monkeypatch.setattr("pelton.prepare.end_when_told", lambda: None)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO()))
    full = SimpleNamespace(memory=lambda _limit: (1 << 50, 1 << 50))
    monkeypatch.setattr("pelton.kept.entry.machine", full)
    assert prepare.main() == 0
    assert "kept: " in capsys.readouterr().out
    monkeypatch.undo()
    folder = KeptFolder.open(tmp_path / "kept", PLENTY)
    assert folder is not None
    assert is_kept(folder, wish)


def test_what_cannot_be_read_at_the_moment_stays(
    checkpoints: Path, folder: KeptFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    wish = wish_for(checkpoints / "llama")
    keep(folder, wish, key_of(wish), load_whole(wish))
    with monkeypatch.context() as patch:
        patch.setattr("pelton.kept.entry.KeptFile", SimpleNamespace(open=refuse))
        assert ended(read(folder, wish)) is None
        assert not is_kept(folder, wish)
    assert "cannot be read ([Errno 24] Too many open files): the model is loaded anew" in caplog.text
    assert isinstance(ended(read(folder, wish)), Kept)


def test_of_a_damaged_entry_and_the_one_that_replaced_it_the_first_alone_is_deleted(
    checkpoints: Path, folder: KeptFolder
) -> None:
    wish = wish_for(checkpoints / "llama")
    keep(folder, wish, key_of(wish), load_whole(wish))
    entry = folder.entry(key_of(wish))
    damaged = entry.stat()
    entry.with_suffix(".new").write_bytes(entry.read_bytes())
    entry.with_suffix(".new").rename(entry)
    folder.forget(key_of(wish), damaged)
    assert entry.exists()
    folder.forget(key_of(wish), entry.stat())
    assert not entry.exists()


def test_an_entry_that_is_written_anew_takes_its_own_place(tmp_path: Path) -> None:
    folder = KeptFolder.open(tmp_path, 100)
    assert folder is not None
    for at, name in enumerate(["mine", "other"]):
        folder.entry(name).write_bytes(bytes(50))
        os.utime(folder.entry(name), (1000 + at, 1000 + at))
    assert folder.make_room("mine", 50)
    assert entries(tmp_path) == {"mine.kept", "other.kept"}
    assert folder.make_room("mine", 51)
    assert entries(tmp_path) == {"mine.kept"}, "the other was used longest ago of those that have to go"


def test_what_others_are_writing_counts_and_is_not_written_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pelton.worker")
    folder = KeptFolder.open(tmp_path, 100)
    assert folder is not None
    folder.entry("old").write_bytes(bytes(30))
    with folder.part("theirs").open("wb") as file:
        file.truncate(60)  # the whole length, of which nothing is written yet
        fcntl.flock(file, fcntl.LOCK_EX)
        assert folder.make_room("mine", 10)
        assert folder.entry("old").exists()
        assert not folder.make_room("mine", 41)
        assert "it takes 41 bytes, others that are being kept 60; --model-cache-size is 100" in caplog.text
        assert folder.make_room("mine", 40)
        assert not folder.entry("old").exists()
        assert not folder.make_room("theirs", 1)
        assert "another process is keeping it" in caplog.text
    assert folder.make_room("theirs", 100), "who wrote it has ended"


def test_parts_of_processes_that_ended_are_deleted(tmp_path: Path) -> None:
    folder = KeptFolder.open(tmp_path, 100)
    assert folder is not None
    for path in (tmp_path / "key.0123456789abcdef.part", tmp_path / "odd.part", folder.part("dead")):
        path.touch()
    mine = folder.part("mine")
    with mine.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as `_native.keep` does
        assert folder.make_room("new key", 1)
        assert entries(tmp_path) == {mine.name}
    assert folder.make_room("new key", 1)
    assert entries(tmp_path) == set()
    assert folder.part("mine") != mine, "two processes, of two containers say, never write to one"


def test_where_there_are_no_locks_parts_are_deleted_when_they_are_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_file: object, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = KeptFolder.open(tmp_path, 100)
    assert folder is not None
    young, old = folder.part("key"), folder.part("key")
    young.touch()
    old.touch()
    os.utime(old, (time.time() - 4000, time.time() - 4000))
    assert folder.make_room("key", 1), "who wrote the young one may have ended"
    assert entries(tmp_path) == {young.name}


def test_an_entry_is_used_and_a_damaged_one_left_where_nothing_can_be_written(
    checkpoints: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is mounted to be read alone."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    folder = KeptFolder.open(tmp_path, PLENTY)
    assert folder is not None
    wish = wish_for(checkpoints / "llama")
    keep(folder, wish, key_of(wish), load_whole(wish))
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert isinstance(ended(read(folder, wish)), Kept)
    entry = folder.entry(key_of(wish))
    entry.write_bytes(entry.read_bytes()[:-1])
    assert ended(read(folder, wish)) is None
    assert f"{entry} cannot be deleted: Read-only file system" in caplog.text


def test_a_folder_at_an_entrys_place_is_no_entry(checkpoints: Path, folder: KeptFolder) -> None:
    wish = wish_for(checkpoints / "llama")
    folder.entry(key_of(wish)).mkdir()
    assert ended(read(folder, wish)) is None


def test_nothing_is_deleted_for_what_finds_no_room_in_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = KeptFolder.open(tmp_path, PLENTY)
    assert folder is not None
    folder.entry("old").write_bytes(bytes(30))
    free = SPARE_BYTES + 10
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
    assert not folder.make_room("new key", 41)
    assert entries(tmp_path) == {"old.kept"}
    assert folder.make_room("new key", 40)
    assert entries(tmp_path) == set()


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    assert KeptFolder.open(tmp_path, 100) is None
    assert "chmod 700" in caplog.text
    assert KeptFolder.open(tmp_path / "below" / "that", 100) is not None
    assert (tmp_path / "below" / "that").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    assert KeptFolder.open(tmp_path / "file" / "below", 100) is None
    assert KeptFolder.open(None, 100) is None
    assert KeptFolder.open(tmp_path, 0) is None


@pytest.mark.parametrize(
    "data",
    [
        {"dtype": "float32", "calls": [["call_back", {}]], "result": 0},
        {"dtype": "float32", "calls": [["build", {"result": 0, "lenders": []}]], "result": 0},
        {"dtype": "float32", "calls": [["__class__", {}]], "result": 0},
        {
            "dtype": "float32",
            "calls": [["embed", {"out": 0, "table": {"lent": 0, "elements": 3}, "width": 1}]],
            "result": 0,
        },
        {"dtype": "float32", "calls": [["buffer", {"each": -1, "per": "token"}]], "result": 0},
        {"dtype": "float32", "calls": [], "result": 0},
        {"dtype": "int7", "calls": [], "result": 0},
        {"calls": 3},
        [],
    ],
)
def test_what_is_no_script_is_refused(data: object) -> None:
    arena = ArenaBytes(64, 1)
    with pytest.raises(ScriptError):
        rebuild(data, lambda _: HeldBytes.zeroed(64), lambda _: pytest.fail("no weight is named"), [], arena)
