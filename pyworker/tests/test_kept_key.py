"""What decides whether a kept model is found: all that it was made of, and nothing else. Each wish stands in one of two lists, by its name."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pelton
import pelton_kernels
import pytest
import torch
import vector_checkpoints
from pelton.kept import key
from pelton.kept.entry import Kept, keep, read
from pelton.kept.folder import KeptFolder
from pelton.kept.key import key_of
from pelton.loading.load import Loaded, load_whole
from pelton.loading.start import start
from pelton.loading.wish import Wish
from pelton.program import Rows, run_program, small_rows
from pelton_kernels import ops
from pelton_kernels.testing import forced, isas
from plans import Admit
from safetensors.torch import load_file, save_file
from test_kept import PLENTY, ended, wish_for
from tiny_router import Request, TinyRouter


def linked(wish: Wish, aside: Path) -> Path:
    """The checkpoint's folder by another path."""
    (aside / "link").symlink_to(wish.folder)
    return aside / "link"


def copied(wish: Wish, aside: Path) -> Path:
    """What is kept, in another folder."""
    assert wish.kept_folder is not None
    return shutil.copytree(wish.kept_folder, aside / "kept")


# Wishes that change neither weights nor program, with values other than those of `wish_for`.
FREE: dict[str, tuple[object, ...]] = {
    "folder": (linked,),
    "kv_bytes": (0, 3 << 20),
    "memory_limit_bytes": (1 << 36, 1 << 40),
    "first_context": (100,),
    "threads": (0, 2),
    "slots": (3, 64),
    "token_budget": (9, 700),
    "scores": (6, 512),
    "device": ("auto",),
    "kept_folder": (copied,),
    "kept_bytes": (PLENTY // 2,),
}
# Wishes that do, or may.
WEIGHTY: dict[str, tuple[object, ...]] = {
    "dtype": ("float32", "bfloat16"),
    "kv_dtype": ("int8",),
    "max_model_len": (64, 128),
    "block_size": (16, 32),
    "quantize": ("int8", "int4", "int8-a16", "int4-a16"),
    "quantize_skip": ("none", "head,*.attention.out"),
    "model_backend": ("native", "transformers"),
    "trust_remote_code": (True,),
    "task": ("generate", "embed", "classify"),
    "pooling": ("mean", "cls", "last"),
}
NOWHERE = Path("/nowhere")  # a key needs no checkpoint
MODELS: dict[str, dict[str, object]] = {
    "llama": {},
    "gemma3": {"dtype": "bfloat16"},
    "qwen3": {"dtype": "bfloat16", "quantize": "int8", "kv_dtype": "int8"},
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Wish)])
def test_each_wish_either_changes_what_is_kept_or_does_not(name: str) -> None:
    assert (name in FREE) != (name in WEIGHTY), f"`{name}`: say in one of the lists above which it is"


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wish]:
    """A wish whose model is kept."""
    kept = {"kept_folder": tmp_path_factory.mktemp("kept"), "kept_bytes": PLENTY}
    wish = wish_for(checkpoints / request.param, **MODELS[request.param], **kept)
    folder = KeptFolder.open(wish.kept_folder, wish.kept_bytes)
    assert folder is not None
    keep(folder, wish, key_of(wish), load_whole(wish))
    yield wish
    ops.set_threads(1)
    torch.set_num_threads(1)


def logits(ready: Loaded | Kept, rows: Rows) -> torch.Tensor:
    assert ready.program is not None
    return run_program(ready.program, rows, ready.vocab)


def answers(ready: Loaded | Kept) -> list[object]:
    """Of requests that draw the likeliest tokens, draw by chance, and are scored."""
    rules = [Admit(0, logprobs=3), Admit(0, temperature=0.9, seed=5), Admit(0, score_top=3)]
    requests = [Request(rule, prompt, 9) for rule, prompt in zip(rules, ([1], list(range(40)), [2, 3, 4]), strict=True)]
    requests[2].is_scored = True
    TinyRouter(ready, seed=3).run(*requests)
    assert requests[2].scores
    return [(request.output, request.logprobs, request.scores) for request in requests]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FREE.items() for value in values])
