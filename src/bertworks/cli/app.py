"""The `bertworks` command: arguments in, an exit code out (0 done, 2 something a person can mend, 130 Ctrl-C)."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from bertworks.errors import BertworksError

# Each verb and the module that holds it, in the order of the road; a verb's module is imported when it is called, so
# that `bertworks tokenize` does not wait for what `bertworks pretrain` needs.
VERBS = {
    "doctor": "Look at text before you spend hours on it: what it is, what is wrong, what to do.",
    "vocab": "Learn a vocabulary from text, or extend one with the words of a domain.",
    "tokenize": "Show how a text, or a pair, looks to BERT: pieces, ids, positions, segments.",
    "prepare": "Turn text into a corpus folder that every later stage reads.",
    "plan": "Measure this machine, and recommend a recipe for a corpus and a time; or tell what a recipe takes.",
    "pretrain": "Train a BERT on a corpus: masked pieces and next sentences.",
    "adapt": "Let a model go on learning from the text of a domain, with new pieces for its words.",
    "verify-resume": "Prove that a killed run of a recipe resumes to the bit.",
    "finetune": "Teach a model a task from labelled files: classes, scores, choices, entities, answers, translations.",
    "compare": "Pretrain and fine-tune several kinds of models on equal terms: one table, one picture.",
    "evaluate": "Score a fine-tuned model on a labelled file.",
    "predict": "Put a fine-tuned model to use: texts in, predictions out.",
    "translate": "Translate lines of text with a Transformer.",
    "fill-mask": "Fill the blanks of a text with a pretrained model.",
    "generate": "Go on with a text, by a left-to-right model such as GPT.",
    "next": "Tell the likeliest next word of a text, or the one before it.",
    "embed": "Turn texts into vectors: of whole texts, words or pieces, from any layers.",
    "search": "Find the texts of a file that are nearest to a query.",
    "word-vectors": "Train and try static word vectors: Word2Vec and GloVe, beside which BERT's can be judged.",
    "explain": "Show which words drove a prediction of a fine-tuned model.",
    "bundle": "Put models, what they came from and the corpus into one folder for production.",
    "serve": "Answer over HTTP with any number of models, and show what they see on a page.",
    "export": "Write a model for ONNX Runtime or OpenVINO, in half precision or 8 bits, with a certificate.",
    "show": "Print what is in a corpus or vocabulary: examples, documents, sentences, pieces.",
}

# Verbs that keep what they have done, so that after Ctrl-C the same command goes on.
RESUMABLE = frozenset({"prepare", "pretrain", "adapt", "finetune", "compare", "embed"})


class LazyVerbs(TyperGroup):
    """A group of verbs that imports only the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in VERBS:
            return None
        return typer.main.get_command(import_module(f"bertworks.cli.{name.replace('-', '_')}").app)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. Ctrl-C is answered here, since the library around this leaves in silence."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            goes_on = "; the same command takes up what was finished" if ctx.invoked_subcommand in RESUMABLE else ""
            print(f"bertworks: stopped{goes_on}", file=sys.stderr)
            raise typer.Exit(130) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the verbs from the table above, so that asking for help imports none of them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


def _version(is_requested: bool) -> None:
    if is_requested:
        from bertworks import __version__

        print(f"bertworks {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyVerbs, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.callback(help="BERT from raw text to production. `bertworks VERB --help` tells more.")
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    del version


def main() -> None:
    """Run the command line and leave with its exit code. Errors that a person can mend are one sentence, no trace."""
    try:
        app(prog_name="bertworks")
    except BertworksError as error:
        print(f"bertworks: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
