"""Stop listening without resetting anybody: a listening socket in, one that refuses new handshakes out.

Linux resets the connections that wait in the queue of a listening socket when it is closed. A socket filter drops the
first packet (SYN) of new connections, so that the queue can be emptied first. A client whose SYN was dropped sends it
again after a second and is then refused, as by any closed port.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys

_SO_ATTACH_FILTER = 26
# A classic BPF program over the TCP header: (code, jump if true, jump if false, value).
_DROP_SYN = (
    (0x30, 0, 0, 13),  # load byte 13: the flags
    (0x45, 0, 1, 0x02),  # is SYN set?
    (0x06, 0, 0, 0),  # yes: keep 0 bytes, which drops the packet
    (0x06, 0, 0, 0xFFFF_FFFF),  # no: keep it
)


def refuse_new_handshakes(sock: socket.socket) -> None:
    """Drop the SYN packets of a listening socket; where the system has no such filter, nothing changes."""
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN))
    option = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(program))
    with contextlib.suppress(OSError):  # a sandbox without socket filters
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
