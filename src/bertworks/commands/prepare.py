"""Prepare a corpus: sources and a vocabulary in, a corpus folder out; an interrupted run resumes."""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import bertworks
from bertworks.corpus.deduplication import find_duplicates
from bertworks.corpus.manifest import MANIFEST, read_manifest, read_tokens_manifest
from bertworks.corpus.shard import REGIONS, SPLITS
from bertworks.corpus.text_shard import read_text
from bertworks.corpus.units import (
    PrepareJob,
    PrepareSettings,
    effective_held_out_ratio,
    finalize_unit,
    has_other_files,
    is_read,
    read_unit,
    tokenize_unit,
)
from bertworks.disk import check_on_disk, read_json, write_json
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.folder_lock import lock_folder, remove_dead_lock
from bertworks.integrity.hashing import MISSING, UNREADABLE, FileHash, FileProblem, FileVerification
from bertworks.parallel.workers import Workers, num_cores, run_units
from bertworks.progress import Progress, ProgressCallback
from bertworks.reading import convert_paths
from bertworks.text.document import Counts
from bertworks.text.languages import languages_in
from bertworks.text.sources import Block, ReadSettings, TextSource, blocks, inventory, total_bytes
from bertworks.vocabulary.tokenizer import WORD_RULES, Tokenizer

FORMAT = "bertworks corpus 1"
# The languages in the manifest are those of the beginnings of so many documents of so many shards.
_NUM_SAMPLED_SHARDS, _NUM_SAMPLED_DOCUMENTS, _SAMPLE_CHARACTERS = 100, 20, 1_000
_SECONDS_PER_REPORT = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRequest:
    """What to prepare. `word_rule` is a key of WORD_RULES: how words are found in text with ideographs."""

    sources: tuple[TextSource, ...]
    vocabulary: Path
    output: Path
    settings: PrepareSettings = field(default_factory=PrepareSettings)
    read_settings: ReadSettings = field(default_factory=ReadSettings)
    word_rule: str = "jieba"

    def __post_init__(self) -> None:
        convert_paths(self, "vocabulary", "output")


def prepare(
    request: PrepareRequest, workers: Workers | None = None, watch: ProgressCallback = lambda progress: None
) -> Path:
    """Prepare the corpus folder and return it; completed work is not repeated.

    `workers` is a number of processes (all cores by default) or a pool on a cluster.
    """
    check_on_disk(request.output)
    request = _with_held_out_sources(request)
    tokenizer = Tokenizer.load(request.vocabulary)
    key = tokens_key(tokenizer, request.word_rule)
    folder = request.output.absolute()  # workers may have another working directory
    job = PrepareJob(
        folder=folder,
        sources=request.sources,
        settings=request.settings,
        vocabulary=folder / "tokens" / key,
        word_rule=request.word_rule,
        key=key,
    )
    if _is_complete(request, job):
        remove_dead_lock(folder)
        return request.output
    with lock_folder(folder):
        _prepare(request, job, tokenizer, workers or num_cores(), watch)
        _remove_work_files(job)
    return request.output


def _prepare(
    request: PrepareRequest, job: PrepareJob, tokenizer: Tokenizer, workers: Workers, watch: ProgressCallback
) -> None:
    if (job.folder / MANIFEST).exists():
        _add_tokens(request, job, tokenizer, workers, watch)
        return
    _begin(request, job, tokenizer)
    units = _read_or_discard(request, job, workers, watch)
    held_out_ratio = _deduplicate(job, units)
    _finalize_all(job, units, held_out_ratio, workers, watch)
    _finish(request, job, units, tokenizer)


def _is_complete(request: PrepareRequest, job: PrepareJob) -> bool:
    """Return whether the folder holds all that is asked for, so that nothing is written; it may be read-only."""
    if not (job.folder / MANIFEST).exists() or job.work_folder.exists():
        return False
    manifest = read_manifest(job.folder)
    if request.sources:
        _check_same(request, manifest, job.folder)
    return job.key in manifest["tokens"]


