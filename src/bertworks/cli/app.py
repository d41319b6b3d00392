"""The `bertworks` command: arguments in, an exit code out (0 done, 1 a check failed, 2 a user error, 130 Ctrl-C)."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from tempfile import gettempdir
from typing import Any

import typer
from typer._click.core import Command
from typer._click.shell_completion import CompletionItem

from bertworks.cli.command import CommandGroup
from bertworks.cli.console import warn
from bertworks.cli.usage_errors import localize_usage_errors
from bertworks.errors import BertworksError, MissingDependencyError
from bertworks.messages import localize
from bertworks.reading import unreadable_reason

# Each command and what it does, in the order of the data. Its module is imported when it is called, so that
# `bertworks tokenize` does not wait for what `bertworks pretrain` needs.
COMMANDS = {
    "doctor": "Check raw text before training on it: statistics, problems found, what to do.",
    "vocab": "Train a vocabulary on text, or extend one with the words of a domain.",
    "tokenize": "Show how a text or a pair is tokenized: tokens, input ids, positions, token types.",
    "prepare": "Clean and tokenize text into a corpus folder for pretraining.",
    "plan": "Measure this machine and recommend a recipe for a corpus and a time budget, or cost a recipe.",
    "pretrain": "Pretrain a model on a corpus folder (masked LM and next sentence prediction by default).",
    "adapt": "Continue pretraining an existing model on the text of a domain.",
    "verify-resume": "Kill and resume a run of a recipe, and check that the result is bit-identical.",
    "finetune": "Fine-tune a model on labelled data: classify, regress, choose, tag, answer, translate.",
    "compare": "Pretrain and fine-tune several model families under equal budgets and tabulate the results.",
    "evaluate": "Score a fine-tuned model on a labelled file.",
    "predict": "Predict with a fine-tuned model: texts in, JSON Lines out.",
    "translate": "Translate lines of text with an encoder-decoder Transformer.",
    "fill-mask": "Predict the masked tokens of a text with a pretrained model.",
    "generate": "Generate text with a causal language model such as GPT.",
    "next": "Predict the next word of a text, or the previous one.",
    "embed": "Write embeddings of texts, words or tokens, from any layers of a model.",
    "search": "Find the texts of a file that are nearest to a query.",
    "word-vectors": "Train and evaluate static word vectors: Word2Vec and GloVe.",
    "explain": "Attribute a prediction of a fine-tuned model to the words of its input.",
    "bundle": "Put models, their base model and the corpus into one folder for production.",
    "serve": "Serve models over HTTP, with a web page.",
    "export": "Export a model to ONNX, OpenVINO, fp16 or int8, with a certificate of parity.",
    "package": "Write a model as an installable Python package with fp16 weights and a model card.",
    "info": "Tell what a folder is: kind, origin, content, state, and the next command.",
    "show": "Print examples, documents, sentences or tokens of a corpus or vocabulary.",
    "verify": "Compare the files of a model or corpus with their recorded hashes; accept changes by hand.",
}

# Requirements of bertworks that bertworks-run, the distribution for exported models, does not have.
_PACKAGES = frozenset({"ftfy", "scipy", "seqeval", "sklearn", "torch"})

# Commands that save their progress: after Ctrl-C the same command continues.
RESUMABLE = frozenset({"prepare", "pretrain", "adapt", "finetune", "compare", "embed"})


class LazyCommands(CommandGroup):
    """The group of all commands; it imports only the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        return typer.main.get_command(import_module(f"bertworks.cli.{name.replace('-', '_')}").app)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the options before the command."""
        with localize_usage_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Ctrl-C is handled here, since click would exit without a message."""
        try:
            with localize_usage_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            is_resumable = ctx.invoked_subcommand in RESUMABLE
            warn(
                "bertworks: interrupted; run the same command to continue" if is_resumable else "bertworks: interrupted"
            )
            raise typer.Exit(130) from None

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        """Complete commands from the table above, for the same reason."""
        items = [
            CompletionItem(name, help=localize(text)) for name, text in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*items, *Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands from the table above, so that `bertworks --help` imports none of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(value: bool) -> None:
    if value:
        from bertworks import __version__

        print(f"bertworks {__version__}")
        raise typer.Exit


app = typer.Typer(cls=LazyCommands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(help="BERT from raw text to production. `bertworks COMMAND --help` describes a command.")
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    del version


def main() -> None:
    """Run the command line and exit with its code. User errors are one sentence without a traceback."""
    try:
        try:
            app(prog_name="bertworks")
        finally:
            sys.stdout.flush()  # here, an error still gets its sentence
    except BertworksError as error:
        warn(f"bertworks: {localize(str(error))}")
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        warn(f"bertworks: {localize(str(MissingDependencyError(error.name, '', 'this command')))}")
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has exited, as `head` does
        _drop_output()
        sys.exit(141)
    except (OSError, MemoryError) as error:  # of the machine, not of our code: no traceback helps
        warn(f"bertworks: {localize(_explain_machine_error(error))}")
        if _is_disk_full(error):
            _drop_output()
        sys.exit(2)


def _explain_machine_error(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return f"out of memory ({error}); choose a smaller model, batch or file" if str(error) else "out of memory"
    if _is_disk_full(error):
        place = error.filename or f"the disk of the output, or of {gettempdir()}"
        return f"no space left on {place}; free some space and run the same command again"
    place = f"{error.filename} " if error.filename else "a file "
    return f"{place}cannot be used: {unreadable_reason(error)}"


def _is_disk_full(error: OSError | MemoryError) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _drop_output() -> None:
    """Redirect what is not written yet, so that the interpreter does not fail to write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
