"""`bertworks vocab`: text in, a trained or extended vocabulary out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertworks.choices import VOCABULARY_KINDS
from bertworks.cli.command import Command, CommandGroup, choice, command_app
from bertworks.cli.console import say
from bertworks.cli.options import AsJson, Field, Format, Ray, Sources, Workers
from bertworks.cli.progress import show_progress
from bertworks.messages import localize

if TYPE_CHECKING:
    from bertworks.commands.vocab import VocabularyReport, VocabularyRequest


class _TrainByDefault(CommandGroup):
    """`vocab SOURCE…` means `vocab train SOURCE…`: only `extend` has to be named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args.insert(0, "train")
        return super().parse_args(ctx, args)


app = command_app(
    _TrainByDefault,
    "Train a vocabulary: `vocab SOURCE… --output FOLDER` (see `vocab train --help`), or extend one: `vocab extend`.",
)

Output = Annotated[Path, typer.Option(help="Folder to write the vocabulary to.")]


@app.command("train", cls=Command)
def train_command(
    sources: Sources,
    output: Output,
    size: Annotated[int, typer.Option(help="Vocabulary size, special tokens included.")] = 30_000,
    kind: Annotated[str, choice("kind", VOCABULARY_KINDS, "Tokenization algorithm.")] = "wordpiece",
    cased: Annotated[bool, typer.Option("--cased", help="Keep case instead of lower-casing.")] = False,
    min_count: Annotated[int, typer.Option(help="Minimum frequency of a token.")] = 2,
    num_unused: Annotated[int, typer.Option(help="Number of [unused] slots for `vocab extend` (wordpiece).")] = 0,
    format: Format = "auto",  # noqa: A002
    field: Field = "text",
    workers: Workers = None,
    ray: Ray = None,
    as_json: AsJson = False,
) -> None:
    """Train a vocabulary on the SOURCEs and report how well it covers held-out text."""
    from bertworks.commands.vocab import train_vocabulary
    from bertworks.parallel.ray_pool import workers_on
    from bertworks.vocabulary.training import VocabularySettings

    settings = VocabularySettings(
        kind=kind, vocab_size=size, cased=cased, min_count=min_count, num_unused=num_unused
    )  # fmt: skip
    with workers_on(ray, workers) as pool, show_progress() as on_progress:
        report = train_vocabulary(_request(sources, output, format, field), settings, pool, on_progress)
    _show_report(report, output, as_json)


@app.command("extend", cls=Command)
def extend_command(
    folder: Annotated[
        Path, typer.Argument(help="The vocabulary to extend: folder, vocab.txt, tokenizer.json, or en-small.")
    ],
    sources: Sources,
    output: Output,
    add: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 2000,
    format: Format = "auto",  # noqa: A002
    field: Field = "text",
    workers: Workers = None,
    ray: Ray = None,
    as_json: AsJson = False,
) -> None:
    """Add frequent words of a domain to the vocabulary in FOLDER: [unused] slots first, then new ids at the end.

    Words that save the most tokens come first: frequent ones that the vocabulary splits into many tokens.
    """
    from bertworks.commands.vocab import add_words
    from bertworks.parallel.ray_pool import workers_on

    with workers_on(ray, workers) as pool, show_progress() as on_progress:
        extension, report = add_words(folder, _request(sources, output, format, field), add, pool, on_progress)
    if not as_json:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*map(localize, ("new token", "id", "was", "count")), box=None, header_style="bold")
        for token in extension.new_tokens[:10]:
            table.add_row(Text(token.token), str(token.id), Text(" ".join(token.subwords)), f"{token.count:,}")
        Console().print(table)
        num_new, num_appended = len(extension.new_tokens), extension.num_appended
        say(f"{num_new:,} tokens added: {num_new - num_appended:,} in [unused] slots, {num_appended:,} at the end")
    _show_report(report, output, as_json)


def _request(sources: list[str], output: Path, format: str, field: str) -> VocabularyRequest:  # noqa: A002
    from bertworks.commands.vocab import VocabularyRequest
    from bertworks.text.sources import ReadSettings, TextSource

    return VocabularyRequest(
        tuple(TextSource(path) for path in sources), output, ReadSettings(format=format, field=field)
    )  # fmt: skip


def _show_report(report: VocabularyReport, output: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    coverage = report.coverage
    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    table.add_row(f"{report.tokenizer.vocab_size:,}", localize(f"tokens ({report.tokenizer.kind})"))
    table.add_row(
        f"{coverage.unknown_ratio:.3%}", localize(f"of the words contain [UNK], measured on {report.evaluation_text}")
    )
    table.add_row(f"{coverage.whole_word_ratio:.1%}", localize("of the words are a single token"))
    table.add_row(f"{coverage.tokens_per_word:.3f}", localize("tokens per word"))
    table.add_row(f"{coverage.characters_per_token:.2f}", localize("characters per token"))
    table.add_row(f"{coverage.used_token_ratio:.1%}", localize("of the tokens occur in that text"))
    for name, count in sorted(report.counts.items()):
        table.add_row(f"{count:,}", Text(localize(name)))
    Console().print(table)
    if coverage.unknown_characters:
        characters = " ".join(character for character, _ in coverage.unknown_characters)
        Console().print(Text(localize(f"unknown characters, most frequent first: {characters}")))
    say(f"vocabulary: {output}")