def _remove_work_files(job: PrepareJob) -> None:
    """Remove the work folder and incomplete files of killed workers."""
    for folder in (job.folder, job.folder / "text", job.vocabulary):
        for path in folder.glob(".*.part"):
            path.unlink(missing_ok=True)
    shutil.rmtree(job.work_folder, ignore_errors=True)


def tokens_key(tokenizer: Tokenizer, word_rule: str) -> str:
    """Return the name of the folder with the tokens of a vocabulary."""
    if word_rule not in WORD_RULES:
        raise SettingsError(f"there is no word rule '{word_rule}'; choose one of: {', '.join(WORD_RULES)}")
    return f"{tokenizer.hash}-{word_rule}"


def verify(folder: Path, watch: ProgressCallback = lambda progress: None) -> int:
    """Compare every file of a corpus folder with its hash, remembered or not; return the number of files."""
    manifest = read_manifest(folder)
    hashes = {folder: {shard["file"]: FileHash(shard["sha256"]) for shard in manifest["shards"]}}
    for key in manifest["tokens"]:
        tokens_folder = folder / "tokens" / key
        tokens_manifest = read_tokens_manifest(folder, key, manifest)
        hashes[tokens_folder] = {shard["file"]: FileHash(shard["sha256"]) for shard in tokens_manifest["shards"]}
        if Tokenizer.load(tokens_folder).hash != tokens_manifest["vocabulary"]:
            raise FolderError(
                f"{tokens_folder} has another vocabulary than was written; delete {folder} and prepare it again"
            )
    num_files, num_done = sum(map(len, hashes.values())), 0
    for parent, expected in hashes.items():
        verification = FileVerification(parent, expected, use_memory=False)
        while not verification.wait(_SECONDS_PER_REPORT):
            watch(Progress("verifying", num_done + verification.num_verified, num_files, "files"))
        num_done += verification.num_verified
        watch(Progress("verifying", num_done, num_files, "files"))
        for problem in verification.problems:
            raise FolderError(_describe_problem(parent / problem.name, problem, folder))
    return num_files


def _describe_problem(path: Path, problem: FileProblem, folder: Path) -> str:
    if problem.kind == UNREADABLE:
        return f"{path} cannot be read: {problem.detail}"
    reason = "is missing" if problem.kind == MISSING else "was changed after it was written (its sha256 differs)"
    return f"{path} {reason}; delete {folder} and prepare it again"


def _with_held_out_sources(request: PrepareRequest) -> PrepareRequest:
    """If there are sources for the held-out split, nothing is held out from the others.

    Held-out sources come first: of equal documents the first is kept, so that no copy of one is trained on.
    """
    if any(source.split for source in request.sources):
        sources = tuple(sorted(request.sources, key=lambda source: source.split != "held-out"))
        return replace(request, sources=sources, settings=replace(request.settings, held_out_ratio=0.0))
    return request


def _begin(request: PrepareRequest, job: PrepareJob, tokenizer: Tokenizer) -> None:
    """Write the plan of a new preparation, or check that it matches the one to resume."""
    if not request.sources:
        raise InputError(f"{job.folder} is not a prepared corpus yet, so at least one SOURCE is required")
    plan = _plan(request, job)
    if job.plan_file.exists():
        existing = read_json(job.plan_file, "the plan of a preparation")
        if existing != plan:
            differences = ", ".join(name for name in plan if existing.get(name) != plan[name])
            raise FolderError(
                f"{job.folder} holds an unfinished preparation with different {differences}; finish it with its own "
                f"command, delete the folder, or choose another one with --output"
            )
    elif has_other_files(job):
        raise FolderError(f"{job.folder} already holds something else; choose an empty or new folder with --output")
    else:
        _discard(job)
        write_json(job.plan_file, plan)  # before anything else: by its work folder a killed preparation is recognized
    tokenizer.save(job.vocabulary)


def _plan(request: PrepareRequest, job: PrepareJob) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "sources": _source_entries(request),
        "files": inventory(request.sources),
        "settings": asdict(request.settings),
        "read_settings": asdict(request.read_settings),
        "vocabulary": job.key,
    }


