"""`bertworks show`: print what is in a corpus, a vocabulary or a text."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from bertworks.cli.options import Vocabulary
from bertworks.commands import show as shown
from bertworks.sampling.samplers import OBJECTIVE_INPUTS

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def show(
    folder: Annotated[str, typer.Argument(help="A corpus folder, a vocabulary (folder or file), or a text source.")],
    objective: Annotated[
        str, typer.Option(help=f"How examples are made: {', '.join(OBJECTIVE_INPUTS)}.")
    ] = "masked-next",
    documents: Annotated[bool, typer.Option("--documents", help="Show documents and their sentences instead.")] = False,
    split: Annotated[str, typer.Option(help="train or held-out.")] = "train",
    max_length: Annotated[int, typer.Option(help="Places of an example, special pieces included.")] = 128,
    epoch: Annotated[int, typer.Option(min=0, help="Every epoch has fresh pairs and masks.")] = 0,
    count: Annotated[int, typer.Option(min=0, help="How many to show.")] = 5,
    seed: Annotated[int, typer.Option(help="The seed of the run.")] = 0,
    whole_words: Annotated[bool, typer.Option("--whole-words", help="Hide whole words.")] = False,
    max_ngram: Annotated[int, typer.Option(help="Hide runs of up to so many words, as ALBERT does with 3.")] = 1,
    vocab: Vocabulary = None,
) -> None:
    """Print what is in FOLDER.

    A corpus: examples as a model meets them. Hidden places are reversed, with the true piece behind an arrow; the two
    segments have two colours; the answer about the pair stands above. With --documents, its text instead.
    A vocabulary: its size, kind and pieces. A text: its documents, split into sentences.
    """
    console = Console(highlight=False)
    path = Path(folder)
    kind = shown.kind_of_folder(path)
    if kind == "vocabulary":
        _show_vocabulary(console, path, count)
    elif kind == "text" or documents:
        found = (one.document for one in shown.documents(path)) if kind == "corpus" else shown.sentences(folder)
        for document in islice(found, count):
            console.print(Text(document.source, style="bold"))
            for number, sentence in enumerate(document.sentences, 1):
                mark = "¶" if sentence.endswith("\n") else "·" if sentence.endswith(" ") else ""
                console.print(
                    Text(f"{number:>6} ", style="dim"), Text(sentence.rstrip()), Text(mark, style="dim"), sep=""
                )
            console.print()
    else:
        request = shown.ShowRequest(
            path, objective, split, max_length, epoch, count, seed, whole_words, vocab, max_ngram
        )
        for example in shown.examples(request):
            _show_example(console, example)


def _show_example(console: Console, example: shown.ExampleView) -> None:
    if example.label:
        console.print(Text(example.label, style="bold"))
    line = Text()
    for place, (piece, segment) in enumerate(zip(example.tokens, example.token_type_ids, strict=True)):
        colour = ("cyan", "green")[segment]
        if place in example.masked_tokens:
            line.append(piece, style=f"reverse {colour}")
            line.append(f"→{example.masked_tokens[place]}", style="bold magenta")
        else:
            line.append(piece, style=colour)
        line.append(" ")
    console.print(line)
    console.print()


def _show_vocabulary(console: Console, path: Path, count: int) -> None:
    tokenizer = shown.vocabulary(path)
    case = "cased" if tokenizer.cased else "uncased"
    console.print(
        Text(f"{tokenizer.kind}, {case}, {tokenizer.vocab_size:,} pieces, hash {tokenizer.hash}", style="bold")
    )
    names = ", ".join(f"{tokenizer.tokens[number]} = {number}" for number in tokenizer.specials.ids)
    console.print(f"special pieces: {names}", markup=False)
    step = max(1, tokenizer.vocab_size // max(1, count))
    for number in range(0, tokenizer.vocab_size, step):
        row = "  ".join(tokenizer.tokens[number : number + 12])
        console.print(Text(f"{number:>7} ", style="dim"), Text(row), sep="", soft_wrap=True)
