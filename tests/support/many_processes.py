"""Processes that are told what torchrun tells its own, without the seconds that torchrun needs to start them."""

from __future__ import annotations

import multiprocessing
import os
import socket


def one_of_many(rank, world, port, result, function, arguments):
    told = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_PORT": port}
    os.environ.update({"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in told.items()}})
    result.send(function(*arguments))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def started(world: int, function, *arguments) -> list:
    """Return what `function` returns in each of so many processes. A server that has torch loaded forks them."""
    port = free_port()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bertworks.commands.pretrain.verify_resume", "torch._dynamo"])
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    processes = [
        context.Process(target=one_of_many, args=(rank, world, port, pipe[1], function, arguments))
        for rank, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    try:
        assert all(pipe.poll(60) for pipe, _ in pipes), "a process does not answer"
        return [pipe.recv() for pipe, _ in pipes]
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.join(10)
            process.kill()
            pipe[0].close()
            pipe[1].close()
