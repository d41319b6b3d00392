"""`bertworks doctor`: look at text before hours are spent on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertworks.cli.options import Field, Format, Lines, Ray, Sources, Workers
from bertworks.cli.progress import show_progress
from bertworks.commands.doctor.run import Diagnosis, Finding, examine
from bertworks.parallel.ray_pool import workers_on
from bertworks.text.sources import ReadSettings, TextSource

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


@app.command()
def doctor(
    sources: Sources,
    held_out: Annotated[list[str] | None, typer.Option(help="Text that training must not see: is it there?")] = None,
    vocab: Annotated[Path | None, typer.Option(help="The vocabulary you mean to use: does it fit?")] = None,
    format: Format = "auto",  # noqa: A002
    field: Field = "text",
    lines: Lines = "auto",
    workers: Workers = None,
    ray: Ray = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one line of JSON.")] = False,
) -> None:
    """Measure the SOURCEs and report what is wrong with them, each finding with its evidence and what to do.

    Exits with 1 if a finding is an error, so that a script can stop there.
    """
    with workers_on(ray, workers) as pool, show_progress() as watch:
        diagnosis = examine(
            [TextSource(path) for path in sources],
            [TextSource(path) for path in held_out or []],
            vocab,
            ReadSettings(format=format, field=field, lines=lines),
            pool,
            watch,
        )
    if as_json:
        print(json.dumps(diagnosis.to_dict(), ensure_ascii=False))
    else:
        _show_statistics(Console(), diagnosis)
        _show_findings(Console(), diagnosis.findings)
    if any(finding.severity == "error" for finding in diagnosis.findings):
        raise typer.Exit(1)


def _show_statistics(console: Console, diagnosis: Diagnosis) -> None:
    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_row(f"{diagnosis.documents:,}", "documents")
    table.add_row(
        f"{diagnosis.sentences:,}", f"sentences; a document has {diagnosis.sentences_per_document.median} (median)"
    )
    table.add_row(f"{diagnosis.words:,}", "words")
    table.add_row(
        f"{diagnosis.characters:,}", f"characters; a sentence has {diagnosis.characters_per_sentence.median} (median)"
    )
    table.add_row(f"{diagnosis.pairable_ratio:.1%}", "of the documents can give a next-sentence pair")
    table.add_row(f"{diagnosis.duplicate_documents_ratio:.1%}", "of the documents are copies of another")
    table.add_row(f"{diagnosis.duplicate_lines_ratio:.1%}", "of the long lines are copies of another")
    table.add_row("", Text("languages: " + _format_ratios(diagnosis.languages)))
    table.add_row("", Text("scripts: " + _format_ratios(diagnosis.scripts)))
    if diagnosis.vocabulary:
        table.add_row(f"{diagnosis.vocabulary.unknown_ratio:.3%}", "of the pieces are unknown to the vocabulary")
        table.add_row(f"{diagnosis.vocabulary.tokens_per_word:.2f}", "pieces per word")
    for name, count in sorted(diagnosis.cleaning.items()):
        table.add_row(f"{count:,}", Text(name))
    console.print(table)
    console.print()


def _format_ratios(ratios: Mapping[str, float]) -> str:
    items = sorted(ratios.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.1%}" for name, share in items[:6] if share >= 0.001) or "none found"


def _show_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    if not findings:
        console.print("Nothing to complain about.")
    for finding in findings:
        console.print(Text(finding.severity, style=_COLOURS[finding.severity]), Text(finding.title, style="bold"))
        console.print(Text(f"  seen: {finding.evidence}"))
        console.print(Text(f"  do:   {finding.advice}"))
        console.print()
