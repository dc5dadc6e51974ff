"""`python -m pelton.prepare`: loads what the `LoadRequest` on standard input says, and keeps it for the starts to come. Called by `pelton prepare`."""

from __future__ import annotations

import logging
import sys

from pelton.command_line import end_when_told
from pelton.kept.entry import is_kept, keep
from pelton.kept.key import key_of
from pelton.loading.error import LoadError
from pelton.loading.start import is_for_cpu, kept_folder
from pelton.loading.wish import Wish
from pelton.progress import Progress
from pelton.rpc.worker_pb2 import LoadRequest


def main() -> int:
    """0: it is kept now; 1: it is not, and the lines above say why."""
    end_when_told()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    wish = Wish.of_request(LoadRequest.FromString(sys.stdin.buffer.read()))
    folder = kept_folder(wish)
    if folder is None:
        of_card = "models on cards are not kept; --device cpu keeps this one for the processor"
        why = "models are kept in a folder of one's own alone" if is_for_cpu(wish) else of_card
        print(f"pelton prepare: {why}", file=sys.stderr)
        return 1
    key = key_of(wish)
    path = folder.entry(key)
    if is_kept(folder, wish):
        folder.use(key)
        print(f"kept already: {path}")
        return 0
    try:
        with Progress("loading", shown=True, of_bytes=True) as bar:
            bar.show(0, 0)
            from pelton.loading.load import load  # imports torch

            loading = load(wish)
            while True:
                try:
                    said = next(loading)
                except StopIteration as end:
                    loaded = end.value
                    break
                bar.show(said.done, said.total, said.stage)
    except LoadError as error:
        print(f"pelton prepare: {error}", file=sys.stderr)
        return 1
    if not keep(folder, wish, key, loaded):
        print("pelton prepare: the model is not kept; each start loads it anew", file=sys.stderr)
        return 1
    print(f"kept: {path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
