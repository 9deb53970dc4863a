"""Objects of Gateway API at a real API server. The definitions of their kinds come from the Go module, as its maintainers release them."""

import os
import pathlib
import signal
import socket

from cluster import ApiError, Backend, certificate, endpoints, namespace, secret, service, wait

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


def condition(status, kind):
    """A condition as a word: its reason, with ! in front if it does not hold, and the generation that it is about."""
    for one in status.get("conditions", []):
        if one["type"] == kind:
            return ("" if one["status"] == "True" else "!") + one["reason"], one.get("observedGeneration")
    return None, None


def is_told(w, object, kind, reason, part=lambda status: status):
    """Whether the newest generation of an object has a condition."""
    found = w.api.get(object)
    return condition(part(found.get("status", {})), kind) == (reason, found["metadata"]["generation"])


def parent(status, number=0):
    return (status.get("parents") or [{}])[number]


def address(w, gateway):
    """The address of a Gateway, once its status has it."""
    found = []

    def look():
        found[:] = [one["value"] for one in w.api.get(gateway).get("status", {}).get("addresses", [])]
        return found
    wait(f'an address of {gateway["metadata"]["name"]}', 20, look)
    return found[0]


def put_gateway(w, *args, **rest):
    """A Gateway, and its address."""
    w.api.put(gateway(*args, **rest))
    return address(w, gateway(*args, **rest))


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
    port = 8080
    ip = put_gateway(w, "comes", "web", [listener("http", port)])
    w.api.put(route("comes", "site", "web", ["one"]))
    # The watches begin when the kinds are defined, which takes the API server a while.
    took = w.soon("traffic", lambda: w.pod.who("any.test", port=port, address=ip) == "one", 10)
    w.api.put(route("comes", "site", "web", ["missing"]))
    moved = w.soon("a change", lambda: w.pod.who("any.test", port=port, address=ip) == 500)
    w.api.put(route("comes", "site", "web", ["one"]))
    w.soon("a change", lambda: w.pod.who("any.test", port=port, address=ip) == "one")
    undefine(w, "httproutes")
    w.soon("no route", lambda: w.pod.who("any.test", port=port, address=ip) == 404)
    assert w.pod.who(beside) == "two"
    define(w, "httproutes")
    w.api.put(route("comes", "site", "web", ["one"]))
    again = w.soon("traffic", lambda: w.pod.who("any.test", port=port, address=ip) == "one", 10)
    return f"traffic {took:.1f} s after the kinds came, {again:.1f} s after one came again; a change: {moved * 1000:.0f} ms"


def routes_change_under_running_workers(w):
    begin(w)
    one, two = Backend("one"), Backend("two")
    behind(w, "moves", "one", one)
    behind(w, "moves", "two", two)
    port = 8080
    ip = put_gateway(w, "moves", "web", [listener("http", port)])
    w.api.put(route("moves", "site", "web", ["one"], hosts=["a.moves.test"]))
    w.soon("traffic", lambda: w.pod.who("a.moves.test", port=port, address=ip) == "one", 3)
    workers = w.pod.workers()
    client = w.client("a.moves.test", ("one", "two"), port=port, address=ip)
    times = []
    for n in range(20):
        to = (two, one)[n % 2]
        w.api.put(route("moves", "site", "web", [to.name], hosts=["a.moves.test"]))
        times.append(w.soon("another Service", lambda: w.pod.who("a.moves.test", port=port, address=ip) == to.name))
    w.api.put(route("moves", "other", "web", ["two"], hosts=["b.moves.test"]))
    w.soon("a new name", lambda: w.pod.who("b.moves.test", port=port, address=ip) == "two")
    asked = client.done()
    assert w.pod.workers() == workers, (w.pod.workers(), workers)
    return f"median {sorted(times)[10] * 1000:.0f} ms, longest {max(times) * 1000:.0f} ms; {asked} requests, none lost, by the same workers"