def test_a_wish_that_changes_nothing_finds_what_is_kept_and_has_the_bits_of_a_model_loaded_with_it(
    made: Wish, tmp_path: Path, name: str, value: object
) -> None:
    if name == "device" and torch.cuda.is_available():
        pytest.skip("here `auto` is the card, whose models are not kept")
    said = {name: value(made, tmp_path) if callable(value) else value}
    assert said[name] != getattr(made, name)
    other = dataclasses.replace(made, **said)  # type: ignore[arg-type]
    kept, fresh = ended(start(other)), load_whole(other)
    assert isinstance(kept, Kept), "it was loaded anew"
    assert (kept.slots, kept.token_budget) == (fresh.slots, fresh.token_budget) == (other.slots, other.token_budget)
    taken = {} if other.memory_limit_bytes else {"memory_limit_bytes": 0}  # what is free changes from moment to moment
    assert dataclasses.replace(kept.budget, **taken) == dataclasses.replace(fresh.budget, **taken)
    step = small_rows((7,), fresh.kv, 512).step
    rows = Rows(step, torch.arange(7, dtype=torch.int32))  # behind each token
    assert torch.equal(logits(kept, rows), logits(fresh, rows))
    assert answers(kept) == answers(fresh)


def test_fewer_tokens_of_a_step_make_texts_of_one_step_shorter(tmp_path: Path) -> None:
    folder, model = KeptFolder(tmp_path, PLENTY), vector_checkpoints.write(tmp_path / "model", "bert")
    large, small = (wish_for(model, task="embed", kv_bytes=0, token_budget=tokens) for tokens in (600, 100))
    keep(folder, large, key_of(large), load_whole(large))
    assert key_of(small) == key_of(large), "which it will be is known only when the memory is planned"
    kept, fresh = ended(read(folder, small)), load_whole(small)
    assert isinstance(kept, Kept)
    assert kept.budget.max_model_len == fresh.budget.max_model_len == 100
    keep(folder, small, key_of(small), fresh)
    assert ended(read(folder, large)) is None


@pytest.mark.parametrize("name", WEIGHTY)
def test_a_wish_that_may_change_weights_or_program_has_another_key_for_each_value(tmp_path: Path, name: str) -> None:
    wish = wish_for(tmp_path)
    wishes = [wish, *(dataclasses.replace(wish, **{name: value}) for value in WEIGHTY[name])]  # type: ignore[arg-type]
    assert len({key_of(other) for other in wishes}) == len(wishes)


@pytest.fixture
def any_class() -> Iterator[None]:
    """The processor's class may be forced."""
    yield
    ops.force_isa(None)


@pytest.mark.usefixtures("any_class")
def test_each_class_of_processors_has_a_key_of_its_own(tmp_path: Path) -> None:
    wish, keys = wish_for(tmp_path), list[str]()
    for isa in isas():
        with forced(isa):
            keys.append(key_of(wish))
    assert len(set(keys)) == len(keys)
    assert key_of(wish) == keys[0], "the best is taken by itself"


@pytest.mark.usefixtures("any_class")
def test_what_another_class_packed_is_not_used(checkpoints: Path, tmp_path: Path) -> None:
    if len(ops.available_isas()) == 1:
        pytest.skip("this machine has one class only")
    folder, wish = KeptFolder(tmp_path, PLENTY), wish_for(checkpoints / "llama")
    keep(folder, wish, key_of(wish), load_whole(wish))
    ops.force_isa(ops.available_isas()[-1])
    assert ended(read(folder, wish)) is None
    ops.force_isa(None)
    assert isinstance(ended(read(folder, wish)), Kept), "it is there as before"


