"""Compare models under equal conditions: a CompareRecipe in; all runs, a table (Markdown, JSON) and a chart out.

The output folder holds `runs/` (see `member`), `compare.json`, `compare.md`, `compare.svg` and `report.html`; and where
the comparison starts from texts, their `corpus/` and `vocabularies/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bertworks.commands.compare.member import CompareJob, EventCallback, Failure, JobResult, run_job
from bertworks.commands.compare.recipe import CompareRecipe, MemberRecipe
from bertworks.commands.compare.results import collect_member_results, member_results_to_json
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.vocab import VocabularyRequest, train_vocabulary
from bertworks.disk import write_json, write_text
from bertworks.folder_lock import lock_folder
from bertworks.metrics.seeds import MemberResult
from bertworks.parallel.machine import machine_info
from bertworks.reports.compare import CompareContents, markdown_of, score_plot, write_compare_report
from bertworks.text.sources import TextSource

# Runs jobs: the built-in `map` one after another in this process, a worker pool elsewhere and in any order.
Mapper = Callable[[Callable[[CompareJob], JobResult], Sequence[CompareJob]], Iterable[JobResult]]


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """What to compare, and the output folder."""

    comparison: CompareRecipe
    output: Path
    device: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """The outcome of a comparison. `files` are those written: table, json, chart and report."""

    member_results: list[MemberResult]
    failures: list[Failure]
    markdown: str
    files: dict[str, Path] = field(default_factory=dict)
    is_interrupted: bool = False


def compare(
    request: CompareRequest, mapper: Mapper = map, on_event: EventCallback = lambda event: None
) -> CompareReport:
    """Run all jobs that are not finished yet, and rewrite the report after each of them.

    A failed run is reported and does not end the others. Jobs that `mapper` runs in other processes emit no events.
    """
    request.comparison.check()
    with lock_folder(request.output):
        return _compare(request, mapper, on_event)


def _compare(request: CompareRequest, mapper: Mapper, on_event: EventCallback) -> CompareReport:
    jobs = jobs_of(_prepare_corpus(request, on_event), request)
    work = partial(run_job, on_event=on_event) if mapper is map else run_job
    results: list[JobResult] = []
    report = _write_report(request, results)
    for result in mapper(work, jobs):
        results.append(result)
        report = _write_report(request, results)
        for failure in result.failures:
            on_event(f"failed: {failure.member}, seed {failure.seed}, {failure.stage}: {failure.error}")
        if result.is_interrupted:
            break
        on_event(f"{len(results)} of {len(jobs)} done: {result.title}")
    return report


def jobs_of(comparison: CompareRecipe, request: CompareRequest) -> list[CompareJob]:
    """Return a job for each pretrained member and seed; the first seed of all members comes first."""
    assert comparison.corpus is not None
    return [
        CompareJob(
            comparison=comparison,
            corpus=comparison.corpus,
            member=member.name,
            seed=seed,
            output=request.output,
            vocabulary=member.vocabulary or comparison.corpus_vocabulary or None,
            device=request.device,
        )
        for seed in comparison.seeds
        for member in comparison.pretrained_members
    ]


def _prepare_corpus(request: CompareRequest, on_event: EventCallback) -> CompareRecipe:
    """Return the comparison with its corpus. One that starts from texts trains vocabularies and prepares the texts.

    What exists already is not built again.
    """
    comparison = request.comparison
    if not comparison.texts:
        return comparison
    corpus, sources = request.output / "corpus", tuple(TextSource(text) for text in comparison.texts)
    folders = {}
    for kind in dict.fromkeys(
        member.vocabulary or comparison.vocabulary.kind for member in comparison.pretrained_members
    ):
        folder = folders[kind] = request.output / "vocabularies" / kind
        if not (folder / "report.json").exists():
            on_event(f"training a vocabulary: {kind}, {comparison.vocabulary.vocab_size:,} tokens")
            train_vocabulary(VocabularyRequest(sources, folder), replace(comparison.vocabulary, kind=kind))
        prepare(PrepareRequest(sources=sources, vocabulary=folder, output=corpus))
    default = str(folders.get(comparison.vocabulary.kind, ""))
    members = tuple(_with_vocabulary_folder(member, folders, default) for member in comparison.members)
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
    """Write table, JSON, chart and HTML page of the results so far."""
    comparison, output = request.comparison, request.output
    member_results = collect_member_results(comparison, results)
    failures = [failure for result in results for failure in result.failures]
    contents = CompareContents(
        title=f"Comparison {output.resolve().name}",
        results=member_results,
        tasks=[task.title for task in comparison.tasks],
        failures=[f"{failure.member}, seed {failure.seed}, {failure.stage}: {failure.error}" for failure in failures],
        shared_settings=_shared_settings(comparison),
        machine=machine_info(),
    )
    markdown = markdown_of(contents)
    files = {"table": output / "compare.md", "json": output / "compare.json", "chart": output / "compare.svg"}
    write_json(
        files["json"],
        {
            "comparison": comparison.to_dict(),
            "machine": contents.machine,
            "results": member_results_to_json(member_results),
            "failures": contents.failures,
        },
    )
    write_text(files["table"], markdown)
    write_text(files["chart"], score_plot(contents))
    files["report"] = write_compare_report(output, contents)
    return CompareReport(
        member_results=member_results,
        failures=failures,
        markdown=markdown,
        files=files,
        is_interrupted=any(result.is_interrupted for result in results),
    )


def _shared_settings(comparison: CompareRecipe) -> dict[str, Any]:
    """Return the settings that all members share."""
    settings: dict[str, Any] = {
        "text": str(comparison.corpus) if comparison.corpus else ", ".join(comparison.texts),
        "budget": comparison.budget or "of each recipe",
        "seeds": list(comparison.seeds),
    }
    shared = {"pretrain": comparison.pretrain, "finetune": comparison.finetune}
    return settings | {name: table for name, table in shared.items() if table}
