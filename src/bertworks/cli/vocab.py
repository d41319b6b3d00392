"""`bertworks vocab`: learn a vocabulary from text, or extend one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from bertworks.cli.options import Field, Format, Ray, Sources, Workers
from bertworks.cli.progress import show_progress
from bertworks.commands import vocab as vocabularies
from bertworks.parallel.ray_pool import workers_on
from bertworks.text.sources import ReadSettings, TextSource
from bertworks.vocabulary.algorithms import KINDS
from bertworks.vocabulary.training import VocabularySettings


class _TrainByDefault(TyperGroup):
    """`vocab SOURCE…` means `vocab train SOURCE…`: only `extend` has to be said."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args.insert(0, "train")
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_TrainByDefault,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Learn a vocabulary: `vocab SOURCE… --out FOLDER` (see `vocab train --help`), or extend one: `vocab extend`.",
)

Output = Annotated[Path, typer.Option(help="The folder to write the vocabulary to.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one line of JSON.")]


@app.command()
def train(
    sources: Sources,
    output: Output,
    size: Annotated[int, typer.Option(help="Pieces, special ones included.")] = 30_000,
    kind: Annotated[str, typer.Option(help=f"One of: {', '.join(KINDS)}.")] = "wordpiece",
    cased: Annotated[bool, typer.Option("--cased", help="Tell capital letters from small ones.")] = False,
    min_count: Annotated[int, typer.Option(help="What occurs less often gets no piece.")] = 2,
    num_unused: Annotated[int, typer.Option(help="Free slots for `vocab extend` (wordpiece).")] = 0,
    format: Format = "auto",  # noqa: A002
    field: Field = "text",
    workers: Workers = None,
    ray: Ray = None,
    as_json: AsJson = False,
) -> None:
    """Learn a vocabulary from the SOURCEs and report how well it covers text it has not seen."""
    settings = VocabularySettings(kind, size, cased, min_count, num_unused)
    request = _request(sources, output, format, field)
    with workers_on(ray, workers) as pool, show_progress() as watch:
        report = vocabularies.train_vocabulary(request, settings, pool, watch)
    _show(report, output, as_json)


@app.command()
def extend(
    folder: Annotated[Path, typer.Argument(help="The vocabulary to extend: folder, vocab.txt or tokenizer.json.")],
    sources: Sources,
    output: Output,
    add: Annotated[int, typer.Option(help="At most so many new words.")] = 2000,
    format: Format = "auto",  # noqa: A002
    field: Field = "text",
    workers: Workers = None,
    ray: Ray = None,
    as_json: AsJson = False,
) -> None:
    """Add the words of a domain to the vocabulary in FOLDER: unused slots first, then behind the last piece.

    The most valuable words come first: frequent ones that the vocabulary cuts into many pieces.
    """
    with workers_on(ray, workers) as pool, show_progress() as watch:
        extension, report = vocabularies.add_words(folder, _request(sources, output, format, field), add, pool, watch)
    if not as_json:
        table = Table("new piece", "id", "was", "times", box=None, header_style="bold")
        for one in extension.new_tokens[:10]:
            table.add_row(Text(one.token), str(one.id), Text(" ".join(one.subwords)), f"{one.count:,}")
        Console().print(table)
        in_slots = len(extension.new_tokens) - extension.num_appended
        print(
            f"{len(extension.new_tokens):,} words added: {in_slots:,} in unused slots, {extension.num_appended:,} at the end"
        )
    _show(report, output, as_json)


def _request(sources: list[str], output: Path, format: str, field: str) -> vocabularies.VocabularyRequest:  # noqa: A002
    reading = ReadSettings(format=format, field=field)
    return vocabularies.VocabularyRequest(tuple(TextSource(path) for path in sources), output, reading)


def _show(report: vocabularies.VocabularyReport, output: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
        return
    fit = report.coverage
    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_row(f"{report.tokenizer.vocab_size:,}", f"pieces ({report.tokenizer.kind})")
    table.add_row(
        f"{fit.unknown_ratio:.3%}", f"of the words hold an unknown piece, measured on {report.evaluation_text}"
    )
    table.add_row(f"{fit.whole_word_ratio:.1%}", "of the words are a single piece")
    table.add_row(f"{fit.tokens_per_word:.3f}", "pieces per word")
    table.add_row(f"{fit.characters_per_token:.2f}", "characters per piece")
    table.add_row(f"{fit.used_token_ratio:.1%}", "of the pieces occur in that text")
    for name, count in sorted(report.counts.items()):
        table.add_row(f"{count:,}", Text(name))
    Console().print(table)
    if fit.unknown_characters:
        shown = " ".join(character for character, _ in fit.unknown_characters)
        Console().print(Text(f"unknown characters, most frequent first: {shown}"))
    print(f"vocabulary: {output}")