def _read_or_discard(request: PrepareRequest, job: PrepareJob, workers: Workers, watch: ProgressCallback) -> list[int]:
    """First stage. If it fails because of the request before any unit is complete, the folder is emptied.

    Otherwise the corrected command would be rejected as a different preparation.
    """
    try:
        return _read_all(request, job, workers, watch)
    except (InputError, SettingsError):
        if not any(job.work_folder.glob("[0-9]*.json")):
            _discard(job)
        raise


def _discard(job: PrepareJob) -> None:
    """Remove everything that a preparation wrote: its plan first, for without it the rest is never continued."""
    job.plan_file.unlink(missing_ok=True)
    for folder in (job.vocabulary.parent, job.folder / "text", job.work_folder):
        shutil.rmtree(folder, ignore_errors=True)


def _read_all(request: PrepareRequest, job: PrepareJob, workers: Workers, watch: ProgressCallback) -> list[int]:
    """Run the first stage on all blocks; return their unit numbers."""
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
    """Find the duplicates of all units; return the effective held-out ratio."""
    path = job.work_folder / "duplicates.json"
    if not path.exists():
        results = [read_json(job.work_file(unit, "json"), "a unit of a preparation") for unit in units]
        fingerprints = [job.work_file(unit, "fingerprints.npy") for unit in units]
        num_copies = find_duplicates(fingerprints, job.work_folder, job.settings.max_repeats)
        write_json(path, {"held_out_ratio": effective_held_out_ratio(results, job.settings.held_out_ratio, num_copies)})
    return float(read_json(path, "the deduplication of a preparation")["held_out_ratio"])


def _finalize_all(
    job: PrepareJob, units: list[int], held_out_ratio: float, workers: Workers, watch: ProgressCallback
) -> None:
    """Run the second stage on all units."""
    remaining = [unit for unit in units if not job.work_file(unit, "final.json").exists()]
    work = functools.partial(finalize_unit, job=job, held_out_ratio=held_out_ratio)
    for number, _ in enumerate(run_units(work, remaining, workers if len(remaining) > 1 else 1), 1):
        watch(Progress("deduplicating", len(units) - len(remaining) + number, len(units), "parts"))


def _finish(request: PrepareRequest, job: PrepareJob, units: list[int], tokenizer: Tokenizer) -> None:
    """Write the manifests; the one of the folder last, because it marks the corpus as complete."""
    final = [read_json(job.work_file(unit, "final.json"), "a unit of a preparation") for unit in units]
    counts = sum((Counts(unit["counts"]) for unit in final), Counts())
    non_empty = [unit for unit in final if unit["shard"]]
    if not non_empty:
        summary = "; ".join(f"{name}: {count}" for name, count in counts.items()) or "there was no text"
        _discard(job)  # so that other filters are not rejected as a different preparation
        raise InputError(f"no document is left to prepare ({summary}); examine the sources with `bertworks doctor`")
    shards = [
        {
            "file": f"text/{unit['unit']:06d}.jsonl",
            "sha256": unit["text_sha256"],
            "source": unit["source"],
            **{name: unit["shard"][name] for name in ("documents", "sentences", "characters")},
        }
        for unit in non_empty
    ]
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "made_by": f"bertworks {bertworks.__version__}",
        "sources": _source_entries(request),
        "files": _stable_inventory(request.sources),
        "settings": asdict(request.settings),
        "read_settings": asdict(request.read_settings),
        "counts": dict(sorted(counts.items())),
        **{name: sum(s[name] for s in shards) for name in ("documents", "sentences", "characters")},
        "languages": languages_in(_sample_texts(job, [unit["unit"] for unit in non_empty])),
        "shards": shards,
        "tokens": [],
    }
    entries = [
        {
            "unit": unit["unit"],
            "regions": unit["shard"]["regions"],
            "counts": unit["shard"]["token_counts"],
            "tokens_sha256": unit["tokens_sha256"],
        }
        for unit in non_empty
    ]
    _finish_tokens(job, tokenizer, manifest, entries)


