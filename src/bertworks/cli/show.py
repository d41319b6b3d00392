"""`bertworks show`: a corpus, a vocabulary or a text in, its examples, tokens or sentences printed."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertworks.cli.command import Command, choice, command_app
from bertworks.cli.options import Vocabulary

if TYPE_CHECKING:
    from rich.console import Console

    from bertworks.commands.show import ExampleView

app = command_app()


@app.command("show", cls=Command)
def show_command(
    folder: Annotated[str, typer.Argument(help="A corpus folder, a vocabulary (folder or file), or a text source.")],
    objective: Annotated[
        str, typer.Option(help="Objective whose examples to show: mlm-nsp, mlm, causal, permutation, …", metavar="NAME")
    ] = "mlm-nsp",
    documents: Annotated[bool, typer.Option("--documents", help="Show documents and sentences instead.")] = False,
    split: Annotated[str, choice("split", ("train", "held-out"), "Split of the corpus.")] = "train",
    max_length: Annotated[int, typer.Option(help="Sequence length, special tokens included.")] = 128,
    epoch: Annotated[int, typer.Option(min=0, help="Every epoch has new pairs and masks.")] = 0,
    count: Annotated[int, typer.Option(min=0, help="Number of examples.")] = 5,
    seed: Annotated[int, typer.Option(help="Random seed of the run.")] = 0,
    whole_words: Annotated[bool, typer.Option("--whole-words", help="Whole-word masking.")] = False,
    max_ngram: Annotated[int, typer.Option(help="Mask n-grams of up to this many words (ALBERT: 3).")] = 1,
    vocab: Vocabulary = None,
) -> None:
    """Print what is in FOLDER.

    A corpus: examples as the model is trained on them. Masked tokens are reversed, with the true token after an arrow;
    the two segments have two colours; the label of the pair stands above. With --documents, its text instead.
    A vocabulary: its size, kind and tokens. A text: its documents, split into sentences.
    """
    from rich.console import Console
    from rich.text import Text

    from bertworks.commands import show as viewer

    console = Console(highlight=False)
    path = Path(folder)
    kind = viewer.kind_of_folder(path)
    if kind == "vocabulary":
        _show_vocabulary(console, path, count)
    elif kind == "text" or documents:
        stream = (
            (split_document.document for split_document in viewer.documents(path))
            if kind == "corpus"
            else viewer.sentences(folder)
        )
        for document in islice(stream, count):
            console.print(Text(document.source, style="bold"))
            for number, sentence in enumerate(document.sentences, 1):
                mark = "¶" if sentence.endswith("\n") else "·" if sentence.endswith(" ") else ""
                console.print(
                    Text(f"{number:>6} ", style="dim"), Text(sentence.rstrip()), Text(mark, style="dim"), sep=""
                )
            console.print()
    else:
        request = viewer.ShowRequest(
            folder=path, objective=objective, split=split, max_length=max_length, epoch=epoch, num_examples=count,
            seed=seed, whole_words=whole_words, vocabulary=vocab, max_ngram=max_ngram,
        )  # fmt: skip
        for example in viewer.examples(request):
            _show_example(console, example)


def _show_example(console: Console, example: ExampleView) -> None:
    from rich.text import Text

    if example.label:
        console.print(Text(example.label, style="bold"))
    line = Text()
    for position, (token, token_type) in enumerate(zip(example.tokens, example.token_type_ids, strict=True)):
        colour = ("cyan", "green")[token_type]
        if position in example.masked_tokens:
            line.append(token, style=f"reverse {colour}")
            line.append(f"→{example.masked_tokens[position]}", style="bold magenta")
        else:
            line.append(token, style=colour)
        line.append(" ")
    console.print(line)
    console.print()


def _show_vocabulary(console: Console, path: Path, count: int) -> None:
    from rich.text import Text

    from bertworks.commands.show import vocabulary

    tokenizer = vocabulary(path)
    case = "cased" if tokenizer.cased else "uncased"
    console.print(
        Text(f"{tokenizer.kind}, {case}, {tokenizer.vocab_size:,} tokens, hash {tokenizer.hash}", style="bold")
    )
    names = ", ".join(f"{tokenizer.tokens[number]} = {number}" for number in tokenizer.specials.ids)
    console.print(f"special tokens: {names}", markup=False)
    step = max(1, tokenizer.vocab_size // max(1, count))
    for number in range(0, tokenizer.vocab_size, step):
        row = "  ".join(tokenizer.tokens[number : number + 12])
        console.print(Text(f"{number:>7} ", style="dim"), Text(row), sep="", soft_wrap=True)
