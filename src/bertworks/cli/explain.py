"""`bertworks explain`: a fine-tuned model and texts in, the contribution of each word to its prediction out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.options import AsJson, FinetunedModel

if TYPE_CHECKING:
    from rich.console import Console

    from bertworks.inference.explanation import Explanation

app = command_app()

# Style of a word by its contribution, from -3 to 3: blue supports the target, yellow opposes it.
_STYLES = {
    1: "blue",
    2: "bold blue",
    3: "bold white on blue",
    -1: "yellow",
    -2: "bold yellow",
    -3: "bold black on yellow",
}


@app.command("explain", cls=Command)
def explain_command(
    model: FinetunedModel,
    texts: Annotated[
        list[str],
        typer.Argument(help="A text or a pair; a prompt and its endings; a question and a passage.", metavar="TEXT…"),
    ],
    target: Annotated[
        str | None,
        typer.Option(help="Explain this output instead of the prediction: a class, an ending's number, WORD=LABEL, …"),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the explanation as an HTML page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which words of TEXT support the prediction of MODEL and which oppose it (integrated gradients)."""
    from bertworks.disk import write_text
    from bertworks.inference.attribution import example_from_texts, explain
    from bertworks.inference.finetuned import load_predictor
    from bertworks.reports.explanation import explanation_page

    predictor = load_predictor(model)
    explanation = explain(predictor, example_from_texts(predictor.module.task, texts), target)
    if html is not None:
        write_text(html, explanation_page(explanation))
    if as_json:
        print(json.dumps(explanation.to_dict(), ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal and not console.no_color:
        _show_coloured(explanation, console)
    else:
        print(explanation.to_text())


def _show_coloured(explanation: Explanation, console: Console) -> None:
    from rich.text import Text

    console.print(Text(explanation.headline(), style="bold"))
    for text, spans in explanation.levels():
        parts = [(part, _STYLES.get(level, "")) for part, level, _ in spans]
        console.print(Text.assemble((f"{text.title}: ", "dim"), *parts))
    for remark in explanation.remarks():
        console.print(Text(remark, style="dim"))
