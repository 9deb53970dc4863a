"""A client of Python's: MODE PORT ROOT NAME. `echo` sends a megabyte while it reads it again; `balanced` comes through a
balancer and prints what it hears; `abrupt` goes away in the middle of a record."""
import select
import socket
import ssl
import struct
import sys

mode, port, root, name = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
context = ssl.create_default_context(cafile=root)
plain = socket.create_connection(("127.0.0.1", port), timeout=30)
if mode == "balanced":
    # The handshake begins in the same packet.
    plain.send(b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 443\r\n", socket.MSG_MORE)
client = context.wrap_socket(plain, server_hostname=name)

if mode == "echo":
    text = bytes(n * n % 251 for n in range(1 << 20))
    # One thread: a connection of OpenSSL is not for two at once.
    client.setblocking(False)
    sent, heard = 0, bytearray()
    while len(heard) < len(text):
        more = [client] if sent < len(text) else []
        if not any(select.select([client], more, [], 30)):
            break
        try:
            sent += client.send(text[sent : sent + 65536]) if more else 0
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        try:
            piece = client.recv(65536)
            if not piece:
                break
            heard += piece
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
    print("same" if heard == text else f"heard {len(heard)} of {len(text)}", client.version())
elif mode == "balanced":
    heard = b""
    while piece := client.recv(65536):
        heard += piece
    print(heard.decode())
elif mode == "abrupt":
    client.sendall(b"hello")
    print(client.recv(5).decode())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw = socket.socket(fileno=client.detach())
    raw.sendall(b"\x17\x03\x03\x40\x00 half a record")
    raw.close()
