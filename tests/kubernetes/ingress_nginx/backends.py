"""The pods of the specs: an echo server, one that answers what its path asks for, one with cookies, a slow one, and FastCGI."""

import base64
import http.server
import json
import socket
import socketserver
import ssl
import struct
import threading
import time


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        """A client that goes away is no error of a pod."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        self.sent = self.rfile.read(size)
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                self.sent += self.rfile.read(size + 2)[:-2]
            self.rfile.readline()
        self.server.pod.count += 1
        status, headers, body = self.server.pod.kind(self, self.path.partition("?")[0])
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = answer

    def log_message(self, *_):
        pass


def echo(request, path):
    """All that came, line by line."""
    host, _, port = request.headers.get("Host", "").partition(":")
    lines = [f"Hostname: {request.server.pod.name}", f"client_address={request.client_address[0]}", f"method={request.command}",
             f"request_version={request.request_version[5:]}", f"request_uri=http://{host}:{port or 80}{request.path}", f"body={len(request.sent)}"]
    lines += [f"{name.lower()}={value}" for name, value in request.headers.items()]
    headers = {"Content-Type": "text/plain"}
    query = request.path.partition("?")[2]
    if query == "hsts=true":
        headers["Strict-Transport-Security"] = "max-age=3600; preload"
    if query.startswith("redirect="):
        return 302, {"Location": query[9:]}, b""
    if query.startswith("cookie="):
        headers["Set-Cookie"] = query[7:]
    if query.startswith("size="):
        lines.append("x" * int(query[5:]))
    return 200, headers, ("\n".join(lines) + "\n").encode()


def bun(request, path):
    """What the path asks for."""
    parts = path.strip("/").split("/")
    head = parts[0]
    if head == "status":
        return int(parts[1]), {}, b""
    if head == "basic-auth":
        given = request.headers.get("Authorization") or ""
        wanted = "Basic " + base64.b64encode(f"{parts[1]}:{parts[2]}".encode()).decode()
        return (200 if given == wanted else 401), ({} if given == wanted else {"WWW-Authenticate": 'Basic realm="Fake Realm"'}), b"{}"
    if head == "bytes":
        return 200, {"Content-Type": "application/octet-stream"}, b"b" * int(parts[1])
    if head == "xml":
        return 200, {"Content-Type": "application/xml"}, b"<?xml version='1.0'?>\n<a>" + b"<b>text</b>" * 100 + b"</a>\n"
    if head == "html":
        return 200, {"Content-Type": "text/html"}, b"<!doctype html><html><body>" + b"<p>text</p>" * 100 + b"</body></html>\n"
    if head == "response-headers":
        pairs = dict(p.split("=", 1) for p in request.path.partition("?")[2].split("&") if p)
        return 200, pairs, b"{}"
    text = json.dumps({"hostname": request.server.pod.name, "path": request.path, "headers": dict(request.headers.items())})
    return 200, {"Content-Type": "application/json"}, text.encode()


def cookies(request, path):
    """/cookies/set/NAME/VALUE sets a cookie, /error fails, and all else is well."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["cookies", "set"]:
        return 200, {"Set-Cookie": f"{parts[2]}={parts[3]}"}, b"OK\n"
    return (503 if parts[0] == "error" else 200), {}, b""


def slow(request, path):
    """/sleep/N takes N tenths of a second."""
    parts = path.strip("/").split("/")
    if parts[0] == "sleep":
        time.sleep(int(parts[1]) / 10)
    return 200, {}, b"ok"


class Pod:
    def __init__(self, name, address, kind, port=80, tls=None):
        self.name, self.address, self.port, self.kind, self.count, self.server, self.tls = name, address, port, kind, 0, None, tls
        self.start()

    def start(self):
        if self.server:
            return
        self.server = Server((self.address, self.port), Handler)
        self.server.pod = self
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls)
            context.load_verify_locations(self.tls[0])
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self):
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


class FastCgi:
    """Says hello, and the parameters that it got."""

    def __init__(self, address, port=9000):
        self.socket = socket.create_server((address, port))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.socket.accept()
            threading.Thread(target=self.one, args=(connection,), daemon=True).start()

    def one(self, connection):
        with connection, connection.makefile("rwb") as stream:
            params = b""
            while head := stream.read(8):
                _, kind, number, length, padding = struct.unpack(">BBHHBx", head)
                content = stream.read(length)
                stream.read(padding)
                if kind == 4:
                    params += content
                if kind == 5 and not length:
                    text = "Status: 200 OK\r\nContent-Type: text/plain\r\n\r\nHello world!\n" + "".join(f"{k}={v}\n" for k, v in pairs(params))
                    body = text.encode()
                    stream.write(struct.pack(">BBHHBx", 1, 6, number, len(body), 0) + body)
                    stream.write(struct.pack(">BBHHBx", 1, 6, number, 0, 0) + struct.pack(">BBHHBx", 1, 3, number, 8, 0) + bytes(8))
                    stream.flush()
                    return


def pairs(data):
    at = 0

    def length():
        nonlocal at
        if data[at] < 128:
            at += 1
            return data[at - 1]
        at += 4
        return struct.unpack(">I", data[at - 4:at])[0] & 0x7FFFFFFF

    while at < len(data):
        name, value = length(), length()
        yield data[at:at + name].decode(), data[at + name:at + name + value].decode()
        at += name + value
