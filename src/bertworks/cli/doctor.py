"""`bertworks doctor`: raw text in, statistics and findings with advice out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.options import AsJson, Field, Format, Lines, Ray, Sources, Workers
from bertworks.cli.progress import show_progress
from bertworks.messages import localize

if TYPE_CHECKING:
    from rich.console import Console

    from bertworks.commands.doctor.run import Diagnosis, Finding

app = command_app()

_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


@app.command("doctor", cls=Command)
def doctor_command(
    sources: Sources,
    held_out: Annotated[
        list[str] | None, typer.Option(help="Evaluation text to look for in the sources; may be repeated.")
    ] = None,
    vocab: Annotated[
        Path | None, typer.Option(help="A vocabulary to check against the text: a folder, or a model such as en-small.")
    ] = None,
    format: Format = "auto",  # noqa: A002
    field: Field = "text",
    lines: Lines = "auto",
    workers: Workers = None,
    ray: Ray = None,
    as_json: AsJson = False,
) -> None:
    """Measure the SOURCEs and report what is wrong with them, each finding with its evidence and what to do.

    Exits with 1 if a finding is an error, so that a script can stop there.
    """
    from rich.console import Console

    from bertworks.commands.doctor.run import examine
    from bertworks.parallel.ray_pool import workers_on
    from bertworks.text.sources import ReadSettings, TextSource

    with workers_on(ray, workers) as pool, show_progress() as on_progress:
        diagnosis = examine(
            [TextSource(path) for path in sources],
            [TextSource(path) for path in held_out or []],
            vocab,
            ReadSettings(format=format, field=field, lines=lines),
            pool,
            on_progress,
        )
    if as_json:
        print(json.dumps(diagnosis.to_dict(), ensure_ascii=False))
    else:
        _show_statistics(Console(), diagnosis)
        _show_findings(Console(), diagnosis.findings)
    if any(finding.severity == "error" for finding in diagnosis.findings):
        raise typer.Exit(1)


def _show_statistics(console: Console, diagnosis: Diagnosis) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    sentences, characters = diagnosis.sentences_per_document.median, diagnosis.characters_per_sentence.median
    table.add_row(f"{diagnosis.documents:,}", localize("documents"))
    table.add_row(f"{diagnosis.sentences:,}", localize(f"sentences; median {sentences} per document"))
    table.add_row(f"{diagnosis.words:,}", localize("words"))
    table.add_row(f"{diagnosis.characters:,}", localize(f"characters; median {characters} per sentence"))
    table.add_row(f"{diagnosis.pairable_ratio:.1%}", localize("of the documents can give a next-sentence pair"))
    table.add_row(f"{diagnosis.duplicate_documents_ratio:.1%}", localize("of the documents are duplicates"))
    table.add_row(f"{diagnosis.duplicate_lines_ratio:.1%}", localize("of the long lines are duplicates"))
    table.add_row("", Text(f"{localize('languages')}: {_format_ratios(diagnosis.languages)}"))
    table.add_row("", Text(f"{localize('scripts')}: {_format_ratios(diagnosis.scripts)}"))
    if diagnosis.vocabulary:
        table.add_row(f"{diagnosis.vocabulary.unknown_ratio:.3%}", localize("of the tokens are [UNK]"))
        table.add_row(f"{diagnosis.vocabulary.tokens_per_word:.2f}", localize("tokens per word"))
    for name, count in sorted(diagnosis.cleaning.items()):
        table.add_row(f"{count:,}", Text(localize(name)))
    console.print(table)
    console.print()


def _format_ratios(ratios: Mapping[str, float]) -> str:
    items = sorted(ratios.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {ratio:.1%}" for name, ratio in items[:6] if ratio >= 0.001) or localize("none found")


def _show_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    from rich.text import Text

    if not findings:
        console.print(localize("No problems found."))
    for finding in findings:
        console.print(
            Text(localize(finding.severity), style=_STYLES[finding.severity]),
            Text(localize(finding.title), style="bold"),
        )
        console.print(Text(f"  {localize('evidence')}: {finding.evidence}"))
        console.print(Text(f"  {localize('advice')}: {finding.advice}"))
        console.print()