def _sample_texts(job: PrepareJob, units: Sequence[int]) -> Iterator[str]:
    """Yield the beginnings of the first documents of each of some evenly spaced shards."""
    for unit in units[:: max(1, len(units) // _NUM_SAMPLED_SHARDS)]:
        for document, _ in itertools.islice(read_text(job.text_shard(unit)), _NUM_SAMPLED_DOCUMENTS):
            yield document.text[:_SAMPLE_CHARACTERS]


def _add_tokens(
    request: PrepareRequest, job: PrepareJob, tokenizer: Tokenizer, workers: Workers, watch: ProgressCallback
) -> None:
    """Tokenize the text of a finished corpus with another vocabulary, unless that is done."""
    manifest = read_manifest(job.folder)
    if request.sources:
        _check_same(request, manifest, job.folder)
    if job.key in manifest["tokens"]:  # only the work folder was left
        return
    tokenizer.save(job.vocabulary)
    units = [(int(Path(shard["file"]).stem), shard["sha256"]) for shard in manifest["shards"]]
    work = functools.partial(_tokenize_once, job=job)
    entries = []
    for entry in run_units(work, units, workers if len(units) > 1 else 1):
        entries.append(entry)
        watch(Progress("tokenizing", len(entries), len(units), "parts"))
    _finish_tokens(job, tokenizer, manifest, sorted(entries, key=lambda entry: int(entry["unit"])))


def _tokenize_once(unit_and_hash: tuple[int, str], job: PrepareJob) -> dict[str, Any]:
    """Tokenize a unit whose text has the given hash, or return its entry from an interrupted run."""
    unit, text_hash = unit_and_hash
    path = job.work_file(unit, f"{job.key}.json")
    if not path.exists():
        write_json(path, tokenize_unit(unit, text_hash, job))
    entry: dict[str, Any] = read_json(path, "a unit of a preparation")
    return entry


def _check_same(request: PrepareRequest, manifest: dict[str, Any], folder: Path) -> None:
    expected = {
        "sources": _source_entries(request),
        "files": _stable_inventory(request.sources),
        "settings": asdict(request.settings),
        "read_settings": asdict(request.read_settings),
    }
    differences = ", ".join(name for name, value in expected.items() if manifest.get(name) != value)
    if differences:
        raise FolderError(
            f"{folder} is a corpus with different {differences}; choose another folder with --output, or omit the "
            f"sources to add a vocabulary to its text"
        )


def _finish_tokens(
    job: PrepareJob, tokenizer: Tokenizer, manifest: dict[str, Any], entries: list[dict[str, Any]]
) -> None:
    """Write the manifest of the tokens, then add its key to the manifest of the folder."""
    weights = {shard["file"]: manifest["sources"][shard["source"]]["weight"] for shard in manifest["shards"]}
    shards = [
        {
            "file": f"{entry['unit']:06d}.safetensors",
            "sha256": entry["tokens_sha256"],
            "weight": weights[f"text/{entry['unit']:06d}.jsonl"],
            "regions": entry["regions"],
        }
        for entry in entries
    ]
    totals = {
        split: {
            kind: {n: sum(s["regions"][split][kind][n] for s in shards) for n in ("tokens", "sentences", "documents")}
            for kind in REGIONS
        }
        for split in SPLITS
    }
    tokens_manifest = {
        "vocabulary": tokenizer.hash,
        "size": tokenizer.vocab_size,
        "kind": tokenizer.kind,
        "words": job.word_rule,
        "counts": dict(sum((Counts(entry["counts"]) for entry in entries), Counts())),
        "splits": totals,
        "shards": shards,
    }
    write_json(job.vocabulary / MANIFEST, tokens_manifest)
    manifest["tokens"] = [*manifest["tokens"], job.key]
    write_json(job.folder / MANIFEST, manifest)


def _source_entries(request: PrepareRequest) -> list[dict[str, Any]]:
    """Return the sources as in the manifest: "notes/" and "notes" are one folder."""
    return [asdict(source) | {"path": source.path.rstrip("/") or "/"} for source in request.sources]


def _stable_inventory(sources: tuple[TextSource, ...]) -> dict[str, int | str]:
    """Return names and sizes only: copies of the files have other times, but yield the same corpus."""
    return {name: value for name, value in inventory(sources).items() if name != "times"}
