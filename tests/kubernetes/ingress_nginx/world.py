"""Runs specs in a network of its own: weir on the ports 80 and 443, pods behind it, and a name server."""

import base64
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import backends
import words

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from cluster import Names, Process, certificate  # noqa: E402

WITHIN = float(os.environ.get("WEIR_EXAM_SECONDS", "2"))
# A gRPC server for the specs: weir itself, which says what it got.
GRPC = """
events {{}}
http {{
    server {{
        listen 10.99.7.1:9000;
        listen 10.99.7.1:9001 ssl;
        http2 on;
        ssl_certificate {crt};
        ssl_certificate_key {key};
        location / {{
            default_type application/grpc;
            access_log off;
            return 200 "content-type=$content_type\\n:authority=$http_host\\nauthorization=$http_authorization\\nscheme=$scheme\\n";
        }}
        location /slow {{
            default_type application/grpc;
            proxy_pass http://10.99.4.1/sleep/25;
        }}
    }}
}}
"""


class Wrong(Exception):
    pass


class Resolver(Names):
    """The name server of the network."""

    def __init__(self, table):
        self.table, self.socket = table, socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self.serve, daemon=True).start()


class World:
    def __init__(self, dir, binaries):
        self.dir = dir
        self.weir, self.controller = f"{binaries}/weir", f"{binaries}/weir-ingress"
        self.pods = {}
        self.names = {}
        subprocess.run("ip link set lo up; ip route add local 10.99.0.0/16 dev lo; ip route add local 10.98.0.0/16 dev lo", shell=True, check=True)
        tls = self.certificate("echo-tls", ["echo-tls", "proxyssl.com"])
        kinds = {"echo": backends.echo, "httpbun": backends.bun, "httpbun-canary": backends.bun, "slow-echo": backends.slow, "cookies": backends.cookies,
                 "first-service": backends.echo, "second-service": backends.echo, "echo-two": backends.echo}
        for name, kind in kinds.items():
            first, _, _ = words.PODS[name].rpartition(".")
            for n in range(1, 17 if name == "echo" else 4):
                self.pods[f"{name}-{n}"] = backends.Pod(f"{name}-{n}", f"{first}.{n}", kind)
        self.pods["cluster-ip"] = backends.Pod("cluster-ip", words.CLUSTER_IP, backends.echo)
        self.pods["echo-tls-1"] = backends.Pod("echo-tls-1", words.PODS["echo-tls"], backends.echo, 443, tls)
        backends.FastCgi(words.PODS["fastcgi"])
        Resolver(self.names)
        conf = self.dir / "grpc.conf"
        conf.write_text(GRPC.format(crt=tls[0], key=tls[1]))
        (self.dir / "logs").mkdir()
        self.grpc = self.begin("grpc", self.dir, conf)

    def begin(self, name, dir, conf):
        return Process(name, dir, [self.weir, "-p", str(dir), "-c", str(conf), "-e", "stderr", "-g", "daemon off; user root;"])

    def certificate(self, name, hosts):
        """A certificate of the world's authority: paths."""
        if (self.dir / f"{name}.crt").exists():
            return self.dir / f"{name}.crt", self.dir / f"{name}.key"
        return certificate(self.dir, name, hosts)

    def end(self):
        self.grpc.end()


