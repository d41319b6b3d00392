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

from bertworks.commands.compare.member import Done, Failure, Job, Tell, do
from bertworks.commands.compare.recipe import Comparison, MemberRecipe
from bertworks.commands.compare.standings import standings_of, told_standings
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.vocab import VocabularyRequest, learn
from bertworks.disk import write_json, write_text
from bertworks.metrics.seeds import Standing
from bertworks.parallel.machine import machine
from bertworks.reports.compare import CompareContents, markdown_of, picture_of, write_compare_report
from bertworks.text.sources import Source

# What does jobs: one after the other here, as the built-in `map` does; or somewhere else, in any order.
Mapper = Callable[[Callable[[Job], Done], Sequence[Job]], Iterable[Done]]


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """What to compare, and where to put it."""

    comparison: Comparison
    out: Path
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class CompareReport:
    """What a comparison came to. `files` are the table, the picture and the page, by what they are."""

    standings: list[Standing]
    failures: list[Failure]
    markdown: str
    files: dict[str, Path] = field(default_factory=dict)
    left: bool = False


def compare(request: CompareRequest, mapper: Mapper = map, tell: Tell = lambda told: None) -> CompareReport:
    """Do all runs, or those that are not finished, and write what they came to; after every one, what is known by then.

    What fails is told and stands in the report. `mapper` decides where jobs are done; one that does them elsewhere
    passes no words on while they run.
    """
    request.comparison.check()
    request.out.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(_with_corpus(request, tell), request)
    work = partial(do, tell=tell) if mapper is map else do
    found: list[Done] = []
    report = _written(request, found)
    for done in mapper(work, jobs):
        found.append(done)
        report = _written(request, found)
        for failure in done.failures:
            tell(f"failed: {failure.member}, seed {failure.seed}, {failure.what}: {failure.error}")
        if done.left:
            break
        tell(f"{len(found)} of {len(jobs)} done: {done.title}")
    return report


def jobs_of(comparison: Comparison, request: CompareRequest) -> list[Job]:
    """Return a job for each seed of each member that is pretrained; the first seed of all comes first."""
    assert comparison.corpus is not None
    return [
        Job(
            comparison,
            comparison.corpus,
            member.name,
            seed,
            request.out,
            member.vocabulary or comparison.corpus_vocabulary or None,
            request.device,
        )
        for seed in comparison.seeds
        for member in comparison.roots
    ]


def _with_corpus(request: CompareRequest, tell: Tell) -> Comparison:
    """Return the comparison with its corpus; where it begins with texts, vocabularies are learned and texts prepared.

    What is there already is not made again.
    """
    comparison = request.comparison
    if not comparison.texts:
        return comparison
    corpus, sources = request.out / "corpus", tuple(Source(text) for text in comparison.texts)
    places = {}
    for kind in dict.fromkeys(member.vocabulary or comparison.vocabulary.kind for member in comparison.roots):
        folder = places[kind] = request.out / "vocabularies" / kind
        if not (folder / "report.json").exists():
            tell(f"learning a vocabulary: {kind}, {comparison.vocabulary.size:,} pieces")
            learn(VocabularyRequest(sources, folder), replace(comparison.vocabulary, kind=kind))
        prepare(PrepareRequest(sources, folder, corpus))
    usual = str(places.get(comparison.vocabulary.kind, ""))
    members = tuple(_seeing(member, places, usual) for member in comparison.members)
    return replace(comparison, corpus=corpus, members=members)


def _seeing(member: MemberRecipe, places: dict[str, Path], usual: str) -> MemberRecipe:
    if member.like:
        return member
    return replace(member, vocabulary=str(places[member.vocabulary]) if member.vocabulary else usual)


def _written(request: CompareRequest, found: Sequence[Done]) -> CompareReport:
    """Write table, picture and page of what is known."""
    comparison, out = request.comparison, request.out
    standings = standings_of(comparison, found)
    failures = [failure for done in found for failure in done.failures]
    contents = CompareContents(
        title=f"Comparison {out.resolve().name}",
        standings=standings,
        tasks=[task.title for task in comparison.tasks],
        failures=[f"{one.member}, seed {one.seed}, {one.what}: {one.error}" for one in failures],
        terms=_terms(comparison),
        machine=machine(),
    )
    told = {
        "comparison": comparison.told(),
        "machine": contents.machine,
        "standings": told_standings(standings),
        "failures": contents.failures,
    }
    markdown = markdown_of(contents)
    files = {name: out / file for name, file in (("table", "compare.md"), ("figures", "compare.json"))}
    write_json(files["figures"], told)
    write_text(files["table"], markdown)
    files["picture"] = out / "compare.svg"
    write_text(files["picture"], picture_of(contents))
    files["report"] = write_compare_report(out, contents)
    return CompareReport(standings, failures, markdown, files, any(done.left for done in found))


def _terms(comparison: Comparison) -> dict[str, Any]:
    """Return what was the same for all members."""
    told: dict[str, Any] = {
        "text": str(comparison.corpus) if comparison.corpus else ", ".join(comparison.texts),
        "budget": comparison.budget or "of each recipe",
        "seeds": list(comparison.seeds),
    }
    return told | {name: value for name, value in (("all", comparison.changes), ("tuning", comparison.tuning)) if value}
