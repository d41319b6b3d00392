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
from bertworks.cli.progress import watching
from bertworks.commands.doctor.run import Diagnosis, Finding, examine
from bertworks.parallel.ray_pool import workers_on
from bertworks.text.sources import ReadSettings, Source

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
    with workers_on(ray, workers) as pool, watching() as watch:
        diagnosis = examine(
            [Source(path) for path in sources],
            [Source(path) for path in held_out or []],
            vocab,
            ReadSettings(format=format, field=field, lines=lines),
            pool,
            watch,
        )
    if as_json:
        print(json.dumps(diagnosis.to_json(), ensure_ascii=False))
    else:
        _show_figures(Console(), diagnosis)
        _show_findings(Console(), diagnosis.findings)
    if any(finding.severity == "error" for finding in diagnosis.findings):
        raise typer.Exit(1)


def _show_figures(console: Console, told: Diagnosis) -> None:
    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_row(f"{told.documents:,}", "documents")
    table.add_row(f"{told.sentences:,}", f"sentences; a document has {told.sentences_per_document.median} (median)")
    table.add_row(f"{told.words:,}", "words")
    table.add_row(f"{told.characters:,}", f"characters; a sentence has {told.characters_per_sentence.median} (median)")
    table.add_row(f"{told.pairable_rate:.1%}", "of the documents can give a next-sentence pair")
    table.add_row(f"{told.duplicate_documents_rate:.1%}", "of the documents are copies of another")
    table.add_row(f"{told.duplicate_lines_rate:.1%}", "of the long lines are copies of another")
    table.add_row("", Text("languages: " + _shares(told.languages)))
    table.add_row("", Text("scripts: " + _shares(told.scripts)))
    if told.vocabulary:
        table.add_row(f"{told.vocabulary.unknown_rate:.3%}", "of the pieces are unknown to the vocabulary")
        table.add_row(f"{told.vocabulary.pieces_per_word:.2f}", "pieces per word")
    for name, count in sorted(told.cleaning.items()):
        table.add_row(f"{count:,}", Text(name))
    console.print(table)
    console.print()


def _shares(shares: Mapping[str, float]) -> str:
    items = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.1%}" for name, share in items[:6] if share >= 0.001) or "none found"


def _show_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    if not findings:
        console.print("Nothing to complain about.")
    for finding in findings:
        console.print(Text(finding.severity, style=_COLOURS[finding.severity]), Text(finding.title, style="bold"))
        console.print(Text(f"  seen: {finding.evidence}"))
        console.print(Text(f"  do:   {finding.advice}"))
        console.print()