def namespaces_are_selected_by_labels(w):
    begin(w)
    one = Backend("one")
    behind(w, "chosen", "one", one)
    w.api.put(namespace("chooses"))
    port = 8080
    allowed = {"namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": "blue"}}}}
    ip = put_gateway(w, "chooses", "web", [listener("http", port, allowedRoutes=allowed)])
    site = route("chosen", "site", {"name": "web", "namespace": "chooses"}, ["one"])
    w.api.put(site)
    # Each step ends with the statuses of it, so that nothing but the labels makes the next one.
    wait("a refusal", 10, lambda: is_told(w, site, "Accepted", "!NotAllowedByListeners", parent))
    assert w.pod.who("any.test", port=port, address=ip) == 404
    labels = lambda labels: w.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "chosen", "labels": labels}})
    labels({"team": "blue"})
    w.soon("traffic", lambda: w.pod.who("any.test", port=port, address=ip) == "one")
    wait("a word", 10, lambda: is_told(w, site, "Accepted", "Accepted", parent))
    labels({"team": "red"})
    w.soon("no traffic", lambda: w.pod.who("any.test", port=port, address=ip) == 404)


def gateways_have_addresses_of_the_range(w):
    begin(w)
    one = Backend("one")
    behind(w, "places", "one", one)
    http = [listener("http", 80)]
    first, second = (put_gateway(w, "places", name, http) for name in ("first", "second"))
    assert first != second and first.startswith("127.0.10."), (first, second)
    for name in ("first", "second"):
        w.api.put(route("places", name, name, ["one"], hosts=[f"{name}.test"]))
    w.soon("traffic", lambda: w.pod.who("first.test", port=80, address=first) == "one")
    w.soon("traffic", lambda: w.pod.who("second.test", port=80, address=second) == "one")
    assert w.pod.who("first.test", port=80, address=second) == 404
    # Each keeps its own when another one goes, and when weir-ingress starts anew.
    w.api.delete(gateway("places", "first", http))
    w.pod.controller.end()
    w.pod.controller.start()
    w.pod.ready()
    third = put_gateway(w, "places", "third", http)
    assert address(w, gateway("places", "second", http)) == second and third != second
    assert w.pod.who("second.test", port=80, address=second) == "one"
    # An address that is asked for, and one that weir does not have.
    asked = put_gateway(w, "places", "asked", http, addresses=[{"value": "127.0.10.77"}])
    assert asked == "127.0.10.77", asked
    w.api.put(gateway("places", "far", http, addresses=[{"value": "127.0.11.1"}]))
    far = gateway("places", "far", http)
    wait("a refusal", 5, lambda: is_told(w, far, "Programmed", "!AddressNotUsable"))
    return f"{first}, {second}, then {third}"


def statuses_say_what_is_served(w):
    begin(w)
    one = Backend("one")
    behind(w, "says", "one", one)
    class_ = thing("GatewayClass", None, "weir", {})
    wait("a class", 5, lambda: is_told(w, class_, "Accepted", "Accepted"))
    assert is_told(w, class_, "SupportedVersion", "SupportedVersion"), w.api.get(class_)["status"]
    names = [one["name"] for one in w.api.get(class_)["status"]["supportedFeatures"]]
    assert "HTTPRoute" in names and "GatewayInfrastructurePropagation" in names and names == sorted(names), names
    web = gateway("says", "web", [listener("http", 80), listener("tls", 443, "HTTPS")])
    w.api.put(web)
    site = route("says", "site", {"name": "web", "sectionName": "http"}, ["one"])
    w.api.put(site)
    took = wait("a route", 5, lambda: is_told(w, site, "Accepted", "Accepted", parent))
    found = w.api.get(web)["status"]
    listeners = {one["name"]: one for one in found["listeners"]}
    assert condition(found, "Programmed")[0] == "Programmed", found
    assert listeners["http"]["attachedRoutes"] == 1 and listeners["tls"]["attachedRoutes"] == 0, listeners
    assert condition(listeners["tls"], "ResolvedRefs")[0] == "!InvalidCertificateRef", listeners
    # A change of the object is followed by its generation, and a missing Service is told.
    w.api.put(route("says", "site", {"name": "web", "sectionName": "http"}, ["gone"]))
    wait("a missing Service", 5, lambda: is_told(w, site, "ResolvedRefs", "!BackendNotFound", parent))
    # Nothing is written where nothing differs.
    version = w.api.get(web)["metadata"]["resourceVersion"]
    written = w.pod.metric("statuses_written_total")
    w.site("says", "ingress", [one])
    w.soon("a configuration", lambda: w.pod.who("ingress.says.test") == "one")
    assert w.api.get(web)["metadata"]["resourceVersion"] == version
    # What others write beside it stays; what they write over it is put right.
    path = f'/apis/{GROUP}/v1/namespaces/says/httproutes/site/status'
    theirs = {"parentRef": {"group": GROUP, "kind": "Gateway", "name": "web"}, "controllerName": "x.test/other",
              "conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": 1,
                              "lastTransitionTime": "2020-01-01T00:00:00Z"}]}
    w.api.call("PATCH", path, {"status": {"parents": [theirs]}}, "application/merge-patch+json")
    wait("both", 5, lambda: [one["controllerName"] for one in w.api.get(site)["status"]["parents"]] == ["x.test/other", "weir.internal/gateway"])
    w.api.delete(web)
    wait("theirs alone", 5, lambda: w.api.get(site)["status"]["parents"] == [theirs])
    return f"accepted within {took:.2f} s; {w.pod.metric('statuses_written_total')} statuses were written, {written} of them before"


