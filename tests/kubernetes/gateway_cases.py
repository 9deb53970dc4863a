"""Objects of Gateway API at a real API server. The definitions of their kinds come from the Go module, as its maintainers release them."""

import os
import pathlib

from cluster import ApiError, Backend, endpoints, free_port, namespace, service, wait

GROUP = "gateway.networking.k8s.io"
KINDS = ["gatewayclasses", "gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes", "tcproutes", "udproutes", "referencegrants",
         "backendtlspolicies"]


def define(w, *plurals):
    """Defines these kinds, and waits until the API server has them."""
    for plural in plurals or KINDS:
        text = (pathlib.Path(os.environ["WEIR_GATEWAY_CRDS"]) / f"{GROUP}_{plural}.yaml").read_text()
        try:
            w.api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", text, "application/yaml")
        except ApiError as error:
            if error.status != 409:
                raise
    for plural in plurals or KINDS:
        wait(plural, 20, lambda: w.api.call("GET", f"/apis/{GROUP}/v1/{plural}")["items"] is not None)


def begin(w):
    """All kinds and the class."""
    define(w)
    w.api.put(thing("GatewayClass", None, "weir", {"controllerName": "weir.internal/gateway"}))


def undefine(w, plural):
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{GROUP}"
    w.api.call("DELETE", path)

    def gone():
        try:
            w.api.call("GET", path)
        except ApiError as error:
            return error.status == 404
    wait(f"no {plural}", 20, gone)


def thing(kind, space, name, spec):
    metadata = {"name": name, "namespace": space} if space else {"name": name}
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": metadata, "spec": spec}


def gateway(space, name, listeners, **rest):
    return thing("Gateway", space, name, {"gatewayClassName": "weir", "listeners": listeners, **rest})


def listener(name, port, protocol="HTTP", **rest):
    return {"name": name, "port": port, "protocol": protocol, **rest}


def route(space, name, parent, to, kind="HTTPRoute", hosts=(), matches=None, **rest):
    """A route of one rule; `to` are Services, or pairs of Service and weight."""
    refs = [{"name": one, "port": 80} if isinstance(one, str) else {"name": one[0], "port": 80, "weight": one[1]} for one in to]
    rule = {"backendRefs": refs, **({"matches": matches} if matches else {})}
    parent = {"name": parent} if isinstance(parent, str) else parent
    return thing(kind, space, name, {"parentRefs": [parent], **({"hostnames": list(hosts)} if hosts else {}), "rules": [rule], **rest})


def behind(w, space, name, backend):
    w.api.put(namespace(space))
    w.api.put(service(space, name))
    w.api.put(endpoints(space, name, [backend])[0])


def kinds_of_gateway_api_come_later_and_go(w):
    one, two = Backend("one"), Backend("two")
    # There are no such kinds when the pod starts: Ingresses do not wait for them.
    beside = w.site("comes", "beside", [two])
    w.soon("an Ingress", lambda: w.pod.who(beside) == "two")
    begin(w)
    behind(w, "comes", "one", one)
    port = free_port()
    w.api.put(gateway("comes", "web", [listener("http", port)]))
    w.api.put(route("comes", "site", "web", ["one"]))
    # The watches begin when the kinds are defined, which takes the API server a while.
    took = w.soon("traffic", lambda: w.pod.who("any.test", port=port) == "one", 10)
    w.api.put(route("comes", "site", "web", ["missing"]))
    moved = w.soon("a change", lambda: w.pod.who("any.test", port=port) == 500)
    w.api.put(route("comes", "site", "web", ["one"]))
    w.soon("a change", lambda: w.pod.who("any.test", port=port) == "one")
    undefine(w, "httproutes")
    w.soon("no route", lambda: w.pod.who("any.test", port=port) == 404)
    assert w.pod.who(beside) == "two"
    define(w, "httproutes")
    w.api.put(route("comes", "site", "web", ["one"]))
    again = w.soon("traffic", lambda: w.pod.who("any.test", port=port) == "one", 10)
    return f"traffic {took:.1f} s after the kinds came, {again:.1f} s after one came again; a change: {moved * 1000:.0f} ms"


def routes_change_under_running_workers(w):
    begin(w)
    one, two = Backend("one"), Backend("two")
    behind(w, "moves", "one", one)
    behind(w, "moves", "two", two)
    port = free_port()
    w.api.put(gateway("moves", "web", [listener("http", port)]))
    w.api.put(route("moves", "site", "web", ["one"], hosts=["a.moves.test"]))
    # Both groups of servers are there: another one would need shared memory, and so new workers.
    w.api.put(route("moves", "both", "web", ["one", "two"], hosts=["c.moves.test"]))
    w.soon("traffic", lambda: w.pod.who("a.moves.test", port=port) == "one", 3)
    w.soon("traffic", lambda: w.pod.who("c.moves.test", port=port) == "two")
    workers = w.pod.workers()
    client = w.client("a.moves.test", ("one", "two"), port=port)
    times = []
    for n in range(20):
        to = (two, one)[n % 2]
        w.api.put(route("moves", "site", "web", [to.name], hosts=["a.moves.test"]))
        times.append(w.soon("another Service", lambda: w.pod.who("a.moves.test", port=port) == to.name))
    w.api.put(route("moves", "other", "web", ["two"], hosts=["b.moves.test"]))
    w.soon("a new name", lambda: w.pod.who("b.moves.test", port=port) == "two")
    asked = client.done()
    assert w.pod.workers() == workers, (w.pod.workers(), workers)
    return f"median {sorted(times)[10] * 1000:.0f} ms, longest {max(times) * 1000:.0f} ms; {asked} requests, none lost, by the same workers"


def namespaces_are_selected_by_labels(w):
    begin(w)
    one = Backend("one")
    behind(w, "chosen", "one", one)
    w.api.put(namespace("chooses"))
    port = free_port()
    allowed = {"namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": "blue"}}}}
    w.api.put(gateway("chooses", "web", [listener("http", port, allowedRoutes=allowed)]))
    w.api.put(route("chosen", "site", {"name": "web", "namespace": "chooses"}, ["one"]))
    w.soon("no traffic", lambda: w.pod.who("any.test", port=port) == 404, 3)
    labels = lambda labels: w.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "chosen", "labels": labels}})
    labels({"team": "blue"})
    w.soon("traffic", lambda: w.pod.who("any.test", port=port) == "one")
    labels({"team": "red"})
    w.soon("no traffic", lambda: w.pod.who("any.test", port=port) == 404)


TESTS = [kinds_of_gateway_api_come_later_and_go, routes_change_under_running_workers, namespaces_are_selected_by_labels]
