"""`bertworks generate`: a prompt in, a continuation by a causal language model out."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from bertworks.cli.command import Command, command_app
from bertworks.cli.options import AsJson

app = command_app()


@app.command("generate", cls=Command)
def generate_command(
    model: Annotated[str, typer.Argument(help="A causal model: a folder, or a name on the hub.")],
    text: Annotated[str, typer.Argument(help="The prompt; may be empty.")],
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 40,
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the k most probable tokens; 0: all. Greedy without any option.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Nucleus sampling: the smallest set of tokens with this probability.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Softmax temperature of sampling.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of sampling.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print TEXT and its continuation by MODEL: greedy decoding, or sampling if a sampling option is given."""
    from bertworks.inference.generation_config import make_generation_config
    from bertworks.inference.model import load

    config = make_generation_config(max_new_tokens, top_k, top_p, temperature, seed)
    result = load(model).generate(text, config)
    print(json.dumps(asdict(result), ensure_ascii=False) if as_json else result.text)