def what_leaves_the_controller_waits_for_one(w):
    """A Gateway or ListenerSet that is weir's no more does not go on to say that it is served."""
    begin(w)
    allowing = {"allowedListeners": {"namespaces": {"from": "Same"}}}
    one, two = (lambda: gateway("leaves", "one", [listener("http", 80)], **allowing)), gateway("leaves", "two", [listener("http", 80)], **allowing)
    joining = lambda name: thing("ListenerSet", "leaves", "set", {"parentRef": {"name": name}, "listeners": [listener("more", 81)]})
    w.api.put(namespace("leaves"))
    for object in (one(), two, joining("one")):
        w.api.put(object)
    is_served = lambda object: is_told(w, object, "Programmed", "Programmed")
    def waits(object):
        status = w.api.get(object)["status"]
        told = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
        return told == {"Accepted": ("Unknown", "Pending"), "Programmed": ("Unknown", "Pending")} and not status.get("listeners")
    wait("a set", 5, lambda: is_served(joining("one")))
    w.api.put(joining("two"))
    wait("a set of another Gateway", 5, lambda: is_served(joining("two")))
    w.api.put(joining("none"))
    wait("a set without a Gateway", 5, lambda: waits(joining("none")))
    w.api.put(joining("one"))
    wait("a set again", 5, lambda: is_served(joining("one")))
    w.api.delete(one())
    wait("a set whose Gateway is gone", 5, lambda: waits(joining("one")))
    # Another controller's word stays.
    path = lambda name: f"/apis/{GROUP}/v1/namespaces/leaves/gateways/{name}"
    theirs = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "theirs", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    w.api.put(one())
    wait("a Gateway", 5, lambda: is_served(one()))
    w.api.call("PATCH", path("two"), {"spec": {"gatewayClassName": "other"}}, "application/merge-patch+json")
    wait("a Gateway of another class", 5, lambda: waits(two))
    w.api.call("PATCH", path("two") + "/status", {"status": {"conditions": [theirs]}}, "application/merge-patch+json")
    w.api.call("PATCH", path("one"), {"spec": {"gatewayClassName": "other"}}, "application/merge-patch+json")
    wait("the other Gateway", 5, lambda: waits(one()))
    assert w.api.get(two)["status"]["conditions"] == [theirs]


def what_weir_refuses_of_gateways_is_left_out_alone(w):
    begin(w)
    one = Backend("one")
    behind(w, "denied", "one", one)
    good = put_gateway(w, "denied", "good", [listener("http", 80)])
    w.api.put(route("denied", "good", "good", ["one"]))
    w.soon("traffic", lambda: w.pod.who("any.test", port=80, address=good) == "one")
    # Another program has the port: weir cannot listen there.
    taken = socket.socket()
    taken.bind(("127.0.10.99", 80))
    taken.listen()
    bad = gateway("denied", "bad", [listener("http", 80)], addresses=[{"value": "127.0.10.99"}])
    w.api.put(bad)
    wait("a refusal", 10, lambda: is_told(w, bad, "Programmed", "!Invalid"))
    w.api.put(route("denied", "later", "good", ["one"], hosts=["later.test"]))
    w.soon("another one", lambda: w.pod.ask("later.test", port=80, address=good).status == 200, 3)
    note = next(one for one in w.api.get(bad)["status"]["conditions"] if one["type"] == "Programmed")["message"]
    taken.close()
    # A change gives it another chance.
    w.api.put(gateway("denied", "bad", [listener("http", 80), listener("more", 81)], addresses=[{"value": "127.0.10.99"}]))
    wait("service", 10, lambda: is_told(w, bad, "Programmed", "Programmed"))
    return note


