"""Certificates that weir itself asks for, of Pebble: the server of Let's Encrypt's developers for tests. Pods share the issuer's state."""

import json
import os
import socket
import ssl
import urllib.request

import gateway_cases
from cluster import Backend, Process, certificate, free_port, wait


class Pebble:
    """An authority."""

    def __init__(self, dir, names):
        self.dir, self.names = dir, names
        self.port, self.management = free_port(), free_port()
        self.crt, self.key = certificate(dir, "pebble", ["127.0.0.1"])
        self.process = None

    def issuer(self):
        """What a pod's file has beside the chart's."""
        return (f"acme_issuer pebble {{ uri https://127.0.0.1:{self.port}/dir; ssl_trusted_certificate {self.dir}/authority.crt;"
                f" state_path {self.dir}/acme; accept_terms_of_service; }}\n")

    def start(self, http):
        """It asks for proofs at this port; what believes its certificates."""
        conf = self.dir / "pebble.json"
        conf.write_text(json.dumps({"pebble": {
            "listenAddress": f"127.0.0.1:{self.port}", "managementListenAddress": f"127.0.0.1:{self.management}",
            "certificate": str(self.crt), "privateKey": str(self.key), "httpPort": http, "tlsPort": free_port(),
            "retryAfter": {"authz": 1, "order": 1}, "profiles": {"default": {"description": "", "validityPeriod": 7776000}}}}))
        self.process = Process("pebble", self.dir, [os.environ["WEIR_PEBBLE"], "-config", str(conf), "-strict", "-dnsserver", f"127.0.0.1:{self.names.port}"],
                               {"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "20"})
        own = ssl.create_default_context(cafile=self.dir / "authority.crt")
        roots = []

        def look():
            try:
                roots[:] = [urllib.request.urlopen(f"https://127.0.0.1:{self.management}/roots/0", context=own, timeout=5).read().decode()]
            except OSError:
                return False
            return True
        wait("Pebble", 20, look)
        return ssl.create_default_context(cadata=roots[0])

    def end(self):
        if self.process:
            self.process.end()


def believed(context, port, host, address="127.0.0.1"):
    """The certificate that a client gets who trusts the authority alone; none, if the handshake fails."""
    try:
        with socket.create_connection((address, port), timeout=10) as raw, context.wrap_socket(raw, server_hostname=host) as stream:
            return stream.getpeercert(True)
    except OSError:
        return None


def secured(w, space, name, backend):
    """An Ingress with TLS that names no Secret; its host."""
    host = f"{name}.{space}.test"
    w.names.table[host] = "127.0.0.1"
    return w.site(space, name, [backend], host=host, tls="")


def hosts_without_a_secret_get_certificates_that_pods_share(w):
    backend = Backend("one")
    context = w.pebble.start(w.pod.http)
    first = secured(w, "asks", "first", backend)
    took = wait("a certificate", 30, lambda: believed(context, w.pod.https, first))
    assert w.pod.who(first, tls=True) == "one" and w.pod.ask(first).status == 308
    workers = w.pod.workers()
    # More hosts come while it is served: a change is no reason for new workers.
    hosts = [first] + [secured(w, "asks", f"more{n}", backend) for n in range(5)]
    for host in hosts:
        wait(f"a certificate of {host}", 30, lambda: believed(context, w.pod.https, host))
    assert w.pod.workers() == workers, "other workers serve"
    # A listener of a Gateway, which comes with an address of its own.
    gateway_cases.begin(w)
    gate = "gate.asks.test"
    w.names.table[gate] = "127.0.0.1"
    tls = {"options": {"weir.internal/acme": "true"}}
    ip = gateway_cases.put_gateway(w, "asks", "web", [gateway_cases.listener("l", 8443, "HTTPS", hostname=gate, tls=tls)])
    w.api.put(gateway_cases.route("asks", "site", "web", ["first"]))
    wait("a certificate of the listener", 30, lambda: believed(context, 8443, gate, ip))
    w.soon("traffic", lambda: w.pod.who(gate, tls=True, port=8443, address=ip) == "one", 10)
    # Another pod shows what this one got.
    second = w.new_pod("asks-2", "127.0.11.0/24")
    try:
        second.ready()
        for host in hosts:
            shown = believed(context, w.pod.https, host)
            wait(f"{host} in the other pod", 10, lambda: believed(context, second.https, host) == shown)
    finally:
        second.end()
    return f"the first after {took:.1f} s"


TESTS = [hosts_without_a_secret_get_certificates_that_pods_share]
