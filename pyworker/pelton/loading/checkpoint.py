"""A folder in Hugging Face layout: its config, and its tensors in one file or in shards.

Never here: what the tensors are for. Only names inside the folder are opened, whatever an index says.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from pelton.loading.error import LoadError
from pelton.loading.files import size_of
from pelton.loading.safetensors import SafetensorsFile, Stored

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ENDING = ".safetensors"
JSON_BYTES_MAX = 64 << 20  # an index of a model of 10,000 tensors has about 1 MB


class Checkpoint:
    """Config, and name -> tensor. `modules`: files whose tensors are named by a folder and a dot before their own names."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        files: list[SafetensorsFile],
        modules: dict[str, SafetensorsFile] | None = None,
    ) -> None:
        self.folder = folder
        self.config = config
        self._homes = {name: file for file in files for name in file.tensors}
        self._own = {
            f"{module}.{name}": (file, name) for module, file in (modules or {}).items() for name in file.tensors
        }
        if len(self._homes) != sum(len(file.tensors) for file in files):
            twice = next(name for file in files for name in file.tensors if self._homes[name] is not file)
            raise LoadError(f"`{twice}` stands in two files of {folder}")

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Reads the config and all headers, no weights."""
        config = read_config(folder)
        return cls(folder, config, [SafetensorsFile.open(folder / name) for name in _file_names(folder)])

    def with_modules(self, modules: Sequence[str]) -> Checkpoint:
        """With the tensors of these folders within."""
        files = {module: SafetensorsFile.open(self.folder / module / SINGLE) for module in modules}
        return Checkpoint(self.folder, self.config, list(dict.fromkeys(self._homes.values())), files)

    def without(self, ignored: Sequence[str]) -> Checkpoint:
        """As if the tensors whose names fit one of these patterns were not there."""
        rest = copy.copy(self)
        rest._homes = {
            name: file for name, file in self._homes.items() if not any(re.fullmatch(rule, name) for rule in ignored)
        }
        return rest

    def with_endings(self, endings: Mapping[str, str]) -> Checkpoint:
        """With other ends of names: some checkpoints are older than what their tensors are called today."""
        renamed = {
            name.removesuffix(old) + new: (file, name)
            for name, file in self._homes.items()
            for old, new in endings.items()
            if name.endswith(old)
        }
        old_names = {name for _, name in renamed.values()}
        rest = copy.copy(self)
        rest._homes = {name: file for name, file in self._homes.items() if name not in old_names}
        rest._own = self._own | renamed
        return rest

    @property
    def tensors(self) -> dict[str, Stored]:
        """What is stored, by name."""
        return {name: file.tensors[own] for name, (file, own) in self._all()}

    def _all(self) -> Iterator[tuple[str, tuple[SafetensorsFile, str]]]:
        yield from ((name, (file, name)) for name, file in self._homes.items())
        yield from self._own.items()

    def _home(self, name: str) -> tuple[SafetensorsFile, str]:
        return self._own[name] if name in self._own else (self._homes[name], name)

    def tensor(self, name: str) -> Tensor:
        """A view of the mapped file."""
        file, own = self._home(name)
        return file.tensor(own)

    def forget(self, name: str) -> None:
        """Gives the pages of a tensor back to the machine."""
        file, own = self._home(name)
        file.forget(own)


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json."""
    if not folder.is_dir():
        raise LoadError(f"{folder} is no folder; give one in Hugging Face layout (config.json and safetensors files)")
    config: dict[str, Any] = read_json(folder / "config.json", hook=_with_floats)
    return config


def _with_floats(value: dict[str, Any]) -> Any:
    """transformers 5 writes what JSON has no number for as `{"__float__": "Infinity"}`."""
    is_float = value.keys() == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN")
    return float(value["__float__"]) if is_float else value


def read_json(path: Path, kind: type = dict, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """A JSON object, or list, of bounded size. `hook`: what each object in it becomes."""
    try:
        if size_of(path) > JSON_BYTES_MAX:
            raise LoadError(f"{path} has more than {JSON_BYTES_MAX} bytes")
        value = json.loads(path.read_text(encoding="utf-8"), object_hook=hook)
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, kind):
        raise LoadError(f"{path} is no JSON {'object' if kind is dict else 'list'}")
    return value


def _file_names(folder: Path) -> list[str]:
    if (folder / SINGLE).exists():
        return [SINGLE]
    if (folder / INDEX).exists():
        places = read_json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise LoadError(f"{folder / INDEX} has no `weight_map`")
        names = sorted({str(name) for name in places.values()})
        for name in names:
            # "../elsewhere.safetensors", or what no file can be called.
            if Path(name).name != name or not name.endswith(ENDING) or not name.isprintable():
                raise LoadError(f"{folder / INDEX} names {name!r}, which is not a {ENDING} file of its folder")
        return names
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for path in folder.glob(pattern))
    beside = f" There is {others[0]}, but only safetensors files are read: convert it." if others else ""
    raise LoadError(f"{folder} has neither {SINGLE} nor {INDEX}.{beside}")
