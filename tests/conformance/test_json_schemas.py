"""The public JSON-Schema-Test-Suite against the grammars: no schema is served that is not kept, and no fewer are served than before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Schemas that compile, and valid instances of theirs that can be drawn: docs/structured-output.md. More are welcome.
SERVED = {
    "draft4": (168, 422),
    "draft6": (220, 539),
    "draft7": (243, 631),
    "draft2019-09": (314, 797),
    "draft2020-12": (312, 789),
}


def test_what_is_served_is_kept(tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    command = [sys.executable, "bench/grammar/suite.py", "--documents", "4", "--random", "100", "--json", counts]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-6000:]
    drafts = json.loads(counts.read_text())["drafts"]
    served = {name: (tally["compiled"], tally["written"]) for name, tally in drafts.items() if name in SERVED}
    assert served.keys() == SERVED.keys()
    fewer = {name: (served[name], SERVED[name]) for name in SERVED if served[name] < SERVED[name]}
    assert not fewer
    assert drafts["random"]["documents"] > 200
    assert drafts["counted"]["documents"] > 200
