"""An API server of Kubernetes on this machine, weir with weir-ingress beside it, and servers behind them."""

import base64
import http.client
import http.server
import itertools
import json
import os
import pathlib
import signal
import socket
import socketserver
import ssl
import struct
import subprocess
import threading
import time
import urllib.parse

TOKENS = {"admin": "admin-token", "ingress": "ingress-token", "ingresses-only": "ingresses-only-token", "kinds-only": "kinds-only-token",
          "no-secrets": "no-secrets-token"}
# An address of a pod: an EndpointSlice may have none of 127.0.0.0/8. `run` adds it to the loopback device of a network namespace.
POD = "10.99.0.1"
NAMESPACE = "weir-system"


PORTS = itertools.count(20000)

# The least time that an event has until a test fails, so that none fails on a machine that has other work. The suite prints how long
# changes take until traffic; WEIR_SOON=0 holds it to its own times, which are one second for most changes.
SOON = float(os.environ.get("WEIR_SOON", "30"))


def free_port():
    """A port below those that the kernel gives to connections, which could take it before a server listens there."""
    for port in PORTS:
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def wait(what, seconds, check):
    """Waits until `check` gives something; the seconds that it took."""
    seconds = max(seconds, SOON)
    begin = time.monotonic()
    last = None
    while time.monotonic() - begin < seconds:
        try:
            last = check()
            if last:
                return time.monotonic() - begin
        except (OSError, http.client.HTTPException, ApiError) as error:
            last = error
        time.sleep(0.005)
    raise AssertionError(f"{what}: not within {seconds} s, but {last!r}")


class ApiError(Exception):
    def __init__(self, status, text):
        super().__init__(f"{status}: {text[:500]}")
        self.status = status


class Process:
    """A child with its log; ended by its id."""

    def __init__(self, name, dir, args, env=None):
        self.name, self.args = name, args
        self.log = open(dir / f"{name}.log", "ab")
        self.env = {**os.environ, **(env or {})}
        self.start()

    def start(self):
        self.child = subprocess.Popen(self.args, stdout=self.log, stderr=self.log, env=self.env)

    def send(self, sig):
        self.child.send_signal(sig)

    def end(self, sig=signal.SIGTERM, seconds=20):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGCONT)
            self.child.send_signal(sig)
            try:
                self.child.wait(seconds)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        return self.child.returncode

    def text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")


class Backend:
    """A server behind: says its name, the request's line and its headers."""

    def __init__(self, name, status=200, host=POD, tls=None):
        backend = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                size = int(self.headers.get("Content-Length") or 0)
                self.rfile.read(size)
                body = json.dumps({"name": backend.name, "line": self.requestline,
                                   "headers": dict(self.headers.items())}).encode()
                status = backend.status(self) if callable(backend.status) else backend.status
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("X-User", "from-" + backend.name)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_POST = do_HEAD = do_PUT = do_OPTIONS = answer

            def log_message(self, *_):
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self.name, self.status = name, status
        self.server = Server((host, 0), Handler)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Names:
    """A name server that has one address for each name."""

    def __init__(self, table):
        self.table = table
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        # Some ask over TCP alone.
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.serve, daemon=True).start()
        threading.Thread(target=self.serve_tcp, daemon=True).start()

    def serve(self):
        while True:
            query, sender = self.socket.recvfrom(2048)
            self.socket.sendto(self.answer(query), sender)

    def serve_tcp(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve_client, args=[client], daemon=True).start()

    def serve_client(self, client):
        with client, client.makefile("rwb") as stream:
            while size := stream.read(2):
                answer = self.answer(stream.read(int.from_bytes(size, "big")))
                stream.write(len(answer).to_bytes(2, "big") + answer)
                stream.flush()

    def answer(self, query):
        end = query.index(0, 12) + 5
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode())
            at += query[at] + 1
        address = self.table.get(".".join(labels)) if query[end - 3] == 1 else None
        head = query[:2] + struct.pack(">HHHHH", 0x8180 if address or query[end - 3] != 1 else 0x8183, 1, bool(address), 0, 0)
        answer = head + query[12:end]
        if address:
            answer += b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton(address)
        return answer


