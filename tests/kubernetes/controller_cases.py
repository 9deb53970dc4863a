"""Several controllers at one API server, and one that is killed while it writes."""

import signal

from cluster import ApiError, Backend, endpoints, ingress, namespace, service, wait
from gateway_cases import begin, gateway, listener, route, thing

INGRESSES = "/apis/networking.k8s.io/v1/namespaces/{}/ingresses"


def two_controllers_of_two_classes_keep_apart(w):
    one, space = Backend("one"), "classes"
    w.api.put({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "second"}, "spec": {"controller": "x.test/second"}})
    begin(w)
    w.api.put(thing("GatewayClass", None, "second", {"controllerName": "x.test/second"}))
    second = w.new_pod("pod-second-class", range="127.0.14.0/24", address="127.0.0.4", lease="second",
                       more=["--controller-class", "x.test/second", "--gateway-controller", "x.test/second"])
    try:
        second.ready()
        host = w.site(space, "first", [one])
        other = ingress(space, "second", "second.classes.test", [("/", "Prefix", "first")])
        other["spec"]["ingressClassName"] = "second"
        w.api.put(other)
        web = gateway(space, "web", [listener("http", 8099)])
        web["spec"]["gatewayClassName"] = "second"
        w.api.put(web)
        w.api.put(route(space, "all", "web", ["first"], hosts=["web.classes.test"]))
        w.soon("the first", lambda: w.pod.who(host) == "one")
        wait("the second", 10, lambda: second.who("second.classes.test") == "one")
        assert w.pod.who("second.classes.test") == 404 and second.who(host) == 404
        address = lambda name: [one["ip"] for one in w.api.get(ingress(space, name, "", []))["status"]["loadBalancer"].get("ingress", [])]
        wait("both addresses", 20, lambda: (address("first"), address("second")) == (["127.0.0.1"], ["127.0.0.4"]))
        wait("an address of the Gateway", 20, lambda: w.api.get(web).get("status", {}).get("addresses"))
        version = w.api.get(web)["metadata"]["resourceVersion"]
        # A later word of both controllers: the first one had its time to write, too.
        for name in ("first", "second"):
            w.api.call("PATCH", f"{INGRESSES.format(space)}/{name}/status", {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}},
                       "application/merge-patch+json")
        wait("both addresses again", 30, lambda: (address("first"), address("second")) == (["127.0.0.1"], ["127.0.0.4"]))
        found = w.api.get(web)
        assert found["metadata"]["resourceVersion"] == version, found["status"]
        to = found["status"]["addresses"][0]["value"]
        assert to.startswith("127.0.14."), to
        assert second.who("web.classes.test", port=8099, address=to) == "one"
    finally:
        second.end()
        w.api.delete(web)
    return f"each writes its own; the Gateway has {to}"


def statuses_that_a_kill_leaves_out_are_written_later(w):
    one, space, many = Backend("one"), "killed", 60
    w.api.put(namespace(space))
    w.api.put(service(space, "web"))
    for slice in endpoints(space, "web", [one]):
        w.api.put(slice)
    for n in range(many):
        w.api.put(ingress(space, f"site{n}", f"site{n}.killed.test", [("/", "Prefix", "web")]))
    addresses = lambda: [item["status"]["loadBalancer"].get("ingress") for item in w.api.call("GET", INGRESSES.format(space))["items"]]
    count = lambda: sum(one == [{"ip": "127.0.0.1"}] for one in addresses())
    wait("some statuses", 30, lambda: count() > 0)
    client = w.client("site0.killed.test", ("one",)) if w.pod.who("site0.killed.test") == "one" else None
    w.pod.controller.end(signal.SIGKILL)
    left = many - count()
    w.pod.controller.start()
    w.pod.ready()
    took = wait("all statuses", 60, lambda: count() == many)
    asked = client.done() if client else 0
    for n in range(many):
        try:
            w.api.delete(ingress(space, f"site{n}", "", []))
        except ApiError as error:
            assert error.status == 404, error
    return f"{left} of {many} were left, and written within {took:.0f} s; {asked} requests meanwhile, none lost"


TESTS = [two_controllers_of_two_classes_keep_apart, statuses_that_a_kill_leaves_out_are_written_later]
