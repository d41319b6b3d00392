"""The reliability page: a folder of campaign records (JSON) and the old page in, docs/reliability.md out.

    python release/reliability.py FOLDER [--page docs/reliability.md]

`make soak` runs it. Records of one campaign with several seeds or parts are added up. A campaign without a record keeps
its row of the old page. The text around the table is in release/reliability.md.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TEMPLATE = Path(__file__).with_suffix(".md")
TABLE = "<!-- table -->"
HEADER = "| fault | tries | outcome | run | independent campaign |\n|---|---|---|---|---|"
NOT_RUN = "not run"

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A row: what is done, and what an independent campaign found before."""

    text: str
    earlier: str = "–"


_KILLED = "killed (SIGKILL) at random moments, then run again: "
_FULL = "disk full at a random size, then run again with space: "
_SHARED = "0 of 41 kills of pretrain, finetune, compare and torchrun changed a bit"
FAULTS = {
    "kill/prepare": Fault(f"{_KILLED}`prepare`", "10 of 20 kills in the first 30 ms could never continue"),
    "kill/vocab": Fault(f"{_KILLED}`vocab`"),
    "kill/pretrain": Fault(f"{_KILLED}`pretrain`", _SHARED),
    "kill/adapt": Fault(f"{_KILLED}`adapt`"),
    "kill/finetune": Fault(f"{_KILLED}`finetune`", _SHARED),
    "kill/sweep": Fault(f"{_KILLED}`finetune --sweep`"),
    "kill/compare": Fault(f"{_KILLED}`compare`", _SHARED),
    "kill/embed": Fault(f"{_KILLED}`embed`"),
    "kill/export": Fault(f"{_KILLED}`export --to onnx`"),
    "kill/bundle": Fault(f"{_KILLED}`bundle`", "files of the killed one stayed in the next (no figure)"),
    "kill/sharded": Fault(f"{_KILLED}`torchrun … pretrain --shard`, two processes", _SHARED),
    "kill/ray prepare": Fault(f"{_KILLED}`prepare --ray local`"),
    "kill/ray finetune": Fault(f"{_KILLED}`finetune --seeds 2 --ray local`"),
    "full disk/prepare": Fault(f"{_FULL}`prepare`", "could never continue after a disk of 40 kB"),
    **{
        f"full disk/{name}": Fault(f"{_FULL}{command}")
        for name, command in (
            ("vocab", "`vocab`"),
            ("pretrain", "`pretrain`"),
            ("adapt", "`adapt`"),
            ("finetune", "`finetune`"),
            ("sweep", "`finetune --sweep`"),
            ("compare", "`compare`"),
            ("embed", "`embed`"),
            ("export", "`export --to onnx`"),
            ("export openvino", "`export --to openvino`"),
            ("export int8", "`export --to int8`"),
            ("package", "`package`"),
            ("word-vectors", "`word-vectors train`"),
            ("bundle", "`bundle`"),
        )
    },
    "damage/corpus shards": Fault(
        "flipped bit, zeroed block or lost end in a corpus shard, then `pretrain`",
        "of 16 flipped or zeroed shards 6 trained to other weights, 5 ended in tracebacks",
    ),
    "damage/corpus manifests": Fault("the same in a manifest or the vocabulary of a corpus, then `pretrain`"),
    "damage/checkpoints": Fault("the same in a file of the last checkpoint, then the run is resumed"),
    "damage/model.safetensors": Fault("the same in `model.safetensors`, then loaded", "12 of 20 flips passed"),
    "damage/model.onnx": Fault("the same in `model.onnx`, then loaded", "4 of 10 flips passed"),
    "damage/vocabulary": Fault("the same in a vocabulary, then loaded", "swapped lines passed (no figure)"),
    "damage/config.json": Fault("the same in `config.json`, then loaded", "another layer count passed (no figure)"),
    "damage/bertworks.json": Fault(
        "the same in `bertworks.json`, then loaded", "another temperature passed (no figure)"
    ),
    "damage/bundle": Fault("the same in any file of a bundle, then opened"),
    "damage/foreign weights": Fault("the same in `model.safetensors` of a foreign folder, which has no hashes"),
    "requests/hostile": Fault(
        "malformed heads and bodies, connections that leave, stay silent or send slowly",
        "4,500 malformed requests: no crash, no leak; 2,317 clients that left counted as status 500",
    ),
    "requests/generated": Fault("requests generated from the OpenAPI description, allowed and not allowed"),
    "requests/stops": Fault("SIGTERM under load", "1 of 4 runs reset a connection"),
    "load": Fault("64 clients with mixed tasks, cancels and two model reloads"),
    "fuzz/readers": Fault("mutated files for every reader"),
    "container": Fault("the container is built and run read-only, as no user"),
}


def read_records(folder: Path) -> dict[str, list[Record]]:
    """Return the records in a folder by the name of their campaign."""
    records: dict[str, list[Record]] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        records.setdefault(record["name"], []).append(record)
    return records


def render(records: Mapping[str, Sequence[Record]], template: str, old_page: str = "") -> str:
    """Return the page: the template with the rows of these records, and the old rows of all other campaigns."""
    rows = [
        row_of(fault, records[name]) if name in records else old_row(old_page, fault) for name, fault in FAULTS.items()
    ]
    return template.replace(TABLE, "\n".join([HEADER, *rows]))


def row_of(fault: Fault, records: Sequence[Record]) -> str:
    """Return the row of a campaign; its records are added up."""
    outcomes: Counter[str] = Counter()
    for record in records:
        for outcome, count in record["outcomes"].items():
            outcomes[outcome] += count
    tries, planned = outcomes.total(), max(record["planned"] or 0 for record in records)
    text = f"{tries:,}" if tries >= planned else f"{tries:,} of {planned:,} planned"
    counts = [f"{count:,} {outcome}" for outcome, count in outcomes.items()]
    details = list(dict.fromkeys(record.get("details", "") for record in records))
    return line_of(fault, text, "; ".join(filter(None, [", ".join(counts), *details])), run_of(records))


def run_of(records: Sequence[Record]) -> str:
    """Return when, with which version and seeds, and for how long the campaign ran."""
    last = max(records, key=lambda record: str(record["date"]))
    seeds = ", ".join(map(str, sorted({record["seed"] for record in records})))
    minutes = sum(record["minutes"] for record in records)
    return f"{last['version']}, {last['date']}, seed {seeds}, {minutes:.1f} min"


def line_of(fault: Fault, *cells: str) -> str:
    return f"| {fault.text} | {' | '.join(cell.replace('|', '/') for cell in cells)} | {fault.earlier} |"


def old_row(page: str, fault: Fault) -> str:
    """Return the row of a campaign on the old page, or one that says that it was not run."""
    rows = [line for line in page.splitlines() if line.startswith(f"| {fault.text} |")]
    return rows[0] if rows else line_of(fault, "0", NOT_RUN, "–")


def write_page(folder: Path, page: Path) -> None:
    """Renew the rows of the campaigns that have records in a folder."""
    old_page = page.read_text(encoding="utf-8") if page.exists() else ""
    page.write_text(render(read_records(folder), TEMPLATE.read_text(encoding="utf-8"), old_page), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "reliability.md")
    options = parser.parse_args()
    write_page(options.folder, options.page)


if __name__ == "__main__":
    main()