def certificate(dir, name, hosts):
    """Certificate and key for these names: paths."""
    crt, key = dir / f"{name}.crt", dir / f"{name}.key"
    names = ",".join(("IP:" if h[0].isdigit() else "DNS:") + h for h in hosts)
    authority = (dir / "authority.crt", dir / "authority.key")
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    if not authority[0].exists():
        subprocess.run([*new, "-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", str(authority[1]), "-out", str(authority[0])],
                       check=True, capture_output=True)
    request = subprocess.run([*new, "-subj", f"/CN={name}", "-keyout", str(key)], check=True, capture_output=True).stdout
    extensions = dir / f"{name}.ext"
    extensions.write_text(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\n")
    subprocess.run(["openssl", "x509", "-req", "-days", "2", "-CA", str(authority[0]), "-CAkey", str(authority[1]), "-CAcreateserial",
                    "-extfile", str(extensions), "-out", str(crt)], input=request, check=True, capture_output=True)
    return crt, key


class ApiServer:
    def __init__(self, dir, binary):
        self.dir = dir
        self.etcd_port, self.port = free_port(), free_port()
        peer = free_port()
        self.etcd = Process("etcd", dir, [
            "etcd", "--data-dir", str(dir / "etcd"), "--listen-client-urls", f"http://127.0.0.1:{self.etcd_port}",
            "--advertise-client-urls", f"http://127.0.0.1:{self.etcd_port}", "--listen-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--initial-cluster", f"default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync"])
        crt, key = certificate(dir, "apiserver", ["127.0.0.1", "localhost"])
        signer = dir / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(signer), "2048"], check=True, capture_output=True)
        tokens = dir / "tokens.csv"
        users = {"admin": "admin,1,system:masters", "ingress": "weir-ingress,2", "ingresses-only": "ingresses-only,3", "kinds-only": "kinds-only,4",
                 "no-secrets": "no-secrets,5"}
        tokens.write_text("".join(f"{TOKENS[name]},{user}\n" for name, user in users.items()))
        self.process = Process("apiserver", dir, [
            str(binary), f"--etcd-servers=http://127.0.0.1:{self.etcd_port}", "--bind-address=127.0.0.1", f"--advertise-address={POD}", f"--secure-port={self.port}",
            f"--tls-cert-file={crt}", f"--tls-private-key-file={key}", f"--token-auth-file={tokens}", "--authorization-mode=RBAC",
            f"--service-account-key-file={signer}", f"--service-account-signing-key-file={signer}",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none", "--profiling=false"])
        self.authority = dir / "authority.crt"
        self.context = ssl.create_default_context(cafile=str(self.authority))
        self.local = threading.local()
        self.ready()

    def ready(self):
        wait("API server", 90, lambda: self.call("GET", "/readyz", raw=True) == "ok")

    def call(self, method, path, body=None, kind="application/json", raw=False):
        """One request, on a kept connection."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode() if body is not None else None
        head = {"Authorization": f'Bearer {TOKENS["admin"]}', "Content-Type": kind}
        for attempt in (0, 1):
            connection = getattr(self.local, "connection", None)
            if connection is None:
                connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=20)
                self.local.connection = connection
            try:
                connection.request(method, path, data, head)
                answer = connection.getresponse()
                text = answer.read().decode()
                break
            except (OSError, http.client.HTTPException):
                connection.close()
                self.local.connection = None
                if attempt:
                    raise
        if answer.status >= 300:
            raise ApiError(answer.status, text)
        return text if raw else json.loads(text)

    def put(self, object):
        """Creates or replaces an object."""
        path = self.path(object)
        try:
            return self.call("POST", path, object)
        except ApiError as error:
            if error.status != 409:
                raise
        name = object["metadata"]["name"]
        while True:
            # No resourceVersion: whatever is there is replaced. Objects of a CustomResourceDefinition need the newest one.
            object["metadata"].pop("resourceVersion", None)
            if "gateway" in object["apiVersion"]:
                object["metadata"]["resourceVersion"] = self.get(object)["metadata"]["resourceVersion"]
            try:
                return self.call("PUT", f"{path}/{name}", object)
            except ApiError as error:
                if error.status != 409:
                    raise

    def delete(self, object):
        return self.call("DELETE", f'{self.path(object)}/{object["metadata"]["name"]}')

    def get(self, object):
        return self.call("GET", f'{self.path(object)}/{object["metadata"]["name"]}')

    def path(self, object):
        version = object["apiVersion"]
        kind = object["kind"].lower()
        plural = kind[:-1] + "ies" if kind.endswith("policy") else kind + ("es" if kind.endswith("s") else "s")
        head = "/api/v1" if version == "v1" else f"/apis/{version}"
        namespace = object["metadata"].get("namespace")
        return f"{head}/namespaces/{namespace}/{plural}" if namespace else f"{head}/{plural}"

    def events(self, namespace, name):
        """What was told about an Ingress: reason and note."""
        items = self.call("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
        return {(e["reason"], e["note"]) for e in items if e["regarding"]["name"] == name}

    def compact(self):
        """Takes all of the history out of etcd."""
        url = f"http://127.0.0.1:{self.etcd_port}"
        subprocess.run(["etcdctl", f"--endpoints={url}", "put", "weir-test", "x"], check=True, capture_output=True,
                       env={**os.environ, "ETCDCTL_API": "3"})
        text = subprocess.run(["etcdctl", f"--endpoints={url}", "endpoint", "status", "-w", "json"], check=True,
                              capture_output=True, env={**os.environ, "ETCDCTL_API": "3"}).stdout
        revision = json.loads(text)[0]["Status"]["header"]["revision"]
        subprocess.run(["etcdctl", f"--endpoints={url}", "compact", str(revision)], check=True, capture_output=True,
                       env={**os.environ, "ETCDCTL_API": "3"})

    def end(self):
        self.process.end()
        self.etcd.end()


class Pod:
    """weir and weir-ingress beside it, as in a pod of the chart."""

    def __init__(self, name, dir, api, binaries, base, extra=(), user="ingress", http_lines="", address="127.0.0.1", lease="weir-ingress"):
        self.dir = dir / name
        self.dir.mkdir()
        self.http, self.https, self.health, self.figures = free_port(), free_port(), free_port(), free_port()
        conf = self.dir / "ingress.conf"
        base = base.replace("listen 8081", f"listen 127.0.0.1:{self.figures}")
        base = base.replace("/tmp/", "/run/weir/").replace("/run/weir/", f"{self.dir}/")
        conf.write_text(base.replace("http {", "http {\n    " + http_lines, 1))
        (self.dir / "files").mkdir(mode=0o700)
        kubeconfig = self.dir / "kubeconfig"
        ca = base64.b64encode(api.authority.read_bytes()).decode()
        kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"https://127.0.0.1:{api.port}", "certificate-authority-data": ca}}],
            "users": [{"name": "test", "user": {"token": TOKENS[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]}))
        self.weir = Process(f"{name}-weir", dir, [binaries["weir"], "-p", str(self.dir), "-c", str(conf), "-e", "stderr", "-g", "daemon off;"])
        self.controller = Process(f"{name}-ingress", dir, [
            binaries["weir-ingress"], "run", "--base", str(conf), "--weir", str(self.dir / "api.sock"),
            "--state", str(self.dir / "files"), "--health", f"127.0.0.1:{self.health}", "--http", f"127.0.0.1:{self.http}",
            "--https", f"127.0.0.1:{self.https}", "--allow-loopback", "--lease", f"{NAMESPACE}/{lease}",
            "--configmap", f"{NAMESPACE}/weir-ingress", "--drain", "2", "--publish-status-address", address, *extra],
            {"KUBECONFIG": str(kubeconfig), "POD_NAME": name})

    def ready(self):
        return wait("ready", 60, lambda: self.probe("/readyz")[0] == 200)

    def probe(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.health, timeout=5)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def metric(self, name):
        lines = self.probe("/metrics")[1].splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"weir_ingress_{name} "))

    def weir_metric(self, name):
        """One of weir's own."""
        text = self.ask("weir", "/metrics", port=self.figures).body
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))

    def workers(self):
        """The processes that weir has begun."""
        pid = self.weir.child.pid
        return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def ask(self, host, path="/", headers=None, method="GET", tls=False, body=None, port=None, address="127.0.0.1"):
        """Status, headers, and the body: read as JSON where it is."""
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            raw = socket.create_connection((address, port or self.https), timeout=10)
            stream = context.wrap_socket(raw, server_hostname=host)
            peer = stream.getpeercert(True)
            connection = http.client.HTTPConnection(host)
            connection.sock = stream
        else:
            connection, peer = http.client.HTTPConnection(address, port or self.http, timeout=10), None
        connection.request(method, path, body, {"Host": host, "Connection": "close", **(headers or {})})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        try:
            text = json.loads(text)
        except ValueError:
            pass
        connection.close()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, text, peer)

    def who(self, host, path="/", **rest):
        """Which server behind answered, or the status."""
        answer = self.ask(host, path, **rest)
        return answer.body["name"] if answer.status == 200 and isinstance(answer.body, dict) else answer.status

    def end(self):
        self.controller.end()
        self.weir.end(signal.SIGQUIT)


