"""`bertworks prepare`: text and a vocabulary in, a corpus folder out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertworks.cli.command import Command, choice, command_app
from bertworks.cli.console import say
from bertworks.cli.options import AsJson, Field, Format, Lines, OptionalSources, Ray, Workers
from bertworks.cli.progress import show_progress
from bertworks.errors import SettingsError
from bertworks.messages import localize

if TYPE_CHECKING:
    from bertworks.text.sources import TextSource

app = command_app()


@app.command("prepare", cls=Command)
def prepare_command(
    sources: OptionalSources = None,
    vocab: Annotated[
        Path | None,
        typer.Option(help="A vocabulary: its folder, vocab.txt or tokenizer.json, or a model such as en-small."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Corpus folder to create, continue or extend.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="Sampling weight of each source, such as 1,2.5.", metavar="X,X…")
    ] = None,
    held_out: Annotated[
        list[str] | None, typer.Option(help="A source used only for held-out evaluation; may be repeated.")
    ] = None,
    held_out_ratio: Annotated[float, typer.Option(help="Without --held-out: ratio of documents to hold out.")] = 0.01,
    format: Format = "auto",  # noqa: A002
    field: Field = "text",
    lines: Lines = "auto",
    words: Annotated[
        str, choice("segmenter", ("jieba", "tokens"), "How Chinese words are found for whole-word masking.")
    ] = "jieba",
    min_characters: Annotated[int, typer.Option(help="Drop documents with fewer characters.")] = 20,
    max_repeats: Annotated[
        int, typer.Option(help="Keep one copy of a long line that occurs more often; 0: keep all.")
    ] = 10,
    workers: Workers = None,
    ray: Ray = None,
    verify: Annotated[Path | None, typer.Option(help="Check the hashes of this corpus folder and exit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read, clean, deduplicate and tokenize the SOURCEs into a corpus folder.

    Killed at any moment, the same command continues, and the result is byte-identical. Run on a finished folder with
    another --vocab (without SOURCEs), it adds that vocabulary's tokens to the same text.
    """
    if verify is None and (vocab is None or output is None):
        raise SettingsError("`bertworks prepare` needs --vocab and --output; see `bertworks prepare --help`")
    from bertworks.commands import prepare as preparation
    from bertworks.corpus.units import PrepareSettings
    from bertworks.parallel.ray_pool import workers_on
    from bertworks.text.cleaning import CleanSettings
    from bertworks.text.sources import ReadSettings
    from bertworks.vocabulary.tokenizer import Tokenizer

    if verify is not None:
        with show_progress() as on_progress:
            num_files = preparation.verify(verify, on_progress)
        say(f"{verify}: {num_files} files, all hashes match")
        return
    assert vocab is not None
    assert output is not None
    request = preparation.PrepareRequest(
        sources=_sources(sources or [], weights, held_out or []),
        vocabulary=vocab,
        output=output,
        settings=PrepareSettings(held_out_ratio, max_repeats, CleanSettings(min_characters=min_characters)),
        read_settings=ReadSettings(format=format, field=field, lines=lines),
        word_rule=words,
    )
    with workers_on(ray, workers) as pool, show_progress() as on_progress:
        folder = preparation.prepare(request, pool, on_progress)
    _show_counts(folder, preparation.tokens_key(Tokenizer.load(vocab), words), as_json)


def _sources(paths: list[str], weights: str | None, held_out: list[str]) -> tuple[TextSource, ...]:
    from bertworks.text.sources import TextSource

    try:
        numbers = [float(weight) for weight in weights.split(",")] if weights else [1.0] * len(paths)
    except ValueError:
        raise SettingsError(f"--weights {weights}: give numbers separated by commas, such as 1,2.5") from None
    if len(numbers) != len(paths):
        raise SettingsError(f"--weights has {len(numbers)} weights for {len(paths)} sources; give one per source")
    train = [TextSource(path, weight) for path, weight in zip(paths, numbers, strict=True)]
    return (*train, *(TextSource(path, split="held-out") for path in held_out))


def _show_counts(folder: Path, key: str, as_json: bool) -> None:
    from bertworks.corpus.manifest import MANIFEST, read_manifest
    from bertworks.disk import read_json

    manifest = read_manifest(folder)
    tokens = read_json(folder / "tokens" / key / MANIFEST, "the tokens of a prepared corpus")
    counts = {
        "documents": manifest["documents"],
        "sentences": manifest["sentences"],
        "characters": manifest["characters"],
        **tokens["counts"],
        **{
            f"{split} {unit}": sum(region[unit] for region in regions.values())
            for unit in ("documents", "tokens")
            for split, regions in tokens["splits"].items()
        },
        **manifest["counts"],
    }
    if as_json:
        print(json.dumps(counts, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    for name, count in counts.items():
        table.add_row(f"{count:,}", localize(name))
    Console().print(table)
    say(f"corpus: {folder}")