class Run:
    """One spec."""

    def __init__(self, world, number, spec):
        self.world, self.spec = world, spec
        self.dir = world.dir / f"spec-{number}"
        for name in ("logs", "state", "objects"):
            (self.dir / name).mkdir(parents=True)
        self.objects, self.cookies, self.first, self.process, self.changed = {}, {}, {}, None, True
        self.conf = self.said = ""
        self.put(words.klass("nginx"))
        for service, address in words.PODS.items():
            ports = words.PORTS.get(service, [80])
            ip = words.CLUSTER_IP if service == "echo" else None
            self.put(words.svc(service, ports=[(f"p{p}" if len(ports) > 1 else None, p) for p in ports], ip=ip))
            slices = words.pods(service, [address], ports[0])
            slices["ports"] = [{"port": p, **({"name": f"p{p}"} if len(ports) > 1 else {})} for p in ports]
            self.put(slices)

    def put(self, object):
        if "drop" in object:
            kind, name = object["drop"]
            self.objects = {k: o for k, o in self.objects.items() if (k[0], k[2]) != (kind, name)}
            return
        if "pair" in object:
            object = self.pair(object)
        meta = object["metadata"]
        if object["kind"] == "Ingress":
            key = (object["kind"], meta.get("namespace"), meta["name"])
            born = self.objects[key]["metadata"]["creationTimestamp"] if key in self.objects else f"2026-01-01T00:00:{len(self.objects) % 60:02}Z"
            object = {**object, "metadata": {**meta, "creationTimestamp": born}}
            meta = object["metadata"]
        self.objects[object["kind"], meta.get("namespace"), meta["name"]] = object

    def pair(self, object):
        name = object["metadata"]["name"]
        hosts, authority = object["pair"]
        crt, key = self.world.certificate(f"{name}-{len(list(self.world.dir.iterdir()))}", hosts)
        data = {"tls.crt": crt.read_text(), "tls.key": key.read_text()}
        if authority:
            data["ca.crt"] = (self.world.dir / "authority.crt").read_text()
        return {"apiVersion": "v1", **words.secret(name, data)}

    # The configuration of the objects.

    def text(self, command="print"):
        for old in (self.dir / "objects").iterdir():
            old.unlink()
        (self.dir / "objects" / "all.json").write_text(json.dumps({"kind": "List", "items": list(self.objects.values())}))
        args = [self.world.controller, command, str(self.dir / "objects"), "--state", str(self.dir / "state"), "--resolver=127.0.0.1", "--resolver=valid=1s",
                "--resolver=ipv6=off", *(() if any(f.startswith("--http=") for f in self.spec["flags"]) else ("--http=127.0.0.1:80", "--https=127.0.0.1:443")),
                "--allow-loopback", *self.spec["flags"]]
        if ("ConfigMap", words.NAMESPACE, "controller") in self.objects:
            args += ["--configmap", f"{words.NAMESPACE}/controller"]
        return subprocess.run(args, capture_output=True, text=True, timeout=60)

    def apply(self):
        """The objects to a configuration, and weir to it."""
        self.changed = False
        made = self.text()
        self.said = made.stderr
        if made.returncode:
            raise Wrong(f"weir-ingress print: {made.stderr.strip()[-400:]}")
        # Specs read the log in a file.
        self.conf = made.stdout.replace("access_log /dev/stdout", "access_log logs/access.log")
        file = self.dir / "weir.conf"
        file.write_text(self.conf)
        if self.process:
            self.process.send(signal.SIGHUP)
            return
        self.process = self.world.begin(self.dir.name, self.dir, file)
        limit = time.monotonic() + 30
        port = next((int(f.rpartition(":")[2]) for f in self.spec["flags"] if f.startswith("--http=")), 80)
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if self.process.child.poll() is not None or time.monotonic() > limit:
                    raise Wrong(f"weir does not start: {self.process.text().strip()[-600:]}") from None
                time.sleep(0.01)

    def run(self):
        try:
            for step in self.spec["steps"]:
                if "check" not in step:
                    self.put(step)
                    self.changed = True
                    continue
                if self.changed and step["check"] != "refused":
                    self.apply()
                self.until(step)
        finally:
            if self.process:
                self.process.end(signal.SIGTERM, 5)
            for pod in self.world.pods.values():
                pod.start()
            self.world.names.clear()
        shutil.rmtree(self.dir)

    def until(self, step):
        """A check may fail until the new configuration is served."""
        limit = time.monotonic() + step.get("within", WITHIN)
        while True:
            try:
                return getattr(self, "check_" + step["check"])(step)
            except (Wrong, OSError, http.client.HTTPException) as error:
                if time.monotonic() > limit or step["check"] in ("conf", "says", "refused"):
                    raise Wrong(f"{brief(step)}: {error}") from None
                time.sleep(0.05)

    # Checks.

    def ask(self, step):
        tls = step.get("tls")
        port = step.get("port") or (443 if tls else 80)
        sock = socket.create_connection(("127.0.0.1", port), 10)
        try:
            if step.get("proxy"):
                sock.sendall(step["proxy"].encode() + b"\r\n")
            peer = None
            if tls:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                if step.get("certificate"):
                    context.load_cert_chain(*self.world.certificate(step["certificate"], [step["certificate"]]))
                sock = context.wrap_socket(sock, server_hostname=step["host"] if tls is True else tls or None)
                peer = sock.getpeercert(True), sock.cipher()[0]
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.sock = sock
            headers = {"Host": step["host"], **step.get("send", {})}
            if not step["host"]:
                headers["Host"] = "127.0.0.1"
            if step.get("login"):
                headers["Authorization"] = "Basic " + base64.b64encode(":".join(step["login"]).encode()).decode()
            cookie = {**self.cookies, **step.get("cookie", {})}
            if cookie:
                headers["Cookie"] = "; ".join(f"{k}={v}" for k, v in cookie.items())
            connection.request(step.get("method", "GET"), step["path"], step.get("body"), headers)
            answer = connection.getresponse()
            body = answer.read()
            return answer, body.decode("latin-1"), peer
        finally:
            sock.close()

    def check_get(self, step):
        for _ in range(step.get("times", 1)):
            if step.get("grpc"):
                self.one_grpc(step)
                continue
            if step.get("fails"):
                try:
                    self.ask(step)
                except (OSError, http.client.HTTPException):
                    return
                raise Wrong("there is an answer")
            answer, body, peer = self.ask(step)
            wanted = step["status"]
            good = answer.status in wanted if isinstance(wanted, (list, range)) else answer.status == wanted
            if wanted and not good:
                raise Wrong(f"{answer.status} in place of {wanted}; {body[:200]!r}")
            self.compare(step, body, lambda name: ", ".join(answer.headers.get_all(name)) if answer.headers.get_all(name) else None)
            for what in ("issuer", "names", "cipher"):
                if what in step:
                    found = peer[1] if what == "cipher" else certificate_text(peer[0])
                    if not all(part in found for part in parts(step[what])):
                        raise Wrong(f"{what}: {found[:300]!r}")
            if step.get("keep"):
                found = re.search(re.escape(step["keep"]) + "=([^;]*)", answer.headers.get("Set-Cookie", ""))
                if not found:
                    raise Wrong(f"no cookie {step['keep']}")
                self.cookies[step["keep"]] = found[1]
            if step.get("same"):
                server = re.search("Hostname: (.*)", body)[1]
                if self.first.setdefault(step["same"], server) != server:
                    raise Wrong(f"{server}, and another one before")

    def compare(self, step, body, header):
        for part in parts(step.get("has")):
            if part not in body:
                raise Wrong(f"{part!r} is not in {body[:900]!r}")
        for part in parts(step.get("lacks")):
            if part in body:
                raise Wrong(f"{part!r} is in {body[:900]!r}")
        for pattern in parts(step.get("matches")):
            if not re.search(pattern, body):
                raise Wrong(f"{pattern!r} does not match {body[:900]!r}")
        for name, wanted in step.get("headers", {}).items():
            if not wanted == header(name):
                raise Wrong(f"{name}: {header(name)!r} in place of {wanted!r}")

    def one_grpc(self, step):
        """A message to a gRPC server, by curl."""
        tls = step.get("tls")
        where = f"{'https' if tls else 'http'}://{step['host']}"
        args = ["curl", "-sS", "-k", "-i", "-m", "20", "--http2" if tls else "--http2-prior-knowledge", "--resolve", f"{step['host']}:{443 if tls else 80}:127.0.0.1",
                "-H", "content-type: application/grpc", "-H", "te: trailers", "--data-binary", "x", where + step["path"]]
        for name, value in step.get("send", {}).items():
            args[1:1] = ["-H", f"{name}: {value}"]
        done = subprocess.run(args, capture_output=True, text=True)
        if done.returncode:
            raise Wrong(f"curl: {done.stderr.strip()}")
        head, _, body = done.stdout.partition("\r\n\r\n")
        status = int(head.split()[1])
        if step["status"] and status != step["status"]:
            raise Wrong(f"{status} in place of {step['status']}; {done.stdout[:300]!r}")
        self.compare(step, done.stdout, lambda name: None)

    def check_conf(self, step):
        text = self.conf.replace('"', "")
        if not step["http"]:
            text = "\n".join(line for line in text.splitlines() if line.startswith(" " * 8))
        for part in step["parts"]:
            if part not in text:
                raise Wrong(f"{part!r} is not in the configuration")
        for part in step["lacks"]:
            if part in text:
                raise Wrong(f"{part!r} is in the configuration")

    def check_says(self, step):
        for part in step["parts"]:
            if part not in self.said:
                raise Wrong(f"{part!r} is not said: {self.said[:600]!r}")

    def check_log(self, step):
        file = self.dir / step["file"]
        text = file.read_text(errors="replace") if file.exists() else ""
        text += self.process.text()
        for part in step["parts"]:
            if part not in text:
                raise Wrong(f"{part!r} is not logged: {text[-600:]!r}")
        for part in step["lacks"]:
            if part in text:
                raise Wrong(f"{part!r} is logged")

    def check_refused(self, step):
        made = self.text("check")
        *_, last = [o for o in self.objects.values() if o["kind"] == "Ingress"]
        name = f"{last['metadata']['namespace']}/{last['metadata']['name']}"
        self.changed = True
        lines = made.stdout.splitlines()
        begin = next((n for n, line in enumerate(lines) if name in line), None)
        own = "" if begin is None else "\n".join([lines[begin], *(x for x in lines[begin + 1:] if x.startswith(" "))])
        wrong = f"{name}: error" in own or "  error" in own and not re.fullmatch(r"(?s)[^\n]*\n(  error\s+service [^\n]*\n?)+", own)
        if wrong == step["taken"]:
            raise Wrong(f"it is {'refused' if wrong else 'taken'}: {made.stdout.strip()[:500]!r}")

    def check_spread(self, step):
        counts = {}
        for _ in range(step["count"]):
            answer, body, _ = self.ask(step)
            if answer.status != 200:
                raise Wrong(f"{answer.status}")
            server = re.search(r'Hostname: (.*)|"hostname": "([^"]*)"', body)
            name = server[1] or server[2]
            counts[name] = counts.get(name, 0) + 1
        if step["servers"] and len(counts) != step["servers"] or min(counts.values()) < step["least"]:
            raise Wrong(f"{counts}")
        if step["even"] and max(counts.values()) != min(counts.values()):
            raise Wrong(f"{counts}")

    def check_do(self, step):
        getattr(self, "do_" + step["name"])(*step["words"])

    def do_stop(self, pod):
        self.world.pods[pod].stop()

    def do_name(self, name, address):
        self.world.names[name] = address

    def do_parallel(self, host, path, count, wanted):
        """So many requests at once: how many of each status."""
        statuses = []

        def one():
            try:
                statuses.append(self.ask({"host": host, "path": path})[0].status)
            except (OSError, http.client.HTTPException) as error:
                statuses.append(repr(error))

        threads = [threading.Thread(target=one) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        found = {status: statuses.count(status) for status in statuses}
        if found != wanted:
            raise Wrong(f"{found} in place of {wanted}")

    def do_raw(self, text, lacks, has=()):
        """Bytes of a connection, and what comes back within a second."""
        with socket.create_connection(("127.0.0.1", 80), 5) as sock:
            sock.sendall(text.encode())
            sock.settimeout(1)
            got = b""
            try:
                while piece := sock.recv(65536):
                    got += piece
            except TimeoutError:
                pass
        text = got.decode("latin-1")
        if any(part in text for part in parts(lacks)) or not all(part in text for part in parts(has)):
            raise Wrong(repr(text[:300]))

    def do_ends(self, seconds):
        """weir ends of itself within so many seconds after SIGTERM or SIGQUIT."""
        self.process.send(signal.SIGQUIT)
        try:
            self.process.child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Wrong("it still runs") from None

    def do_silent(self, word):
        if word in self.said:
            raise Wrong(f"{word} is named: {self.said[:300]!r}")

    def do_plain(self, directive, wanted):
        """weir with a configuration that nobody made from objects."""
        self.process.end()
        file = self.dir / "plain.conf"
        file.write_text(f"events {{}} http {{ server {{ listen 127.0.0.1:80; location / {{ default_type text/plain; {directive} }} }} }}")
        self.process = self.world.begin(self.dir.name + "-plain", self.dir, file)
        self.until(words.get("", has=wanted))

    def do_count(self, pod, least):
        if self.world.pods[pod].count < least:
            raise Wrong(f"{pod} had {self.world.pods[pod].count} requests")

    def do_forget(self, pod):
        self.world.pods[pod].count = 0


def parts(value):
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def certificate_text(der):
    done = subprocess.run(["openssl", "x509", "-inform", "DER", "-noout", "-subject", "-issuer", "-ext", "subjectAltName"], input=der, capture_output=True)
    return done.stdout.decode()


def brief(step):
    if step["check"] == "get":
        return f"{step.get('method', 'GET')} {step['host']}{step['path']}"
    return step["check"]