def half_a_key_of_a_listener_takes_nothing_from_others(w):
    begin(w)
    one = Backend("one")
    behind(w, "halves", "one", one)
    crt, key = certificate(w.dir, "halves", ["a.halves.test"])
    pair = lambda key: secret("halves", "cert", {"tls.crt": crt.read_bytes(), "tls.key": key}, "kubernetes.io/tls")
    w.api.put(pair(key.read_bytes()))
    tls = {"certificateRefs": [{"name": "cert"}]}
    web = gateway("halves", "web", [listener("http", 80), listener("tls", 443, "HTTPS", hostname="a.halves.test", tls=tls)])
    w.api.put(web)
    ip = address(w, web)
    w.api.put(route("halves", "site", "web", ["one"]))
    secured = lambda: w.pod.who("a.halves.test", port=443, address=ip, tls=True) == "one"
    w.soon("TLS", secured, 5)
    of = lambda status: next((one for one in status.get("listeners", []) if one["name"] == "tls"), {})
    w.api.put(pair(key.read_bytes()[:80]))
    wait("a word", 10, lambda: condition(of(w.api.get(web)["status"]), "ResolvedRefs")[0] == "!InvalidCertificateRef")
    assert w.pod.who("any.test", port=80, address=ip) == "one"
    note = next(one for one in of(w.api.get(web)["status"])["conditions"] if one["type"] == "ResolvedRefs")["message"]
    w.api.put(pair(key.read_bytes()))
    w.soon("TLS again", secured, 5)
    wait("another word", 10, lambda: condition(of(w.api.get(web)["status"]), "ResolvedRefs")[0] == "ResolvedRefs")
    return note


def routes_follow_a_watch_whose_history_is_gone(w):
    begin(w)
    one = Backend("one")
    behind(w, "lost", "one", one)
    ip = put_gateway(w, "lost", "web", [listener("http", 80)])
    site = lambda name: route("lost", name, "web", ["one"], hosts=[f"{name}.lost.test"])
    who = lambda name: w.pod.who(f"{name}.lost.test", port=80, address=ip)
    w.api.put(site("goes"))
    w.soon("traffic", lambda: who("goes") == "one", 3)
    # While weir-ingress sleeps, a route goes, another comes, and no history tells of either.
    w.pod.controller.send(signal.SIGSTOP)
    w.api.delete(site("goes"))
    w.api.put(site("comes"))
    w.api.process.end(signal.SIGKILL)
    w.api.compact()
    w.api.process.start()
    w.api.ready()
    w.pod.controller.send(signal.SIGCONT)
    seen = w.soon("the new one", lambda: who("comes") == "one", 20)
    w.soon("the old one gone", lambda: who("goes") == 404)
    wait("a status", 20, lambda: is_told(w, site("comes"), "Accepted", "Accepted", parent))
    # And under a running watch.
    w.api.compact()
    w.api.put(site("later"))
    w.soon("traffic", lambda: who("later") == "one", 3)
    return f"seen {seen:.1f} s after weir-ingress woke"


def without_rights_for_gateway_api_ingresses_are_served(w):
    begin(w)
    one = Backend("one")
    host = w.site("fewer", "site", [one])
    took = []
    for user, lacks in (("ingresses-only", ["customresourcedefinitions", "namespaces"]), ("kinds-only", ["gateways", "udproutes", "namespaces"])):
        pod = w.new_pod(f"pod-{user}", user=user)
        try:
            took.append(f"{pod.ready():.1f}")
            assert pod.who(host) == "one"
            log = pod.controller.text()
            assert all(word in log for word in lacks), log
        finally:
            pod.end()
    return f"ready within {' and '.join(took)} s"


