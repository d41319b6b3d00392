"""`bertworks explain`: which words drove a prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from bertworks.disk import write_text
from bertworks.inference import attribution as explaining
from bertworks.inference.explanation import Explanation
from bertworks.inference.finetuned import load_predictor
from bertworks.reports.explanation import explanation_page

app = typer.Typer(add_completion=False, rich_markup_mode=None)

# How strong a word is, from -3 to 3: blue speaks for the target, yellow against it.
_STYLES = {
    1: "blue",
    2: "bold blue",
    3: "bold white on blue",
    -1: "yellow",
    -2: "bold yellow",
    -3: "bold black on yellow",
}


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="A fine-tuned model: a folder, or a name on the hub.")],
    texts: Annotated[
        list[str], typer.Argument(help="A text or a pair; a prompt and its endings; a question and a passage.")
    ],
    target: Annotated[
        str | None,
        typer.Option(help="What to explain instead: a class, an ending's number, WORD=LABEL, start or end."),
    ] = None,
    page: Annotated[Path | None, typer.Option("--html", help="Write a page with the picture there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON: target, output, texts, words.")] = False,
) -> None:
    """Show which words of TEXTS speak for what MODEL says of them, and which against it."""
    predictor = load_predictor(model)
    found = explaining.explain(predictor, explaining.example_from_texts(predictor.module.task.name, texts), target)
    if page is not None:
        write_text(page, explanation_page(found))
    if as_json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
        return
    console = Console(highlight=False)
    if console.is_terminal and not console.no_color:
        _show_coloured(found, console)
    else:
        print(found.to_text())


def _show_coloured(explanation: Explanation, console: Console) -> None:
    console.print(Text(explanation.headline(), style="bold"))
    for text, stretches in explanation.levels():
        parts = [(part, _STYLES.get(level, "")) for part, level, _ in stretches]
        console.print(Text.assemble((f"{text.title}: ", "dim"), *parts))
    for remark in explanation.remarks():
        console.print(Text(remark, style="dim"))
