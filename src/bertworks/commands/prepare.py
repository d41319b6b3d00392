"""Prepare a corpus: sources and a vocabulary in, a corpus folder out; killed anywhere, it continues."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import bertworks
from bertworks.corpus.corpus import MANIFEST
from bertworks.corpus.deduplication import find_duplicates
from bertworks.corpus.shard import SPLITS
from bertworks.corpus.units import (
    PrepareJob,
    PrepareSettings,
    effective_held_out_ratio,
    finalize_unit,
    is_read,
    read_unit,
    tokenize_unit,
)
from bertworks.disk import check_on_disk, read_json, sha256, write_json
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.parallel.workers import Workers, num_cores, run_units
from bertworks.progress import Progress, ProgressCallback
from bertworks.text.document import Counts
from bertworks.text.sources import Block, ReadSettings, TextSource, blocks, inventory, total_bytes
from bertworks.vocabulary.tokenizer import WORD_RULES, Tokenizer

FORMAT = "bertworks corpus 1"


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """What to prepare. `words` says who finds words in text with ideographs: "jieba", or "pieces" for nobody."""

    sources: tuple[TextSource, ...]
    vocabulary: Path
    output: Path
    settings: PrepareSettings = field(default_factory=PrepareSettings)
    read_settings: ReadSettings = field(default_factory=ReadSettings)
    words: str = "jieba"


def prepare(
    request: PrepareRequest, workers: Workers | None = None, watch: ProgressCallback = lambda progress: None
) -> Path:
    """Bring the corpus folder into the requested state and return it. What is already done is not done again.

    `workers` are so many processes of this machine (all cores by default), or those of a cluster.
    """
    check_on_disk(request.output)
    request = _with_held_out_sources(request)
    tokenizer = Tokenizer.load(request.vocabulary)
    key = tokens_key(tokenizer, request.words)
    out = request.output.absolute()  # workers may run elsewhere
    job = PrepareJob(out, request.sources, request.settings, out / "tokens" / key, request.words, key)
    workers = workers or num_cores()
    if (out / MANIFEST).exists():
        _add_tokens(request, job, tokenizer, workers, watch)
    else:
        _begin(request, job, tokenizer)
        units = _read_or_discard(request, job, workers, watch)
        rate = _deduplicate(job, units)
        _finalize_all(job, units, rate, workers, watch)
        _finish(request, job, units, tokenizer)
    _remove_work_files(job)
    return request.output


def _remove_work_files(job: PrepareJob) -> None:
    """Remove what only work in progress needs: the working folder, and files that a killed worker left half written."""
    for folder in (job.folder, job.folder / "text", job.vocabulary):
        for path in folder.glob(".*.part"):
            path.unlink(missing_ok=True)
    shutil.rmtree(job.work_folder, ignore_errors=True)


def tokens_key(tokenizer: Tokenizer, words: str) -> str:
    """Return the name under which a corpus folder keeps the pieces of a vocabulary."""
    if words not in WORD_RULES:
        raise SettingsError(f"there is no word rule '{words}'; choose one of: {', '.join(WORD_RULES)}")
    return f"{tokenizer.hash}-{words}"


def verify(folder: Path, watch: ProgressCallback = lambda progress: None) -> int:
    """Check every file of a corpus folder against its hash; return how many are right, or raise for the first wrong."""
    manifest = read_json(folder / MANIFEST, "a prepared corpus (see `bertworks prepare`)")
    files = [(folder / shard["file"], shard["sha256"]) for shard in manifest["shards"]]
    for key in manifest["tokens"]:
        pieces = folder / "tokens" / key
        told = read_json(pieces / MANIFEST, "the pieces of a prepared corpus")
        files += [(pieces / shard["file"], shard["sha256"]) for shard in told["shards"]]
        if Tokenizer.load(pieces).hash != told["vocabulary"]:
            raise FolderError(
                f"{pieces} holds another vocabulary than was written; delete {folder} and prepare it again"
            )
    for number, (path, expected) in enumerate(files, 1):
        if not path.is_file():
            raise FolderError(f"{path} is missing; delete {folder} and prepare it again")
        if sha256(path) != expected:
            raise FolderError(
                f"{path} is not what was written (its sha256 differs); delete {folder} and prepare it again"
            )
        watch(Progress("verifying", number, len(files), "files"))
    return len(files)


def _with_held_out_sources(request: PrepareRequest) -> PrepareRequest:
    """Sources of their own for the held-out split leave the others to training.

    They go first, because of equal documents the first stays: training must not see a copy of what is held out.
    """
    if any(source.split for source in request.sources):
        sources = tuple(sorted(request.sources, key=lambda source: source.split != "held-out"))
        return replace(request, sources=sources, settings=replace(request.settings, held_out_ratio=0.0))
    return request


def _begin(request: PrepareRequest, job: PrepareJob, tokenizer: Tokenizer) -> None:
    """Write down what is going to be done, or find that it is what was begun before."""
    if not request.sources:
        raise InputError(f"{job.folder} is not a prepared corpus yet, so there must be a SOURCE to prepare it from")
    plan = _plan(request, job)
    path = job.work_folder / "plan.json"
    if path.exists():
        begun = read_json(path, "the plan of a preparation")
        if begun != plan:
            different = ", ".join(name for name in plan if begun.get(name) != plan[name])
            raise FolderError(
                f"{job.folder} holds an unfinished preparation of another run (different: {different}); finish it with "
                f"its own command, delete the folder, or choose another one with --out"
            )
        return
    if job.folder.exists() and (not job.folder.is_dir() or any(job.folder.iterdir())):
        raise FolderError(f"{job.folder} already holds something else; choose an empty or new folder with --out")
    tokenizer.save(job.vocabulary)
    write_json(path, plan)


def _plan(request: PrepareRequest, job: PrepareJob) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "sources": _source_entries(request),
        "files": inventory(request.sources),
        "settings": asdict(request.settings),
        "reading": asdict(request.read_settings),
        "vocabulary": job.key,
    }


def _read_or_discard(request: PrepareRequest, job: PrepareJob, workers: Workers, watch: ProgressCallback) -> list[int]:
    """First stage; if the request turns out to be wrong before a unit is finished, the folder is left empty.

    Otherwise the mended command would be refused as another run.
    """
    try:
        return _read_all(request, job, workers, watch)
    except (InputError, SettingsError):
        if not any(job.work_folder.glob("[0-9]*.json")):
            _discard(job)
        raise


def _discard(job: PrepareJob) -> None:
    """Leave the folder as if nothing had been begun there."""
    for made in (job.vocabulary.parent, job.folder / "text", job.work_folder):
        shutil.rmtree(made, ignore_errors=True)


def _read_all(request: PrepareRequest, job: PrepareJob, workers: Workers, watch: ProgressCallback) -> list[int]:
    """First stage for all blocks; return the numbers of their units."""
    total = total_bytes(request.sources)
    units: list[int] = []
    num_done = 0

    def unfinished() -> Iterator[Block]:
        nonlocal num_done
        for block in blocks(request.sources, request.read_settings):
            units.append(block.number)
            if is_read(block, job):
                num_done += block.num_bytes
            else:
                yield block

    for num_bytes in run_units(functools.partial(_read_block, job=job), unfinished(), workers):
        num_done += num_bytes
        watch(Progress("reading", num_done, total, "bytes"))
    return units


def _read_block(block: Block, job: PrepareJob) -> int:
    read_unit(block, job)
    return block.num_bytes


def _deduplicate(job: PrepareJob, units: list[int]) -> float:
    """Find duplicates over all units; return the rate at which documents are held out."""
    path = job.work_folder / "compared.json"
    if not path.exists():
        told = [read_json(job.work_file(unit, "json"), "a unit of a preparation") for unit in units]
        found = [job.work_file(unit, "fingerprints.npy") for unit in units]
        num_copies = find_duplicates(found, job.work_folder, job.settings.max_repeats)
        write_json(path, {"held_out_ratio": effective_held_out_ratio(told, job.settings.held_out_ratio, num_copies)})
    return float(read_json(path, "the comparison of a preparation")["held_out_ratio"])


def _finalize_all(
    job: PrepareJob, units: list[int], held_out_ratio: float, workers: Workers, watch: ProgressCallback
) -> None:
    """Second stage for all units."""
    left = [unit for unit in units if not job.work_file(unit, "settled.json").exists()]
    work = functools.partial(finalize_unit, job=job, held_out_ratio=held_out_ratio)
    for number, _ in enumerate(run_units(work, left, workers if len(left) > 1 else 1), 1):
        watch(Progress("settling", len(units) - len(left) + number, len(units), "parts"))


def _finish(request: PrepareRequest, job: PrepareJob, units: list[int], tokenizer: Tokenizer) -> None:
    """Write the manifests; the one of the folder last, since it says that all is there."""
    settled = [read_json(job.work_file(unit, "settled.json"), "a unit of a preparation") for unit in units]
    counts = sum((Counts(unit["counts"]) for unit in settled), Counts())
    full = [unit for unit in settled if unit["shard"]]
    if not full:
        told = "; ".join(f"{name}: {count}" for name, count in counts.items()) or "there was no text"
        _discard(job)  # other filters are another run, and would be refused
        raise InputError(f"no document is left to prepare ({told}); look at the sources with `bertworks doctor`")
    shards = [
        {
            "file": f"text/{unit['unit']:06d}.jsonl",
            "sha256": unit["text_sha256"],
            "source": unit["source"],
            **{name: unit["shard"][name] for name in ("documents", "sentences", "characters")},
        }
        for unit in full
    ]
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "made_by": f"bertworks {bertworks.__version__}",
        "sources": _source_entries(request),
        "files": _stable_inventory(request.sources),
        "settings": asdict(request.settings),
        "reading": asdict(request.read_settings),
        "counts": dict(sorted(counts.items())),
        **{name: sum(s[name] for s in shards) for name in ("documents", "sentences", "characters")},
        "shards": shards,
        "tokens": [],
    }
    lines = [
        {
            "unit": unit["unit"],
            "regions": unit["shard"]["regions"],
            "counts": unit["shard"]["token_counts"],
            "tokens_sha256": unit["tokens_sha256"],
        }
        for unit in full
    ]
    _finish_tokens(job, tokenizer, manifest, lines)


def _add_tokens(
    request: PrepareRequest, job: PrepareJob, tokenizer: Tokenizer, workers: Workers, watch: ProgressCallback
) -> None:
    """Cut the text of a finished corpus with one more vocabulary, unless it has been already."""
    manifest = read_json(job.folder / MANIFEST, "a prepared corpus")
    if request.sources:
        _check_same(request, manifest, job.folder)
    if job.key in manifest["tokens"]:
        return
    tokenizer.save(job.vocabulary)
    units = [int(Path(shard["file"]).stem) for shard in manifest["shards"]]
    work = functools.partial(_tokenize_once, job=job)
    lines = []
    for line in run_units(work, units, workers if len(units) > 1 else 1):
        lines.append(line)
        watch(Progress("cutting", len(lines), len(units), "parts"))
    _finish_tokens(job, tokenizer, manifest, sorted(lines, key=lambda line: int(line["unit"])))


def _tokenize_once(unit: int, job: PrepareJob) -> dict[str, Any]:
    """Cut a unit, or find its line where an earlier run left it."""
    path = job.work_file(unit, f"{job.key}.json")
    if not path.exists():
        write_json(path, tokenize_unit(unit, job))
    line: dict[str, Any] = read_json(path, "a unit of a preparation")
    return line


def _check_same(request: PrepareRequest, manifest: dict[str, Any], folder: Path) -> None:
    wanted = {
        "sources": _source_entries(request),
        "files": _stable_inventory(request.sources),
        "settings": asdict(request.settings),
        "reading": asdict(request.read_settings),
    }
    different = ", ".join(name for name, value in wanted.items() if manifest.get(name) != value)
    if different:
        raise FolderError(
            f"{folder} is a corpus of another run (different: {different}); choose another folder with --out, or leave "
            f"the sources out to add a vocabulary to the text that is there"
        )


def _finish_tokens(
    job: PrepareJob, tokenizer: Tokenizer, manifest: dict[str, Any], lines: list[dict[str, Any]]
) -> None:
    """Write the manifest of the pieces, then name them in the folder's."""
    weights = {shard["file"]: manifest["sources"][shard["source"]]["weight"] for shard in manifest["shards"]}
    shards = [
        {
            "file": f"{line['unit']:06d}.safetensors",
            "sha256": line["tokens_sha256"],
            "weight": weights[f"text/{line['unit']:06d}.jsonl"],
            "regions": line["regions"],
        }
        for line in lines
    ]
    totals = {
        split: {
            kind: {n: sum(s["regions"][split][kind][n] for s in shards) for n in ("tokens", "sentences", "documents")}
            for kind in ("pairable", "single_sentence")
        }
        for split in SPLITS
    }
    told = {
        "vocabulary": tokenizer.hash,
        "size": tokenizer.vocab_size,
        "kind": tokenizer.kind,
        "words": job.words,
        "counts": dict(sum((Counts(line["counts"]) for line in lines), Counts())),
        "splits": totals,
        "shards": shards,
    }
    write_json(job.vocabulary / MANIFEST, told)
    manifest["tokens"] = [*manifest["tokens"], job.key]
    write_json(job.folder / MANIFEST, manifest)


def _source_entries(request: PrepareRequest) -> list[dict[str, Any]]:
    """Return the sources as a manifest tells them: "notes/" and "notes" are one folder."""
    return [asdict(source) | {"path": source.path.rstrip("/") or "/"} for source in request.sources]


def _stable_inventory(sources: tuple[TextSource, ...]) -> dict[str, int | str]:
    """Names and sizes only: a copy of the same files has other times, but gives the same corpus."""
    return {name: value for name, value in inventory(sources).items() if name != "times"}