def each_gateway_has_a_service(w):
    begin(w)
    w.api.put(namespace("serves"))
    http = [listener("http", 80), listener("more", 8080), listener("names", 5353, "UDP")]
    look = lambda name: w.api.get(service("serves", name))
    infrastructure = {"labels": {"team": "blue"}, "annotations": {"example.test/size": "small"}}
    w.api.put(gateway("serves", "web", http, infrastructure=infrastructure))
    took = wait("a Service", 10, lambda: look("web-weir"))
    made, meta = look("web-weir"), lambda: look("web-weir")["metadata"]
    assert made["metadata"]["labels"]["team"] == "blue" and made["metadata"]["annotations"]["example.test/size"] == "small", made
    assert made["metadata"]["labels"][f"{GROUP}/gateway-name"] == "web" and made["metadata"]["labels"][f"{GROUP}/gateway-class-name"] == "weir", made
    assert {(one["port"], one["protocol"]) for one in made["spec"]["ports"]} == {(80, "TCP"), (8080, "TCP"), (5353, "UDP")}, made
    owner = made["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Gateway", "web", w.api.get(gateway("serves", "web", http))["metadata"]["uid"]), owner
    # What is not asked for any more goes, what others have added stays, and what they have changed is put right.
    path = "/api/v1/namespaces/serves/services/web-weir"
    w.api.call("PATCH", path, {"metadata": {"labels": {"theirs": "yes", "team": "red"}}}, "application/merge-patch+json")
    wait("blue again", 10, lambda: meta()["labels"]["team"] == "blue")
    w.api.put(gateway("serves", "web", http[:1], infrastructure={"labels": {"stage": "test"}}))
    wait("other labels", 10, lambda: meta()["labels"].get("stage") == "test" and "team" not in meta()["labels"])
    assert meta()["labels"]["theirs"] == "yes" and "example.test/size" not in meta()["annotations"], meta()
    assert [one["port"] for one in look("web-weir")["spec"]["ports"]] == [80]
    # Another's Service keeps its name.
    w.api.put(service("serves", "taken-weir"))
    before = look("taken-weir")
    w.api.put(gateway("serves", "taken", http[:1]))
    put_gateway(w, "serves", "last", http[:1])
    wait("the last one", 10, lambda: look("last-weir"))
    assert look("taken-weir") == before
    w.api.delete(gateway("serves", "web", http))
    names = lambda: sorted(one["metadata"]["name"] for one in w.api.call("GET", "/api/v1/namespaces/serves/services")["items"])
    wait("no Service of one that has gone", 10, lambda: names() == ["last-weir", "taken-weir"])
    return f"made within {took:.2f} s"


def the_leader_alone_writes_statuses(w):
    begin(w)
    one = Backend("one")
    behind(w, "leads", "one", one)
    wait("a leader", 20, lambda: w.pod.metric("leader") == 1)
    # Both pods are on one machine, where an address can be listened on once.
    second = w.new_pod("pod-second", range="127.0.12.0/24")
    try:
        second.ready()
        http = [listener("http", 80)]
        ip = put_gateway(w, "leads", "web", http)
        assert ip.startswith("127.0.10."), ip
        w.api.put(route("leads", "site", "web", ["one"]))
        wait("a route", 5, lambda: is_told(w, route("leads", "site", "web", ["one"]), "Accepted", "Accepted", parent))
        w.soon("traffic", lambda: w.pod.who("any.test", port=80, address=ip) == "one")
        wait("the other pod's traffic", 5, lambda: any(
            second.who("any.test", port=80, address=f"127.0.12.{n}") == "one" for n in range(1, 20) if is_open(f"127.0.12.{n}")))
        assert second.metric("leader") == 0 and second.metric("statuses_written_total") == 0
        assert address(w, gateway("leads", "web", http)) == ip
    finally:
        second.end()


def is_open(ip):
    with socket.socket() as s:
        return s.connect_ex((ip, 80)) == 0


TESTS = [kinds_of_gateway_api_come_later_and_go, routes_change_under_running_workers, namespaces_are_selected_by_labels,
         gateways_have_addresses_of_the_range, statuses_say_what_is_served, what_leaves_the_controller_waits_for_one,
         each_gateway_has_a_service, the_leader_alone_writes_statuses,
         half_a_key_of_a_listener_takes_nothing_from_others, routes_follow_a_watch_whose_history_is_gone,
         what_weir_refuses_of_gateways_is_left_out_alone, without_rights_for_gateway_api_ingresses_are_served]
