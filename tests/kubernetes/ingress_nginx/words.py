"""The words that a spec is written in: objects of a cluster, changes of them, and what is expected then."""

import base64

PREFIX = "nginx.ingress.kubernetes.io/"
NAMESPACE = "t"
SPECS = []
AREA = [""]


def area(name):
    AREA[0] = name


def spec(name, *steps, flags=(), snippets=False, known=None):
    """A spec: objects and checks in the order in which they come. `known` says why it fails."""
    if snippets:
        flags = [*flags, *(f"--allow-snippet-directive={d}" for d in SNIPPETS)]
    SPECS.append({"area": AREA[0], "name": name, "steps": steps, "flags": list(flags), "known": known})


def cannot(name, why):
    """A spec that does not run here."""
    SPECS.append({"area": AREA[0], "name": name, "cannot": why})


# What a cluster's administrator would have to allow for the snippets of the specs.
SNIPPETS = ["more_set_headers", "more_set_input_headers", "proxy_set_header", "grpc_ssl_name", "grpc_ssl_server_name", "default_type"]


# Objects.

def annotations(pairs):
    """Keywords to annotations: a name with underscores, or a whole one in a dictionary `full`."""
    full = dict(pairs.pop("full", {}))
    return {**{PREFIX + name.replace("_", "-"): str(value) for name, value in pairs.items()}, **full}


def backend(service, port):
    port = {"name": port} if isinstance(port, str) else {"number": port}
    return {"service": {"name": service, "port": port}}


def ing(host, path="/", service="echo", *, name=None, port=80, kind="Prefix", tls=None, klass="nginx", namespace=NAMESPACE, default=None,
        rules=None, more=(), **pairs):
    """An Ingress with a path (or several, in a list) of a host; `more` has further rules: host, path, service."""
    if rules is None:
        paths = path if isinstance(path, list) else [path]
        rule = {"http": {"paths": [{"path": p, "pathType": kind, "backend": backend(service, port)} for p in paths]}}
        if host:
            rule["host"] = host
        rules = [rule]
        for other, p, s in more:
            rules.append({"host": other, "http": {"paths": [{"path": p, "pathType": kind, "backend": backend(s, port)}]}})
    body = {"rules": rules} if rules else {}
    if klass:
        body["ingressClassName"] = klass
    if default:
        body["defaultBackend"] = backend(default, 80)
    if tls:
        hosts = [host] if tls is True else tls
        body["tls"] = [{"hosts": hosts, "secretName": host}]
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": name or host or "no-host", "namespace": namespace, "annotations": annotations(pairs)}, "spec": body}


def klass(name, controller="k8s.io/ingress-nginx", **extra):
    return {"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": name, **extra}, "spec": {"controller": controller}}


def namespace(name, **labels):
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def svc(name, *, external=None, ports=((None, 80),), namespace=NAMESPACE, ip=None):
    listed = [{"port": number, **({"name": label} if label else {})} for label, number in ports]
    body = {"ports": listed} if listed else {}
    if external:
        body |= {"type": "ExternalName", "externalName": external}
    if ip:
        body["clusterIP"] = ip
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": body}


def pods(service, addresses, port=80, namespace=NAMESPACE, **endpoint):
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [{"port": port}],
            "metadata": {"name": f"{service}-1", "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
            "endpoints": [{"addresses": [a], **endpoint} for a in addresses]}


def replicas(count, service="echo"):
    """So many pods of a Service whose first one is there in any case."""
    first = PODS[service].rpartition(".")[0]
    return pods(service, [f"{first}.{n}" for n in range(1, count + 1)])


def cm(data=None, name="controller", namespace=NAMESPACE, **keys):
    """The ConfigMap of the controller, or another one."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace},
            "data": {**{k.replace("_", "-"): str(v) for k, v in keys.items()}, **(data or {})}}


def secret(name, data, namespace=NAMESPACE):
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
            "data": {k: base64.b64encode(v.encode()).decode() for k, v in data.items()}}


def pair(name, hosts=None, authority=False):
    """A Secret with a certificate for hosts, made by the world; with the authority's certificate if clients are to show one."""
    return {"kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "pair": [hosts or [name], authority]}


def drop(kind, name):
    return {"drop": (kind, name)}


# Where the pods of the known Services are; the world starts them.
PODS = {"echo": "10.99.1.1", "httpbun": "10.99.2.1", "httpbun-canary": "10.99.3.1", "slow-echo": "10.99.4.1", "cookies": "10.99.5.1",
        "fastcgi": "10.99.6.1", "grpcbin": "10.99.7.1", "echo-tls": "10.99.8.1", "first-service": "10.99.9.1", "second-service": "10.99.10.1",
        "echo-two": "10.99.11.1"}
PORTS = {"fastcgi": [9000], "grpcbin": [9000, 9001], "echo-tls": [443]}
CLUSTER_IP = "10.98.0.1"


# Checks.

class Has:
    """A text in which these are found."""

    def __init__(self, *parts):
        self.parts = parts

    def __eq__(self, other):
        return other is not None and all(part in other for part in self.parts)

    def __repr__(self):
        return f"has{self.parts}"


class Lacks:
    """A text in which these are not found, or no text."""

    def __init__(self, *parts):
        self.parts = parts

    def __eq__(self, other):
        return other is None or not any(part in other for part in self.parts)

    def __repr__(self):
        return f"lacks{self.parts}"


has, lacks = Has, Lacks


def get(host, path="/", status=200, **wanted):
    """A request and its answer.

    wanted: `has` and `lacks` (parts of the body), `headers` (a text, None for a header that must not be there, `has(...)`, `lacks(...)`).
    sent: `send` (headers), `method`, `body`, `login` (name and password), `cookie`, `tls` (True, or the name that is asked for in the handshake),
    `certificate` (of the client), `port`, `proxy` (a line of the PROXY protocol), `grpc` (a message to a gRPC server).
    further: `issuer`, `names` and `cipher` (of the server's certificate and connection), `times` (so many requests; all must fit), `keep` (the answer's cookie of
    that name goes with later requests), `same` (all with this word are answered by one server), `fails` (there is no answer), `within` (seconds).
    """
    return {"check": "get", "host": host, "path": path, "status": status, **wanted}


def conf(*parts, lacks=(), http=False):
    """Directives that the servers have (with `http`: any part of the configuration), and those that they have not.

    Only for specs whose setting has no effect that a client or a server behind could see.
    """
    return {"check": "conf", "parts": parts, "lacks": [lacks] if isinstance(lacks, str) else list(lacks), "http": http}


def says(*parts):
    """What is said about the objects."""
    return {"check": "says", "parts": parts}


def log(*parts, lacks=(), file="logs/access.log"):
    return {"check": "log", "parts": parts, "lacks": [lacks] if isinstance(lacks, str) else list(lacks), "file": file}


def refused(*, taken=False):
    """An admission webhook with these objects refuses the last one, or takes it."""
    return {"check": "refused", "taken": taken}


def spread(host, path="/", count=100, servers=None, least=0, even=False, **sent):
    """Many requests: how many servers answer them, and how many of them each at least."""
    return {"check": "spread", "host": host, "path": path, "count": count, "servers": servers, "least": least, "even": even, **sent}


def do(name, *words):
    """Something else that the world can do."""
    return {"check": "do", "name": name, "words": words}