class Answer:
    def __init__(self, status, headers, body, peer):
        self.status, self.headers, self.body, self.peer = status, headers, body, peer

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body}"


def namespace(name):
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def service(namespace, name, external=None):
    spec = {"ports": [{"port": 80}]}
    if external:
        spec = {"type": "ExternalName", "externalName": external}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def endpoints(namespace, service, backends):
    """One slice for each port."""
    return [{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
             "metadata": {"name": f"{service}-{n}", "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
             "ports": [{"port": backend.port, "protocol": "TCP"}],
             "endpoints": [{"addresses": [POD], "conditions": {"ready": True}}]}
            for n, backend in enumerate(backends)]


def ingress(namespace, name, host, paths, annotations=None, tls=None, number=80):
    """Paths: (path, type, service). `tls` is the name of a Secret; an empty one names none."""
    rule = {"http": {"paths": [{"path": path, "pathType": kind, "backend": {"service": {"name": to, "port": {"number": number}}}}
                               for path, kind, to in paths]}}
    if host:
        rule["host"] = host
    spec = {"ingressClassName": "weir", "rules": [rule]}
    if tls is not None:
        spec["tls"] = [{"hosts": [host], **({"secretName": tls} if tls else {})}]
    annotations = {f"nginx.ingress.kubernetes.io/{k}": v for k, v in (annotations or {}).items()}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "spec": spec,
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations}}


def secret(namespace, name, data, kind="Opaque"):
    data = {key: base64.b64encode(value if isinstance(value, bytes) else value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": {"name": name, "namespace": namespace}, "data": data}


def config_map(namespace, name, data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}
