"""Compare members on equal terms: a Comparison in; every run done, a table (Markdown, JSON) and a picture out.

The folder that leaves holds `runs/` (see `member`), `compare.json`, `compare.md`, `compare.svg` and `report.html`; and
where the comparison began with texts, their `corpus/` and `vocabularies/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bertworks.commands.compare.member import CompareJob, EventCallback, Failure, JobResult, run_job
from bertworks.commands.compare.recipe import CompareRecipe, MemberRecipe
from bertworks.commands.compare.standings import collect_member_results, member_results_to_json
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.vocab import VocabularyRequest, train_vocabulary
from bertworks.disk import write_json, write_text
from bertworks.metrics.seeds import MemberResult
from bertworks.parallel.machine import machine_info
from bertworks.reports.compare import CompareContents, markdown_of, picture_of, write_compare_report
from bertworks.text.sources import TextSource

# What does jobs: one after the other here, as the built-in `map` does; or somewhere else, in any order.
Mapper = Callable[[Callable[[CompareJob], JobResult], Sequence[CompareJob]], Iterable[JobResult]]


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """What to compare, and where to put it."""

    comparison: CompareRecipe
    output: Path
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class CompareReport:
    """What a comparison came to. `files` are the table, the picture and the page, by what they are."""

    member_results: list[MemberResult]
    failures: list[Failure]
    markdown: str
    files: dict[str, Path] = field(default_factory=dict)
    is_interrupted: bool = False


def compare(
    request: CompareRequest, mapper: Mapper = map, on_event: EventCallback = lambda told: None
) -> CompareReport:
    """Do all runs, or those that are not finished, and write what they came to; after every one, what is known by then.

    What fails is told and stands in the report. `mapper` decides where jobs are done; one that does them elsewhere
    passes no words on while they run.
    """
    request.comparison.check()
    request.output.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(_prepare_corpus(request, on_event), request)
    work = partial(run_job, on_event=on_event) if mapper is map else run_job
    found: list[JobResult] = []
    report = _write_report(request, found)
    for done in mapper(work, jobs):
        found.append(done)
        report = _write_report(request, found)
        for failure in done.failures:
            on_event(f"failed: {failure.member}, seed {failure.seed}, {failure.stage}: {failure.error}")
        if done.is_interrupted:
            break
        on_event(f"{len(found)} of {len(jobs)} done: {done.title}")
    return report


def jobs_of(comparison: CompareRecipe, request: CompareRequest) -> list[CompareJob]:
    """Return a job for each seed of each member that is pretrained; the first seed of all comes first."""
    assert comparison.corpus is not None
    return [
        CompareJob(
            comparison,
            comparison.corpus,
            member.name,
            seed,
            request.output,
            member.vocabulary or comparison.corpus_vocabulary or None,
            request.device,
        )
        for seed in comparison.seeds
        for member in comparison.pretrained_members
    ]


def _prepare_corpus(request: CompareRequest, on_event: EventCallback) -> CompareRecipe:
    """Return the comparison with its corpus; where it begins with texts, vocabularies are learned and texts prepared.

    What is there already is not made again.
    """
    comparison = request.comparison
    if not comparison.texts:
        return comparison
    corpus, sources = request.output / "corpus", tuple(TextSource(text) for text in comparison.texts)
    places = {}
    for kind in dict.fromkeys(
        member.vocabulary or comparison.vocabulary.kind for member in comparison.pretrained_members
    ):
        folder = places[kind] = request.output / "vocabularies" / kind
        if not (folder / "report.json").exists():
            on_event(f"learning a vocabulary: {kind}, {comparison.vocabulary.vocab_size:,} pieces")
            train_vocabulary(VocabularyRequest(sources, folder), replace(comparison.vocabulary, kind=kind))
        prepare(PrepareRequest(sources, folder, corpus))
    usual = str(places.get(comparison.vocabulary.kind, ""))
    members = tuple(_with_vocabulary_folder(member, places, usual) for member in comparison.members)
    return replace(comparison, corpus=corpus, members=members)


def _with_vocabulary_folder(
    member: MemberRecipe, vocabulary_folders: dict[str, Path], default_vocabulary: str
) -> MemberRecipe:
    if member.base_member:
        return member
    return replace(
        member, vocabulary=str(vocabulary_folders[member.vocabulary]) if member.vocabulary else default_vocabulary
    )


def _write_report(request: CompareRequest, results: Sequence[JobResult]) -> CompareReport:
    """Write table, picture and page of what is known."""
    comparison, out = request.comparison, request.output
    standings = collect_member_results(comparison, results)
    failures = [failure for done in results for failure in done.failures]
    contents = CompareContents(
        title=f"Comparison {out.resolve().name}",
        results=standings,
        tasks=[task.title for task in comparison.tasks],
        failures=[f"{one.member}, seed {one.seed}, {one.stage}: {one.error}" for one in failures],
        shared_settings=_shared_settings(comparison),
        machine=machine_info(),
    )
    told = {
        "comparison": comparison.to_dict(),
        "machine": contents.machine,
        "standings": member_results_to_json(standings),
        "failures": contents.failures,
    }
    markdown = markdown_of(contents)
    files = {name: out / file for name, file in (("table", "compare.md"), ("figures", "compare.json"))}
    write_json(files["figures"], told)
    write_text(files["table"], markdown)
    files["picture"] = out / "compare.svg"
    write_text(files["picture"], picture_of(contents))
    files["report"] = write_compare_report(out, contents)
    return CompareReport(standings, failures, markdown, files, any(done.is_interrupted for done in results))


def _shared_settings(comparison: CompareRecipe) -> dict[str, Any]:
    """Return what was the same for all members."""
    told: dict[str, Any] = {
        "text": str(comparison.corpus) if comparison.corpus else ", ".join(comparison.texts),
        "budget": comparison.budget or "of each recipe",
        "seeds": list(comparison.seeds),
    }
    return told | {
        name: value for name, value in (("all", comparison.overrides), ("tuning", comparison.finetune)) if value
    }
