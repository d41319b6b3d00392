"""`bertworks tokenize`: a text or a pair in, its tokens, ids, positions, token types and offsets out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.console import say
from bertworks.cli.options import AsJson
from bertworks.messages import localize

app = command_app()


@app.command("tokenize", cls=Command)
def tokenize_command(
    text: Annotated[str, typer.Argument(help="The text, or the first text of a pair.")],
    vocab: Annotated[Path, typer.Option(help="A vocab.txt, a tokenizer.json, a folder that holds one, or en-small.")],
    pair: Annotated[str | None, typer.Option(help="The second text of a pair.")] = None,
    split_special_tokens: Annotated[
        bool, typer.Option(help="Whether [SEP] and the like in TEXT are ordinary text; transformers' default is --no-.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Print the tokens of TEXT with their input ids, positions, token types, and the characters each covers.

    --json gives tokens, input_ids, position_ids, token_type_ids, attention_mask and offsets.
    """
    from bertworks.vocabulary.tokenizer import Tokenizer

    encoding = Tokenizer.load(vocab, split_special_tokens=split_special_tokens).encode(text, pair)
    if as_json:
        print(json.dumps(encoding.to_dict(), ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        *map(localize, ("position", "token", "input id", "token type", "text")), box=None, header_style="bold"
    )
    rows = zip(encoding.tokens, encoding.input_ids, encoding.token_type_ids, encoding.offsets, strict=True)
    for position, (token, input_id, token_type, offsets) in enumerate(rows):
        source = (pair or "") if token_type and pair is not None else text
        covered = source[slice(*offsets)] if offsets else ""
        table.add_row(str(position), Text(token), str(input_id), str(token_type), Text(covered))
    Console().print(table)
    if encoding.num_replaced:
        say(f"{encoding.num_replaced} lone surrogates were replaced by U+FFFD")