def keeping_its_time(change: Callable[[Path], object]) -> Callable[[Path], None]:
    def changed(path: Path) -> None:
        time = path.stat().st_mtime_ns
        change(path)
        os.utime(path, ns=(time, time))

    return changed


def moved_in_time(by: int) -> Callable[[Path], None]:
    return lambda path: os.utime(path, ns=(0, path.stat().st_mtime_ns + by))


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def replace(path: Path) -> None:
    """By another file, of other bytes and the same size."""
    path.with_suffix(".new").write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    path.with_suffix(".new").replace(path)


# Of a file, one after the other.
CHANGES: dict[str, Callable[[Path], object]] = {
    "touched": moved_in_time(1),
    "of an earlier day": moved_in_time(-(86_400 * 10**9)),
    "longer, of the same time": keeping_its_time(grow),
    "renamed": lambda path: path.rename(path.with_name(f"z{path.name}")).rename(path.with_name(f"y{path.name}")),
    "as before": lambda path: path.with_name(f"y{path.name}").rename(path),
    "gone": Path.unlink,
}


def copy_over(path: Path) -> None:
    """Of other bytes and the same size, into the file that is there."""
    path.write_bytes(bytes(byte ^ 2 for byte in path.read_bytes()))


REPLACED = {
    "replaced by one of the same size and time": keeping_its_time(replace),  # as rsync does
    "copied over, with the same size and time": keeping_its_time(copy_over),  # as cp -p does
}


def check_changes(wish: Wish, file: Path, changes: dict[str, Callable[[Path], object]]) -> None:
    before = key_of(wish)
    for name, change in changes.items():
        change(file)
        after = key_of(wish)
        assert after != before, f"{file.name}: {name}"
        assert after == key_of(wish)
        before = after


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "vocab.txt",
        "model.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "modules.json",
        "1_Pooling/config.json",
        "2_Dense/model.safetensors",
    ],
)
def test_each_file_of_a_checkpoint_that_loading_reads_counts(tmp_path: Path, name: str) -> None:
    wish, file = wish_for(tmp_path), tmp_path / name
    without = key_of(wish)
    file.parent.mkdir(exist_ok=True)
    file.write_text(name)
    assert key_of(wish) != without
    check_changes(wish, file, REPLACED | CHANGES)
    assert key_of(wish) == without


def test_what_cannot_be_looked_at_does_not_end_the_start(tmp_path: Path) -> None:
    wish, keys = wish_for(tmp_path), [key_of(wish_for(tmp_path))]
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx/config.json").symlink_to("/nowhere")
    keys.append(key_of(wish))
    (tmp_path / "extra.json").mkdir()
    keys.append(key_of(wish))
    os.mkfifo(tmp_path / "model.safetensors")
    keys.append(key_of(wish))
    assert len(set(keys)) == len(keys)


def test_what_loading_never_reads_of_a_checkpoint_does_not_count(tmp_path: Path) -> None:
    wish = wish_for(tmp_path)
    before = key_of(wish)
    for name in ("README.md", "pytorch_model.bin", "chat_template.jinja", "merges.txt"):
        (tmp_path / name).write_text(name)
    assert key_of(wish) == before


def test_weights_that_were_replaced_are_those_of_the_next_start(checkpoints: Path, tmp_path: Path) -> None:
    model = shutil.copytree(checkpoints / "llama", tmp_path / "model")
    folder, wish = KeptFolder(tmp_path, PLENTY), wish_for(model)
    old = load_whole(wish)
    keep(folder, wish, key_of(wish), old)
    file = model / "model.safetensors"
    size, weights = file.stat().st_size, load_file(file)
    weights["model.norm.weight"] *= -1
    save_file(weights, file, {"format": "pt"})
    assert file.stat().st_size == size
    assert ended(read(folder, wish)) is None
    new = load_whole(wish)
    keep(folder, wish, key_of(wish), new)
    kept = ended(read(folder, wish))
    assert isinstance(kept, Kept)
    assert answers(kept) == answers(new) != answers(old)


