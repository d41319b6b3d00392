"""`bertworks serve`: models behind an HTTP port."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertworks.cli.options import Ray
from bertworks.engines.batching import TOKEN_BUDGET
from bertworks.errors import MissingDependencyError

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
    max_body_bytes: Annotated[int, typer.Option(help="Bytes of a request's body.")] = 4 * 2**20,
    max_inputs: Annotated[int, typer.Option(help="Inputs of a request.")] = 512,
    max_characters: Annotated[int, typer.Option(help="Characters of a text.")] = 100_000,
    max_queued_requests: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; more are told to come back.")
    ] = 1024,
    batch_tokens: Annotated[int, typer.Option(min=8, help="Pieces that are computed together.")] = TOKEN_BUDGET,
    engine: Annotated[str | None, typer.Option(help="torch, onnx or openvino; else what each folder is for.")] = None,
    ray: Ray = None,
    replicas: Annotated[int, typer.Option(min=1, help="With --ray: processes with all models.")] = 1,
    replica_cpus: Annotated[float, typer.Option(help="With --ray: CPUs of each.")] = 1,
) -> None:
    """Answer over HTTP until stopped: predictions, blanks, vectors, and a page at / that shows what the models see."""
    try:
        from bertworks.serving import server
    except ImportError as error:
        raise MissingDependencyError(error.name or "fastapi", "serve", "serving models") from None
    from bertworks.serving.batch_scheduler import QueueLimits
    from bertworks.serving.run_records import named_runs
    from bertworks.serving.security import Limits

    request = server.ServeRequest(
        tuple(models),
        host,
        port,
        api_key_file,
        tuple(allow_origin or ()),
        named_runs(runs or ()),
        Limits(max_body_bytes, max_inputs, max_characters, time_limit),
        QueueLimits(max_queued_requests),
        batch_tokens,
        engine,
    )
    if ray is not None:
        _serve_on(ray, request, (replicas, replica_cpus))
        return
    with server.listen(host, port) as sock:  # before the models, so that a port in use is told at once
        opened = server.load_app(request)
        for served in opened.service.models.values():
            print(f"{served.name}: {', '.join(served.capabilities)}", flush=True)
        shown = f"[{host}]" if ":" in host else host
        print(f"serving at http://{shown}:{sock.getsockname()[1]} (Ctrl-C stops it)", flush=True)
        server.serve(opened, sock)
    print("stopped; all requests that were taken are answered")


def _serve_on(address: str, request: ServeRequest, size: tuple[int, float]) -> None:
    """Put replicas on a cluster, and leave them there until this command is stopped."""
    from bertworks.parallel.ray_cluster import ray_connection
    from bertworks.serving.replicas import Replicas, deploy_replicas
    from bertworks.training.interrupt import catch_stop_signals

    count, cpus = size
    with (
        ray_connection(address),
        deploy_replicas(request, Replicas(count, cpus)) as place,
        catch_stop_signals() as wish,
    ):
        print(f"serving at {place} with {count} replicas (Ctrl-C stops them)", flush=True)
        while not wish:
            time.sleep(0.2)
    print("stopped; all requests that were taken are answered")
