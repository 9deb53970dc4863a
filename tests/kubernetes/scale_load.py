"""Load beside a scale test, each in a process of its own: servers behind, clients that ask all the time, and WebSockets that stay open.

`scale_load.py serve PORT`, `scale_load.py ask PORT SITES RATE` and `scale_load.py hold PORT SITES COUNT`. The last two say a line of JSON
when they stand, and another one at the end of their input.
"""

import asyncio
import collections
import json
import random
import sys

HEAD = "GET {} HTTP/1.1\r\nHost: {}\r\n{}\r\n"


def host(n):
    return f"s{n}.scale.test"


async def answer(reader, writer):
    """A server behind: says at which address it was asked; a WebSocket gets back what it sends."""
    at = writer.get_extra_info("sockname")[0]
    body = json.dumps({"at": at}).encode()
    plain = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"upgrade: websocket" in head.lower():
                writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
                while part := await reader.read(1024):
                    writer.write(part)
                break
            writer.write(plain)
    except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
        pass
    writer.close()


async def serve(port):
    server = await asyncio.start_server(answer, "0.0.0.0", port, backlog=1024)
    print(json.dumps({"stands": True}), flush=True)
    async with server:
        await until_told()


async def until_told():
    """Until the end of the input."""
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def ask(port, sites, rate):
    """Asks sites that are there all the time, on kept connections and on new ones. Anything but 200 is lost."""
    seen, lost, stop = collections.Counter(), [], False

    async def client(own):
        dice, kept = random.Random(own), None
        while not stop:
            n = dice.randrange(sites)
            try:
                if kept is None:
                    kept = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 10)
                reader, writer = kept
                writer.write(HEAD.format("/", host(n), "").encode())
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
                status = int(head.split(b" ", 2)[1])
                lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                if b"content-length" in lines:
                    await asyncio.wait_for(reader.readexactly(int(lines[b"content-length"])), 10)
                closes = lines.get(b"connection") == b"close" or b"content-length" not in lines
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                status, closes = type(error).__name__, True
            seen[str(status)] += 1
            # Sites with passwords say 401 and those with certificates 308: they are there.
            if status not in (200, 401, 308):
                lost.append([host(n), str(status)])
            if kept and (closes or own % 2):
                kept[1].close()
                kept = None
            await asyncio.sleep(dice.expovariate(rate / 20))

    clients = [asyncio.create_task(client(own)) for own in range(20)]
    print(json.dumps({"stands": True}), flush=True)
    await until_told()
    stop = True
    await asyncio.wait(clients, timeout=15)
    print(json.dumps({"answers": dict(seen), "lost": len(lost), "first": lost[:20]}), flush=True)


async def hold(port, sites, count):
    """Opens WebSockets, and sends something through each of them from time to time."""
    dice, lost, sent, stop = random.Random(1), collections.Counter(), 0, False
    opened = []
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

    async def one(n):
        nonlocal sent
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 30)
            writer.write(HEAD.format("/", host(n), upgrade).encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            if b" 101 " not in head:
                raise OSError(head.split(b"\r\n")[0].decode())
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
            lost[f"not opened: {error!r}"] += 1
            return
        opened.append(n)
        while not stop:
            try:
                word = b"%08d" % dice.randrange(10**8)
                writer.write(word)
                if await asyncio.wait_for(reader.readexactly(8), 30) != word:
                    raise OSError("another answer")
                sent += 1
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                lost[repr(error)] += 1
                return
            await asyncio.sleep(dice.uniform(5, 15))

    # Sites without a password or a certificate.
    free = [n for n in range(sites) if n % 10 not in (8, 9)]
    tasks = [asyncio.create_task(one(free[n % len(free)])) for n in range(count)]
    while len(opened) + sum(lost.values()) < count:
        await asyncio.sleep(0.1)
    print(json.dumps({"stands": True, "opened": len(opened)}), flush=True)
    await until_told()
    stop = True
    alive = sum(not task.done() for task in tasks)
    print(json.dumps({"alive": alive, "words": sent, "lost": dict(lost)}), flush=True)


def main():
    what, *numbers = sys.argv[1:]
    asyncio.run({"serve": serve, "ask": ask, "hold": hold}[what](*map(int, numbers)))


if __name__ == "__main__":
    main()
