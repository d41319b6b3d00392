"""`bertworks serve`: models behind an HTTP port."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertworks.cli.options import Ray
from bertworks.engines.batching import BUDGET
from bertworks.errors import MissingPartError

if TYPE_CHECKING:
    from bertworks.serving.server import ServeRequest

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def serve(
    models: Annotated[list[str], typer.Argument(help="Models as NAME=FOLDER, run folders too; or one bundle.")],
    host: Annotated[str, typer.Option(help="Where to listen; anything but this machine needs keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 is any that is free.")] = 8000,
    api_key_file: Annotated[Path | None, typer.Option(help="A file of keys, one a line; one of them is asked.")] = None,
    allow_origin: Annotated[list[str] | None, typer.Option(help="A web page's origin that may ask too.")] = None,
    runs: Annotated[list[str] | None, typer.Option(help="Training runs to follow: NAME=FOLDER, or of many.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds that a request may take.")] = 60.0,
    max_body: Annotated[int, typer.Option(help="Bytes of a request's body.")] = 4 * 2**20,
    max_inputs: Annotated[int, typer.Option(help="Inputs of a request.")] = 512,
    max_characters: Annotated[int, typer.Option(help="Characters of a text.")] = 100_000,
    max_waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait; more are told to come back.")] = 1024,
    batch_pieces: Annotated[int, typer.Option(min=8, help="Pieces that are computed together.")] = BUDGET,
    engine: Annotated[str | None, typer.Option(help="torch, onnx or openvino; else what each folder is for.")] = None,
    ray: Ray = None,
    replicas: Annotated[int, typer.Option(min=1, help="With --ray: processes with all models.")] = 1,
    replica_cpus: Annotated[float, typer.Option(help="With --ray: CPUs of each.")] = 1,
) -> None:
    """Answer over HTTP until stopped: predictions, blanks, vectors, and a page at / that shows what the models see."""
    try:
        from bertworks.serving import server
    except ImportError as error:
        raise MissingPartError(error.name or "fastapi", "serve", "serving models") from None
    from bertworks.serving.batch_scheduler import Bounds
    from bertworks.serving.run_records import named_runs
    from bertworks.serving.security import Limits

    request = server.ServeRequest(
        tuple(models),
        host,
        port,
        api_key_file,
        tuple(allow_origin or ()),
        named_runs(runs or ()),
        Limits(max_body, max_inputs, max_characters, time_limit),
        Bounds(max_waiting),
        batch_pieces,
        engine,
    )
    if ray is not None:
        _serve_on(ray, request, (replicas, replica_cpus))
        return
    with server.listening(host, port) as sock:  # before the models, so that a port in use is told at once
        opened = server.opened(request)
        for served in opened.service.models.values():
            print(f"{served.name}: {', '.join(served.can)}", flush=True)
        shown = f"[{host}]" if ":" in host else host
        print(f"serving at http://{shown}:{sock.getsockname()[1]} (Ctrl-C stops it)", flush=True)
        server.serve(opened, sock)
    print("stopped; all requests that were taken are answered")


def _serve_on(address: str, request: ServeRequest, size: tuple[int, float]) -> None:
    """Put replicas on a cluster, and leave them there until this command is stopped."""
    from bertworks.parallel.ray_cluster import connected
    from bertworks.serving.replicas import Replicas, serving
    from bertworks.training.interrupt import asked_to_stop

    count, cpus = size
    with connected(address), serving(request, Replicas(count, cpus)) as place, asked_to_stop() as wish:
        print(f"serving at {place} with {count} replicas (Ctrl-C stops them)", flush=True)
        while not wish:
            time.sleep(0.2)
    print("stopped; all requests that were taken are answered")
