"""`bertworks prepare`: text in, a corpus folder out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bertworks.cli.options import Field, Format, Lines, OptionalSources, Ray, Workers
from bertworks.cli.progress import show_progress
from bertworks.commands import prepare as preparing
from bertworks.corpus.corpus import MANIFEST, read_manifest
from bertworks.corpus.units import PrepareSettings
from bertworks.disk import read_json
from bertworks.errors import SettingsError
from bertworks.parallel.ray_pool import workers_on
from bertworks.text.cleaning import CleanSettings
from bertworks.text.sources import ReadSettings, TextSource
from bertworks.vocabulary.tokenizer import Tokenizer

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def prepare(
    sources: OptionalSources = None,
    vocab: Annotated[Path | None, typer.Option(help="A vocabulary: its folder, vocab.txt or tokenizer.json.")] = None,
    output: Annotated[Path | None, typer.Option(help="The corpus folder to make, continue or add to.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="One weight a source, such as 1,2.5: how often it is met.")
    ] = None,
    held_out: Annotated[list[str] | None, typer.Option(help="A source that training never sees (may repeat).")] = None,
    held_out_ratio: Annotated[
        float, typer.Option(help="Without --held-out: the share of documents to hold out.")
    ] = 0.01,
    format: Format = "auto",  # noqa: A002
    field: Field = "text",
    lines: Lines = "auto",
    words: Annotated[str, typer.Option(help="Who finds Chinese words: jieba, or pieces (nobody).")] = "jieba",
    min_characters: Annotated[int, typer.Option(help="Drop shorter documents.")] = 20,
    max_repeats: Annotated[int, typer.Option(help="Keep a long line that occurs more often once; 0: keep all.")] = 10,
    workers: Workers = None,
    ray: Ray = None,
    verify: Annotated[
        Path | None, typer.Option(help="Check every hash of this corpus folder and do nothing else.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as one line of JSON.")] = False,
) -> None:
    """Read, clean and split the SOURCEs, cut them into pieces, and write a corpus folder.

    Killed at any moment, the same command continues, and the result is the same to the byte. Run on a finished
    folder with another --vocab (SOURCEs may be left out then), it adds that vocabulary's pieces to the same text.
    """
    if verify is not None:
        with show_progress() as watch:
            num_files = preparing.verify(verify, watch)
        print(f"{verify}: {num_files} files, all as they were written")
        return
    if vocab is None or output is None:
        raise SettingsError("`bertworks prepare` needs --vocab and --out; try `bertworks prepare --help`")
    request = preparing.PrepareRequest(
        sources=_sources(sources or [], weights, held_out or []),
        vocabulary=vocab,
        output=output,
        settings=PrepareSettings(held_out_ratio, max_repeats, CleanSettings(min_characters=min_characters)),
        read_settings=replace(ReadSettings(), format=format, field=field, lines=lines),
        words=words,
    )
    with workers_on(ray, workers) as pool, show_progress() as watch:
        folder = preparing.prepare(request, pool, watch)
    _report(folder, preparing.tokens_key(Tokenizer.load(vocab), words), as_json)


def _sources(paths: list[str], weights: str | None, held_out: list[str]) -> tuple[TextSource, ...]:
    try:
        numbers = [float(weight) for weight in weights.split(",")] if weights else [1.0] * len(paths)
    except ValueError:
        raise SettingsError(f"--weights {weights}: give numbers with commas between, such as 1,2.5") from None
    if len(numbers) != len(paths):
        raise SettingsError(f"--weights names {len(numbers)} weights for {len(paths)} sources; give one each")
    trained = [TextSource(path, weight) for path, weight in zip(paths, numbers, strict=True)]
    return (*trained, *(TextSource(path, split="held-out") for path in held_out))


def _report(folder: Path, key: str, as_json: bool) -> None:
    manifest = read_manifest(folder)
    pieces = read_json(folder / "tokens" / key / MANIFEST, "the tokens of a prepared corpus")
    told = {
        "documents": manifest["documents"],
        "sentences": manifest["sentences"],
        "characters": manifest["characters"],
        **pieces["counts"],
        **{
            f"{split} documents": sum(kind["documents"] for kind in of.values())
            for split, of in pieces["splits"].items()
        },
        **{f"{split} tokens": sum(kind["tokens"] for kind in of.values()) for split, of in pieces["splits"].items()},
        **manifest["counts"],
    }
    if as_json:
        print(json.dumps(told, ensure_ascii=False))
        return
    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    for name, count in told.items():
        table.add_row(f"{count:,}", name)
    Console().print(table)
    print(f"corpus: {folder}")