def test_what_was_replaced_while_it_was_loaded_is_not_kept(
    checkpoints: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = shutil.copytree(checkpoints / "llama", tmp_path / "model")
    wish = wish_for(model, kept_folder=tmp_path / "kept", kept_bytes=PLENTY)
    loading = start(wish)
    while next(loading).stage != "reading weights":
        pass
    other = load_file(model / "model.safetensors")
    other["model.norm.weight"] *= -1
    save_file(other, model / "new", {"format": "pt"})
    (model / "new").replace(model / "model.safetensors")
    old = ended(loading)
    for thread in threading.enumerate():
        if thread.name == "keep":
            thread.join()
    assert f"not kept: files in {model}, or Pelton's own, changed while it was loaded" in caplog.text
    assert not list((tmp_path / "kept").iterdir())
    new = ended(start(wish))
    assert isinstance(old, Loaded)
    assert isinstance(new, Loaded)
    assert answers(new) == answers(load_whole(wish)) != answers(old)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of Pelton's packages, at which the key looks instead of the packages."""
    for package in (pelton, pelton_kernels):
        root, name = Path(str(package.__file__)).parent, package.__name__
        own = shutil.copytree(root, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
        monkeypatch.setattr(key, name, SimpleNamespace(__name__=name, __file__=str(own / "__init__.py")))
    return tmp_path


def test_every_file_of_code_counts(code: Path) -> None:
    wish = wish_for(NOWHERE)
    files = [path for path in code.rglob("*") if path.suffix in {".py", ".so"}]
    named = {str(path.relative_to(code)) for path in files}
    assert {"pelton/_pelton.abi3.so", "pelton/loading/weights.py", "pelton_kernels/_native.abi3.so"} <= named
    assert {"pelton/models/llama.py", "pelton_kernels/ops/dispatch.py"} <= named
    keys = {key_of(wish)}
    for file in files:
        CHANGES["touched"](file)
        found = key_of(wish)
        assert found not in keys, file
        keys.add(found)


@pytest.mark.parametrize(
    "name", ["pelton/layers/linear.py", "pelton/_pelton.abi3.so", "pelton_kernels/_native.abi3.so"]
)
def test_each_change_of_a_file_of_code_counts(code: Path, name: str) -> None:
    wish = wish_for(NOWHERE)
    moved = {
        "in another folder": lambda path: path.rename(code / "pelton/models" / path.name),
        "back": lambda path: (code / "pelton/models" / path.name).rename(path),
    }
    check_changes(wish, code / name, moved | CHANGES)
    new = code / name.partition("/")[0] / "new" / "module.py"
    new.parent.mkdir()
    check_changes(wish, new, {"there": Path.touch, "gone": Path.unlink})


def test_code_in_another_place_or_order_and_what_is_no_code_do_not_count(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = wish_for(NOWHERE)
    installed = key_of(wish)
    request.getfixturevalue("code")
    assert key_of(wish) == installed, "the same files, with their times, elsewhere"
    listed = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda path, pattern: reversed(list(listed(path, pattern))))
    assert key_of(wish) == installed, "in the order of another disk"
    (tmp_path / "pelton/__pycache__").mkdir()
    for name in ("README.md", "py.typed", "__pycache__/batch.cpython-311.pyc"):
        (tmp_path / "pelton" / name).write_text(name)
    assert key_of(wish) == installed


def test_another_version_of_torch_and_of_the_format_have_other_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    wish = wish_for(tmp_path)
    keys = [key_of(wish)]
    for version in ({"torch": "0.1"}.__getitem__, none):  # tables hold the sines of one version
        monkeypatch.setattr("importlib.metadata.version", version)
        keys.append(key_of(wish))
    monkeypatch.setattr(key, "VERSION", key.VERSION + 1)
    keys.append(key_of(wish))
    assert len(set(keys)) == len(keys)
