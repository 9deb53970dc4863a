"""A gRPC server and a gRPC client of grpcio's, for the tests beside this file.

    calls.py serve [CERTIFICATE KEY]   serves on a free port of 127.0.0.1, which it prints
    calls.py call PORT [CERTIFICATE]   calls through that port; prints "ok", or fails with what is wrong
"""

import queue
import sys
import threading
from concurrent import futures

import grpc

LARGE = 3_000_000


def unary(message, context):
    context.set_trailing_metadata((("x-trailing", "yes"), ("x-bits-bin", b"\x00\xff")))
    context.send_initial_metadata((("x-initial", dict(context.invocation_metadata()).get("x-asked", "")),))
    return b"unary:" + message


def down(message, context):
    for number in range(int(message)):
        yield b"%d" % number


def up(messages, context):
    return b"%d" % sum(len(message) for message in messages)


def both(messages, context):
    for message in messages:
        yield b"echo:" + message


def slow(message, context):
    """Answers nothing in time; says how it ended to who asks `ended`."""
    gone = threading.Event()
    context.add_callback(gone.set)
    remaining = context.time_remaining()
    gone.wait(60)
    ENDED.put(b"%d" % (remaining is not None and 0 < remaining < 60))
    return b""


def ended(message, context):
    return ENDED.get(timeout=60)


def fails(message, context):
    context.abort(grpc.StatusCode.NOT_FOUND, "no such \N{SNOWMAN}, 100% sure")


ENDED = queue.Queue()
METHODS = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Down": grpc.unary_stream_rpc_method_handler(down),
    "Up": grpc.stream_unary_rpc_method_handler(up),
    "Both": grpc.stream_stream_rpc_method_handler(both),
    "Slow": grpc.unary_unary_rpc_method_handler(slow),
    "Ended": grpc.unary_unary_rpc_method_handler(ended),
    "Fails": grpc.unary_unary_rpc_method_handler(fails),
}


class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return METHODS.get(details.method.removeprefix("/weir.Test/"))


def read(name):
    with open(name, "rb") as file:
        return file.read()


def serve(*names):
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8), handlers=[Handler()])
    if names:
        certificate, key = map(read, names)
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    # Until the process that started it closes the pipe.
    sys.stdin.read()


def same(found, expected):
    if found != expected:
        raise AssertionError(f"{found!r} is not {expected!r}")


def check_unary(channel):
    call = channel.unary_unary("/weir.Test/Unary")
    answer, done = call.with_call(b"one", metadata=(("x-asked", "this"),), timeout=60)
    same(answer, b"unary:one")
    same(dict(done.initial_metadata()).get("x-initial"), "this")
    trailing = dict(done.trailing_metadata())
    same((trailing.get("x-trailing"), trailing.get("x-bits-bin")), ("yes", b"\x00\xff"))
    same(len(call(b"l" * LARGE, timeout=60)), LARGE + len(b"unary:"))
    same(call(b"", timeout=60), b"unary:")


def check_streams(channel):
    same(list(channel.unary_stream("/weir.Test/Down")(b"2000", timeout=60)), [b"%d" % n for n in range(2000)])
    same(channel.stream_unary("/weir.Test/Up")((b"u" * 1000 for _ in range(2000)), timeout=60), b"2000000")
    # Each message is sent when the answer to the one before has come: nothing may be held back.
    turn = queue.Queue()
    answers = channel.stream_stream("/weir.Test/Both")(iter(turn.get, None), timeout=60)
    for number in range(100):
        turn.put(b"%d" % number)
        same(next(answers), b"echo:%d" % number)
    turn.put(None)
    same(list(answers), [])
    same(answers.code(), grpc.StatusCode.OK)


def check_status(call, code, **how):
    try:
        call(b"", **how)
    except grpc.RpcError as error:
        same(error.code(), code)
        return error.details()
    raise AssertionError(f"no {code}")


def check_errors(channel):
    fails = channel.unary_unary("/weir.Test/Fails")
    same(check_status(fails, grpc.StatusCode.NOT_FOUND, timeout=60), "no such \N{SNOWMAN}, 100% sure")
    missing = channel.unary_unary("/weir.Test/Missing")
    check_status(missing, grpc.StatusCode.UNIMPLEMENTED, timeout=60)
    slow = channel.unary_unary("/weir.Test/Slow")
    check_status(slow, grpc.StatusCode.DEADLINE_EXCEEDED, timeout=0.5)
    # The server knew of the deadline, and that the client gave up.
    same(channel.unary_unary("/weir.Test/Ended")(b"", timeout=60), b"1")
    down = channel.unary_unary("/down/Unary")
    same(check_status(down, grpc.StatusCode.UNAVAILABLE, timeout=60), "unavailable")


def call(port, *names):
    target = f"localhost:{port}"
    if names:
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(read(names[0])))
    else:
        channel = grpc.insecure_channel(target)
    with channel:
        for check in (check_unary, check_streams, check_errors):
            check(channel)
    print("ok")


{"serve": serve, "call": call}[sys.argv[1]](*sys.argv[2:])
