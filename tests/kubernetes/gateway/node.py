"""A node for the pods of Gateway API's conformance suite: each gets a process in a network of its own, and Services get their addresses.

It is also what a cluster has for Deployments, EndpointSlices and namespaces that end.
"""

import base64
import datetime
import http.client
import http.server
import json
import os
import pathlib
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from cluster import POD, TOKENS, ApiError, certificate  # noqa: E402

NAME = "node"
# What the name of a pod has between that of its Deployment and its own.
POD_HASH = "weir"
# The device between the networks of pods, and its network.
BRIDGE, OWN = "weir-pods", "10.98.0.1"
KINDS = {"namespaces": "/api/v1", "pods": "/api/v1", "services": "/api/v1", "secrets": "/api/v1", "configmaps": "/api/v1",
         "deployments": "/apis/apps/v1", "endpointslices": "/apis/discovery.k8s.io/v1"}
# What a namespace that ends takes with it, beside these kinds.
ROUTES = [f"/apis/gateway.networking.k8s.io/v1/{plural}" for plural in (
    "gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes", "tcproutes", "udproutes", "referencegrants", "backendtlspolicies")]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def key(object):
    return object["metadata"].get("namespace", ""), object["metadata"]["name"]


class Running:
    """The process of a pod, and what it has written."""

    def __init__(self, number, args, env):
        self.net = f"weir-{os.getpid()}-{number}"
        self.ip = f"10.98.{number // 250}.{number % 250 + 2}"
        device = f"weir{number}"
        ip("netns", "add", self.net)
        ip("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", self.net)
        ip("link", "set", device, "master", BRIDGE, "up")
        ip("-n", self.net, "link", "set", "lo", "up")
        ip("-n", self.net, "address", "add", f"{self.ip}/16", "dev", "eth0")
        ip("-n", self.net, "link", "set", "eth0", "up")
        self.lines = []
        self.child = subprocess.Popen(["ip", "netns", "exec", self.net, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.child.stdout:
            self.lines.append((time.time(), line))

    def end(self):
        self.child.kill()
        self.child.wait()
        subprocess.run(["ip", "netns", "del", self.net], check=False, capture_output=True)


class Node:
    def __init__(self, api, dir, echo):
        self.api, self.dir, self.echo = api, dir, str(echo)
        self.objects = {plural: {} for plural in KINDS}
        self.running, self.last = {}, 0
        self.changed, self.stop = threading.Event(), False
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("address", "add", f"{OWN}/16", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        self.answers_for_logs()
        for plural in KINDS:
            threading.Thread(target=self.follow, args=(plural,), daemon=True).start()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def end(self):
        self.stop = True
        self.changed.set()
        self.thread.join(20)
        for one in self.running.values():
            one.end()

    # What the cluster has.

    def follow(self, plural):
        """Keeps the objects of a kind, for ever."""
        while not self.stop:
            try:
                path = f"{KINDS[plural]}/{plural}"
                listed = self.api.call("GET", path)
                self.objects[plural] = {key(one): one for one in listed["items"]}
                self.changed.set()
                version = listed["metadata"]["resourceVersion"]
                connection = http.client.HTTPSConnection("127.0.0.1", self.api.port, context=self.api.context, timeout=120)
                connection.request("GET", f"{path}?watch=1&resourceVersion={version}", headers={"Authorization": f'Bearer {TOKENS["admin"]}'})
                for line in connection.getresponse():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    known = {**self.objects[plural]}
                    if event["type"] == "DELETED":
                        known.pop(key(event["object"]), None)
                    else:
                        known[key(event["object"])] = event["object"]
                    self.objects[plural] = known
                    self.changed.set()
            except (OSError, http.client.HTTPException, ValueError, ApiError):
                time.sleep(0.2)

    def work(self):
        while not self.stop:
            # What waits for something else than an object is looked at again.
            self.changed.wait(0.5)
            self.changed.clear()
            for step in (self.deployments, self.pods, self.services, self.namespaces):
                try:
                    step()
                except (ApiError, OSError, subprocess.CalledProcessError) as error:
                    print(f"node: {error}", flush=True)

    def call(self, method, path, body=None, kind="application/json"):
        """A request whose object may be gone, or there already."""
        try:
            return self.api.call(method, path, body, kind)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    # Deployments to pods.

    def deployments(self):
        pods = self.objects["pods"]
        for (space, name), one in self.objects["deployments"].items():
            template = one["spec"]["template"]
            for n in range(one["spec"].get("replicas", 1)):
                if (space, f"{name}-{POD_HASH}-{n}") in pods or one["metadata"].get("deletionTimestamp"):
                    continue
                meta = {"name": f"{name}-{POD_HASH}-{n}", "namespace": space, "labels": template["metadata"]["labels"], "annotations": {"weir/of": name}}
                self.call("POST", f"/api/v1/namespaces/{space}/pods",
                          {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**template["spec"], "nodeName": NAME}})
        for (space, name), pod in pods.items():
            owner = pod["metadata"].get("annotations", {}).get("weir/of")
            if owner and (space, owner) not in self.objects["deployments"]:
                self.call("DELETE", f"/api/v1/namespaces/{space}/pods/{name}?gracePeriodSeconds=0")

    # Pods to processes.

    def pods(self):
        pods = self.objects["pods"]
        for where in [where for where in self.running if where not in pods or pods[where]["metadata"]["uid"] != self.running[where].uid]:
            self.running.pop(where).end()
        for where, pod in pods.items():
            path = f"/api/v1/namespaces/{where[0]}/pods/{where[1]}"
            if pod["metadata"].get("deletionTimestamp"):
                if where in self.running:
                    self.running.pop(where).end()
                self.call("DELETE", f"{path}?gracePeriodSeconds=0")
                continue
            if where not in self.running and not self.begin(where, pod):
                continue
            one = self.running[where]
            if one.ready or not self.answers(one):
                continue
            one.ready = True
            now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            conditions = [{"type": kind, "status": "True", "lastTransitionTime": now}
                          for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]
            container = pod["spec"]["containers"][0]
            state = {"name": container["name"], "ready": True, "restartCount": 0, "image": container["image"], "imageID": "", "started": True,
                     "state": {"running": {"startedAt": now}}}
            self.call("PATCH", f"{path}/status", {"status": {
                "phase": "Running", "podIP": one.ip, "podIPs": [{"ip": one.ip}], "hostIP": POD, "startTime": now,
                "conditions": conditions, "containerStatuses": [state]}}, "application/merge-patch+json")

    def begin(self, where, pod):
        """Starts a pod's process; whether its volumes are there."""
        container = pod["spec"]["containers"][0]
        paths = {}
        for volume in pod["spec"].get("volumes", []):
            source = volume.get("secret") or volume.get("configMap")
            if source is None:
                continue
            name = source.get("secretName") or source["name"]
            object = self.objects["secrets" if "secret" in volume else "configmaps"].get((where[0], name))
            if object is None:
                return False
            folder = self.dir / "volumes" / pod["metadata"]["uid"] / volume["name"]
            folder.mkdir(parents=True, exist_ok=True)
            data = object.get("data", {})
            files = {item["key"]: item["path"] for item in source.get("items", [])} or {file: file for file in data}
            for entry, file in files.items():
                content = base64.b64decode(data[entry]) if "secret" in volume else data[entry].encode()
                (folder / file).write_bytes(content)
            for mount in container.get("volumeMounts", []):
                if mount["name"] == volume["name"]:
                    paths[mount["mountPath"]] = str(folder)
        env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        for one in container.get("env", []):
            field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            value = {"metadata.name": where[1], "metadata.namespace": where[0]}.get(field, one.get("value", ""))
            for mount, folder in paths.items():
                if value.startswith(mount + "/"):
                    value = folder + value[len(mount):]
            env[one["name"]] = value
        args = [sys.executable, __file__, "names"] if "coredns" in container["image"] else [self.echo]
        self.last += 1
        one = Running(self.last, args, env)
        one.uid, one.ready = pod["metadata"]["uid"], False
        one.udp = "UDP_ECHO_SERVER" in env or "coredns" in container["image"]
        one.port = int(env.get("TCP_PORT", 3000))
        self.running[where] = one
        return True

    def answers(self, one):
        """Whether a process listens."""
        if one.udp:
            table = subprocess.run(["ip", "netns", "exec", one.net, "cat", "/proc/net/udp", "/proc/net/udp6"], capture_output=True, text=True)
            return table.stdout.count("\n") > 2
        with socket.socket() as s:
            s.settimeout(0.2)
            return s.connect_ex((one.ip, one.port)) == 0

    # Services to addresses.

    def services(self):
        for (space, name), service in self.objects["services"].items():
            selector = service["spec"].get("selector")
            if not selector:
                continue
            fits = [(where, pod) for where, pod in self.objects["pods"].items()
                    if where[0] == space and selector.items() <= pod["metadata"].get("labels", {}).items()]
            ready = sorted(self.running[where].ip for where, _ in fits if where in self.running and self.running[where].ready)
            ports = [{"name": port.get("name", ""), "port": port["targetPort"], "protocol": port.get("protocol", "TCP"),
                      **({"appProtocol": port["appProtocol"]} if "appProtocol" in port else {})} for port in service["spec"]["ports"]]
            endpoints = [{"addresses": [address], "conditions": {"ready": True, "serving": True, "terminating": False}} for address in ready]
            slice = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
                     "metadata": {"name": f"{name}-weir", "namespace": space, "labels": {"kubernetes.io/service-name": name}}}
            known = self.objects["endpointslices"].get((space, f"{name}-weir"))
            if known is None:
                self.call("POST", f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices", slice)
            elif (known["ports"], known["endpoints"]) != (ports, endpoints):
                self.call("PUT", f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices/{name}-weir", slice)
        for (space, name), slice in self.objects["endpointslices"].items():
            service = slice["metadata"].get("labels", {}).get("kubernetes.io/service-name")
            if name == f"{service}-weir" and (space, service) not in self.objects["services"]:
                self.call("DELETE", f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices/{name}")

    # Namespaces that end.

    def namespaces(self):
        for (_, name), one in self.objects["namespaces"].items():
            if not one["metadata"].get("deletionTimestamp") or not one["spec"].get("finalizers"):
                continue
            kinds = [f"{head}/{plural}" for plural, head in KINDS.items() if plural != "namespaces"] + ROUTES
            for path in kinds:
                head, plural = path.rsplit("/", 1)
                for object in self.api.call("GET", f"{head}/namespaces/{name}/{plural}")["items"]:
                    self.call("DELETE", f'{head}/namespaces/{name}/{plural}/{object["metadata"]["name"]}?gracePeriodSeconds=0')
            self.call("PUT", f"/api/v1/namespaces/{name}/finalize", {**one, "spec": {**one["spec"], "finalizers": []}})

    # What pods have written: the API server asks the node.

    def answers_for_logs(self):
        node = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                path, _, query = self.path.partition("?")
                parts = path.strip("/").split("/")
                since = 0.0
                for word in query.split("&"):
                    if word.startswith("sinceTime="):
                        text = word[10:].replace("%3A", ":").replace("Z", "+00:00").replace("%2B", "+")
                        since = datetime.datetime.fromisoformat(text).timestamp()
                one = node.running.get(tuple(parts[1:3])) if parts[0] == "containerLogs" else None
                body = "".join(line for at, line in (list(one.lines) if one else []) if at >= since).encode()
                self.send_response(200 if one else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

        server = Server((POD, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate(self.dir, "node", [POD]))
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}})
        self.api.call("PATCH", f"/api/v1/nodes/{NAME}/status", {"status": {
            "addresses": [{"type": "InternalIP", "address": POD}], "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_address[1]}}}},
            "application/merge-patch+json")


def names():
    """A name server in the place of CoreDNS: each question for an address gets one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("0.0.0.0", 53))
        while True:
            query, sender = s.recvfrom(2048)
            end = query.index(0, 12) + 5
            head = query[:2] + struct.pack(">HHHHH", 0x8180, 1, 1, 0, 0)
            s.sendto(head + query[12:end] + b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton("192.0.2.1"), sender)


if __name__ == "__main__":
    names()
