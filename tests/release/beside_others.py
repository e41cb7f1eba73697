"""Uses HyperFrames beside Python's own gRPC, protobuf and OpenSSL in one process.

    python beside_others.py ours|theirs

The argument says whose libraries are loaded first. Run by test_wheel.py, which reads what the
loader bound to what.
"""

from __future__ import annotations

import sys
from concurrent import futures
from typing import Any


def load_ours() -> None:
    # Before torch, which `import hyperframes` imports first.
    import ctypes
    from pathlib import Path
    from sysconfig import get_path

    library = Path(get_path("purelib"), "hyperframes", "libhyperframes.so")
    ctypes.CDLL(str(library))


def use_ours() -> None:
    import hyperframes as hf

    client = hf.Client("127.0.0.1:1")
    try:
        client.call("ListJobs", {}, 3.0)
    except hf.Unavailable:
        return
    raise AssertionError("somebody answered on port 1")


def _echo_once() -> None:
    import grpc  # type: ignore[import-untyped]

    class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary("/any/thing")(b"x", timeout=30) == b"x"
    server.stop(None).wait()


def use_theirs() -> None:
    import ssl

    from google.protobuf import struct_pb2  # type: ignore[import-untyped]

    message = struct_pb2.Struct()
    message.update({"a": 1})
    assert struct_pb2.Struct.FromString(message.SerializeToString()) == message
    _echo_once()
    ssl.create_default_context()


def main() -> None:
    if sys.argv[1] == "ours":
        load_ours()
        use_ours()
        use_theirs()
    else:
        use_theirs()
        use_ours()
    use_theirs()
    use_ours()
    print("both worked")


if __name__ == "__main__":
    main()
