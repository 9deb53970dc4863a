"""Ingresses at a real API server, and requests that reach servers behind through weir. tests/kubernetes/run starts this."""

import base64
import hashlib
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time

import acme_cases
import controller_cases
import gateway_cases
from cluster import (NAMESPACE, POD, ApiError, ApiServer, Backend, Names, Pod, certificate, config_map, endpoints, ingress,
                     namespace, secret, service, wait)

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "packaging/helm/weir-ingress/files"
LOOPS = 2
# What Gateways get their addresses of.
RANGE = "127.0.10.0/24"
SNIPPETS = ["add_header", "return", "if", "set", "more_set_headers"]


class World:
    """What all tests share: each has a namespace of its own."""

    def __init__(self, dir, server, binaries):
        self.dir = dir
        self.binaries = {name: str(pathlib.Path(binaries) / name) for name in ("weir", "weir-ingress")}
        self.api = ApiServer(dir, server)
        self.names = Names({"outside.test": POD})
        self.pebble = acme_cases.Pebble(dir, self.names)
        self.rules()
        self.pod = self.new_pod("pod-1")

    def begin(self):
        self.pod.ready()

    def rules(self):
        """The rights of the chart, and no others."""
        for space in (NAMESPACE, "default"):
            self.api.put(namespace(space))
        group = "/apis/rbac.authorization.k8s.io/v1"
        lease = f"{group}/namespaces/{NAMESPACE}"
        read = lambda file: (CHART / file).read_text()
        rules, lease_rules, service_rules = read("rules.yaml") + read("cluster-rules.yaml"), read("lease-rules.yaml"), read("gateway-services-rules.yaml")
        # The rights of before, without Gateway API; and the same with the definitions of its kinds alone.
        kinds = "".join(f"- apiGroups:{rule}" for rule in rules.split("- apiGroups:")[1:] if "gateway" not in rule and "namespaces" not in rule)
        fewer = "".join(f"- apiGroups:{rule}" for rule in kinds.split("- apiGroups:")[1:] if "apiextensions" not in rule)
        secretless = rules.replace("secrets, ", "")
        assert secretless != rules
        for path, kind, name, text in ((group, "ClusterRole", "weir-ingress", rules + service_rules), (group, "ClusterRole", "no-secrets", secretless), (lease, "Role", "weir-ingress", lease_rules),
                                       (group, "ClusterRole", "ingresses-only", fewer), (lease, "Role", "ingresses-only", lease_rules),
                                       (group, "ClusterRole", "kinds-only", kinds), (lease, "Role", "kinds-only", lease_rules)):
            head = f"apiVersion: rbac.authorization.k8s.io/v1\nmetadata: {{name: {name}}}\n"
            subject = f"subjects: [{{kind: User, name: {name}, apiGroup: rbac.authorization.k8s.io}}]"
            role = f"{head}kind: {kind}\nrules:\n{text}"
            binding = f"{head}kind: {kind}Binding\nroleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {kind}, name: {name}}}\n{subject}\n"
            for text, plural in ((role, kind.lower() + "s"), (binding, kind.lower() + "bindings")):
                self.api.call("POST", f"{path}/{plural}", text, "application/yaml")
        self.api.put({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "weir"},
                      "spec": {"controller": "weir.internal/ingress"}})

    def new_pod(self, name, range=RANGE, more=(), **rest):
        base = (CHART / "ingress.conf").read_text()
        base = f"worker_processes 1;\nworker_threads {LOOPS};\n" + base.replace("http {", "http {\n    access_log off;", 1)
        # Both programs have the same user, as in a pod.
        if os.getuid() == 0:
            base = "user root;\n" + base
        extra = [word for directive in SNIPPETS for word in ("--allow-snippet-directive", directive)]
        extra += ["--acme-issuer", "pebble", "--resolver", f"127.0.0.1:{self.names.port}", "--gateway-addresses", range, "--gateway-services", *more]
        return Pod(name, self.dir, self.api, self.binaries, base, extra, http_lines=self.pebble.issuer(), **rest)

    def site(self, space, name, backends, annotations=None, path=("/", "Prefix"), host=None, **rest):
        """A Service with these servers, and an Ingress for its host; the host."""
        self.api.put(namespace(space))
        self.api.put(service(space, name))
        for slice in endpoints(space, name, backends):
            self.api.put(slice)
        host = host or f"{name}.{space}.test"
        self.api.put(ingress(space, name, host, [(*path, name)], annotations, **rest))
        return host

    def client(self, host, wanted, **rest):
        return Client(self.pod, host, wanted, **rest)

    def soon(self, what, check, seconds=1):
        took = wait(what, seconds, check)
        # One worker takes a change before another: weir-ingress knows when all have.
        wait("all workers", 10, lambda: self.pod.metric("changes_waiting") == 0)
        # Workers that end may still serve as before for a moment.
        wait("one generation of workers", 10, lambda: len(self.pod.workers()) <= 1)
        return took

    def told(self, space, name, reason, seconds=10):
        """The note of an Event about an Ingress."""
        found = []

        def look():
            found[:] = [note for why, note in self.api.events(space, name) if why == reason]
            return found
        wait(f"an Event {reason} about {space}/{name}", seconds, look)
        return found[0]

    def end(self):
        self.pod.end()
        self.pebble.end()
        self.api.end()


class Client(threading.Thread):
    """Asks a host all the time, and counts what goes wrong."""

    def __init__(self, pod, host, wanted, **rest):
        super().__init__(daemon=True)
        self.pod, self.host, self.wanted, self.rest = pod, host, wanted, rest
        self.good, self.bad, self.stop = 0, [], False
        self.start()

    def run(self):
        while not self.stop:
            try:
                who = self.pod.who(self.host, **self.rest)
            except OSError as error:
                who = repr(error)
            if who in self.wanted:
                self.good += 1
            else:
                self.bad.append(who)
            time.sleep(0.002)

    def done(self):
        self.stop = True
        self.join(15)
        assert not self.bad, f"{len(self.bad)} of {self.good + len(self.bad)} requests went wrong: {self.bad[:5]}"
        assert self.good > 10, self.good
        return self.good


def traffic_reaches_a_server_within_a_second(w):
    one, two = Backend("one"), Backend("two")
    w.site("first", "warm", [one])
    w.soon("traffic", lambda: w.pod.who("warm.first.test") == "one")
    times = []
    for n in range(10):
        w.site("first", f"site{n}", [one])
        times.append(w.soon("traffic", lambda: w.pod.who(f"site{n}.first.test") == "one"))
    moves = []
    for n in range(20):
        to = (two, one)[n % 2]
        w.api.put(endpoints("first", "warm", [to])[0])
        moves.append(w.soon("another pod", lambda: w.pod.who("warm.first.test") == to.name))
    text = lambda list: f"median {sorted(list)[len(list) // 2] * 1000:.0f} ms, longest {max(list) * 1000:.0f} ms"
    gone = ingress("first", "site0", "site0.first.test", [])
    w.api.delete(gone)
    w.soon("no traffic", lambda: w.pod.who("site0.first.test") == 404)
    return f"new Ingress: {text(times)}; changed endpoint: {text(moves)}"


def no_request_is_lost_while_pods_and_sites_change(w):
    one, two = Backend("one"), Backend("two")
    host = w.site("steady", "site", [one, two])
    w.soon("traffic", lambda: w.pod.who(host) == "one")
    client, workers = Client(w.pod, host, ("one", "two")), w.pod.workers()
    for n in range(40):
        w.api.put(endpoints("steady", "site", [(one, two)[n % 2]])[0])
        if n % 4 == 0:
            w.site("steady", f"other{n}", [one])
        time.sleep(0.05)
    w.soon("the last one", lambda: w.pod.who("other36.steady.test") == "one")
    # New groups and other numbers of pods are no reason for new workers, which would keep the old ones beside them.
    assert w.pod.workers() == workers, (w.pod.workers(), workers)
    return f"{client.done()} requests over 50 changes, none lost, by the same workers"


def no_host_is_unknown_while_others_change_a_hundred_times_a_second(w):
    one, two = Backend("one"), Backend("two")
    hosts = [w.site("many", f"site{n}", [one]) for n in range(20)]
    for host in hosts:
        w.soon("traffic", lambda: w.pod.who(host) == "one")
    # Of these, some change their pods and some their paths.
    clients = [Client(w.pod, hosts[n], ("one", "two")) for n in (0, 2, 7, 11)]
    begin, count = time.monotonic(), 500

    def change(n):
        name = f"site{n % 20}"
        kind = n % 5
        if kind < 2:
            w.api.put(endpoints("many", name, [(one, two)[n // 20 % 2]])[0])
        elif kind == 2:
            w.api.put(ingress("many", name, f"{name}.many.test", [("/", "Prefix", name), (f"/{n}", "Prefix", "site0")]))
        elif kind == 3:
            w.api.put(ingress("many", f"new{n}", f"new{n}.many.test", [("/", "Prefix", name)]))
        elif n > 50:
            w.api.delete(ingress("many", f"new{n - 1 - 50}", "", []))

    def some(first):
        for n in range(first, count, 4):
            due = begin + n / 100
            time.sleep(max(0, due - time.monotonic()))
            try:
                change(n)
            except ApiError as error:
                # Another thread has not made it yet.
                if error.status != 404:
                    raise
    writers = [threading.Thread(target=some, args=(first,), daemon=True) for first in range(4)]
    for one_writer in writers:
        one_writer.start()
    for one_writer in writers:
        one_writer.join(60)
    took = time.monotonic() - begin
    asked = sum(client.done() for client in clients)
    wait("all workers", 20, lambda: w.pod.metric("changes_waiting") == 0)
    assert all(w.pod.who(host) in ("one", "two") for host in hosts)
    return f"{count / took:.0f} changes a second, {asked} requests, none lost"


def a_secret_becomes_a_certificate_and_follows_its_changes(w):
    one = Backend("one")
    host = "site.tls.test"
    crt, key = certificate(w.dir, "tls-1", [host])
    pair = lambda crt, key: {"tls.crt": crt.read_bytes(), "tls.key": key.read_bytes()}
    der = lambda crt: base64.b64decode("".join(crt.read_text().split("-----")[2].split()))
    w.api.put(namespace("tls"))
    w.api.put(secret("tls", "cert", pair(crt, key), "kubernetes.io/tls"))
    w.site("tls", "site", [one], tls="cert")
    w.soon("TLS", lambda: w.pod.ask(host, tls=True).peer == der(crt))
    assert w.pod.who(host, tls=True) == "one"
    assert w.pod.ask(host).status == 308
    assert "max-age" in w.pod.ask(host, tls=True).headers["strict-transport-security"]
    crt2, key2 = certificate(w.dir, "tls-2", [host])
    w.api.put(secret("tls", "cert", pair(crt2, key2), "kubernetes.io/tls"))
    renewed = w.soon("the new certificate", lambda: w.pod.ask(host, tls=True).peer == der(crt2))
    # Certificates and keys are for weir's user alone. Workers of another user reach the addresses of pods beside them.
    files = [file for file in (w.pod.dir / "files").iterdir() if file.is_file()]
    assert files and all(file.stat().st_mode & 0o777 == 0o600 for file in files), files
    assert (w.pod.dir / "files").stat().st_mode & 0o777 == 0o711
    # Half of a key: this certificate cannot be used. The one before stays, and other hosts go on.
    w.site("tls", "other", [one])
    w.api.put(secret("tls", "cert", {"tls.crt": crt.read_bytes(), "tls.key": key2.read_bytes()[:80]}, "kubernetes.io/tls"))
    note = w.told("tls", "site", "InvalidCertificate")
    assert "the certificate before stays in use: tls.key is cut off" in note and "[" not in note, note
    assert w.pod.who("other.tls.test") == "one" and w.pod.ask(host, tls=True).peer == der(crt2)
    w.api.put(secret("tls", "cert", pair(crt, key), "kubernetes.io/tls"))
    w.soon("the right one again", lambda: w.pod.ask(host, tls=True).peer == der(crt))
    return f"renewed within {renewed * 1000:.0f} ms; half a key: {note}"


def status_and_events_are_written(w):
    one = Backend("one")
    w.site("words", "site", [one])
    site = ingress("words", "site", "", [])
    took = w.soon("a status", lambda: w.api.get(site)["status"]["loadBalancer"].get("ingress") == [{"ip": "127.0.0.1"}], 10)
    w.api.put(ingress("words", "lost", "lost.words.test", [("/", "Prefix", "nothing")]))
    note = w.told("words", "lost", "NoService")
    w.soon("an answer", lambda: w.pod.who("lost.words.test") == 503)
    return f"status within {took:.1f} s; {note}"


def of_two_ingresses_with_one_path_the_older_one_has_it(w):
    one, two = Backend("one"), Backend("two")
    w.site("twice", "one", [one], host="both.twice.test")
    w.soon("traffic", lambda: w.pod.who("both.twice.test") == "one")
    time.sleep(1.1)
    w.site("twice", "two", [two], host="both.twice.test")
    note = w.told("twice", "two", "PathTaken")
    # A stranger takes nothing of the host, not even a path that is free.
    w.site("wants", "thief", [Backend("thief")], host="both.twice.test", path=("/stolen", "Prefix"))
    w.told("wants", "thief", "HostTaken")
    assert w.pod.who("both.twice.test") == "one" and w.pod.who("both.twice.test", "/stolen") == "one"
    # Without the older one, the next one has the path: of the same second, the one whose namespace's name is first.
    w.api.delete(ingress("twice", "one", "", []))
    w.soon("the other one", lambda: w.pod.who("both.twice.test") == "two")
    assert w.pod.who("both.twice.test", "/stolen") == "two"
    return note


def a_namespace_reads_no_secret_of_another(w):
    one = Backend("one")
    w.api.put(namespace("rich"))
    digest = base64.b64encode(hashlib.sha1(b"word").digest()).decode()
    w.api.put(secret("rich", "users", {"auth": f"alice:{{SHA}}{digest}"}))
    host = w.site("poor", "site", [one], {"auth-type": "basic", "auth-secret": "rich/users"})
    note = w.told("poor", "site", "AccessClosed")
    login = {"Authorization": "Basic " + base64.b64encode(b"alice:word").decode()}
    assert w.pod.who(host, headers=login) == 503
    crt, key = certificate(w.dir, "rich", ["site2.poor.test"])
    w.api.put(secret("rich", "cert", {"tls.crt": crt.read_bytes(), "tls.key": key.read_bytes()}, "kubernetes.io/tls"))
    w.site("poor", "site2", [one], tls="cert")
    w.told("poor", "site2", "InvalidCertificate")
    return note


def traffic_goes_on_without_the_api_server(w):
    one, two = Backend("one"), Backend("two")
    host = w.site("away", "site", [one])
    w.soon("traffic", lambda: w.pod.who(host) == "one")
    client = Client(w.pod, host, ("one", "two"))
    w.api.process.end(signal.SIGKILL)
    away = float(os.environ.get("WEIR_AWAY", "10"))
    time.sleep(away)
    assert w.pod.probe("/readyz")[0] == 200
    w.api.process.start()
    w.api.ready()
    w.api.put(endpoints("away", "site", [two])[0])
    seen = w.soon("the change", lambda: w.pod.who(host) == "two", 15)
    return f"{client.done()} requests, {away:.0f} s of them without API server, none lost; a change after it was seen within {seen:.1f} s"


def a_watch_whose_history_is_gone_begins_with_a_list(w):
    one = Backend("one")
    w.site("gap", "goes", [one])
    w.soon("traffic", lambda: w.pod.who("goes.gap.test") == "one")
    # While weir-ingress sleeps, an Ingress goes, another comes, and no history tells of either.
    w.pod.controller.send(signal.SIGSTOP)
    w.api.delete(ingress("gap", "goes", "", []))
    w.site("gap", "comes", [one])
    w.api.process.end(signal.SIGKILL)
    w.api.compact()
    w.api.process.start()
    w.api.ready()
    w.pod.controller.send(signal.SIGCONT)
    seen = w.soon("the new one", lambda: w.pod.who("comes.gap.test") == "one", 20)
    w.soon("the old one gone", lambda: w.pod.who("goes.gap.test") == 404)
    # And under a running watch.
    w.api.compact()
    w.site("gap", "later", [one])
    w.soon("traffic", lambda: w.pod.who("later.gap.test") == "one")
    return f"seen {seen:.1f} s after weir-ingress woke"


def many_wrong_ingresses_take_nothing_from_others(w):
    one = Backend("one")
    many = int(os.environ.get("WEIR_MANY", "500"))
    host = w.site("crowd", "good", [one])
    w.soon("traffic", lambda: w.pod.who(host) == "one")
    client = Client(w.pod, host, ("one",))
    wrong = [{"whitelist-source-range": "10.0.0.0/99"}, {"auth-url": "http://localhost/"}, {"rewrite-target": "/$("},
             {"configuration-snippet": "proxy_pass http://evil;"}, {"server-alias": "}"}, {"use-regex": "maybe"}, {"canary": "true"}]
    for n in range(many):
        w.api.put(ingress("crowd", f"wrong{n}", f"w{n}.crowd.test", [(f"/{n}", "Prefix", "nothing")], wrong[n % len(wrong)]))
    w.site("crowd", "new", [one])
    # As many sites take longer to test; they must not take for ever.
    took = w.soon("a new site", lambda: w.pod.who("new.crowd.test") == "one", 20)
    errors = w.pod.metric("finding_errors")
    assert errors >= many, errors
    w.told("crowd", f"wrong{many - 1}", "NoService", 120) if many % 7 != 0 else None
    asked = client.done()
    for n in range(many):
        w.api.delete(ingress("crowd", f"wrong{n}", "", []))
    return f"{many} wrong ones, {errors} errors; {asked} requests, none lost; a new site within {took:.2f} s"


def what_weir_refuses_is_left_out_alone(w):
    one = Backend("one")
    host = w.site("refused", "good", [one])
    bad = w.site("refused", "bad", [one], {"configuration-snippet": "add_header X-Old yes;"})
    w.soon("traffic", lambda: w.pod.ask(bad).headers.get("x-old") == "yes")
    # weir-ingress knows no variables: this one passes it, and weir itself refuses.
    w.api.put(ingress("refused", "bad", bad, [("/", "Prefix", "bad")], {"configuration-snippet": "add_header X-New $no_such_variable;"}))
    note = w.told("refused", "bad", "Refused")
    assert w.pod.ask(bad).headers.get("x-old") == "yes", "the version before stays"
    new = w.site("refused", "new", [one])
    w.soon("another one", lambda: w.pod.who(new) == "one")
    assert w.pod.who(host) == "one"
    w.api.put(ingress("refused", "bad", bad, [("/", "Prefix", "bad")], {"configuration-snippet": "add_header X-New yes;"}))
    w.soon("the corrected one", lambda: w.pod.ask(bad).headers.get("x-new") == "yes")
    return note.splitlines()[0]


def a_weir_that_starts_anew_gets_its_configuration(w):
    one = Backend("one")
    host = w.site("anew", "site", [one])
    w.soon("traffic", lambda: w.pod.who(host) == "one")
    w.pod.weir.end(signal.SIGTERM)
    w.pod.weir.start()
    took = w.soon("traffic", lambda: w.pod.who(host) == "one", 10)
    return f"{took:.1f} s after its start"


def passwords_are_asked_for(w):
    one = Backend("one")
    digest = base64.b64encode(hashlib.sha1(b"word").digest()).decode()
    w.api.put(namespace("auth"))
    w.api.put(secret("auth", "users", {"auth": f"alice:{{SHA}}{digest}\n"}))
    host = w.site("auth", "site", [one], {"auth-type": "basic", "auth-secret": "users", "auth-realm": "Site"})
    w.soon("a question", lambda: w.pod.ask(host).status == 401)
    assert w.pod.ask(host).headers["www-authenticate"] == 'Basic realm="Site"'
    login = lambda word: {"Authorization": "Basic " + base64.b64encode(f"alice:{word}".encode()).decode()}
    assert w.pod.who(host, headers=login("word")) == "one" and w.pod.who(host, headers=login("no")) == 401
    # A changed password counts at once.
    digest = base64.b64encode(hashlib.sha1(b"other").digest()).decode()
    w.api.put(secret("auth", "users", {"auth": f"alice:{{SHA}}{digest}\n"}))
    w.soon("the new password", lambda: w.pod.who(host, headers=login("other")) == "one")
    assert w.pod.who(host, headers=login("word")) == 401


def an_authentication_service_decides(w):
    one = Backend("one")
    judge = Backend("judge", lambda request: 200 if request.headers.get("X-Ticket") == "valid" else 401)
    w.api.put(namespace("judged"))
    w.api.put(config_map("judged", "sent", {"X-Sent-To-Judge": "yes"}))
    annotations = {"auth-url": f"http://{POD}:{judge.port}/check", "auth-response-headers": "X-User", "auth-method": "GET",
                   "auth-proxy-set-headers": "judged/sent"}
    host = w.site("judged", "site", [one], annotations)
    w.soon("a refusal", lambda: w.pod.who(host) == 401)
    answer = w.pod.ask(host, headers={"X-Ticket": "valid"})
    assert answer.body["name"] == "one" and answer.body["headers"]["X-User"] == "from-judge", answer
    signin = w.site("judged", "signin", [one], {**annotations, "auth-signin": "https://login.test/start"})
    w.soon("a redirect", lambda: w.pod.ask(signin, "/a?b=c").status == 302)
    to = w.pod.ask(signin, "/a?b=c").headers["location"]
    assert to.startswith("https://login.test/start?rd=http://signin.judged.test%2Fa%3Fb%3Dc"), to
    return to


def a_canary_has_its_share(w):
    main, canary = Backend("main"), Backend("canary")
    host = w.site("mine", "main", [main])
    w.site("mine", "canary", [canary], {"canary": "true", "canary-weight": "30"}, host=host)
    w.soon("both", lambda: w.pod.who(host) == "canary")
    count = sum(w.pod.who(host) == "canary" for _ in range(400))
    assert 80 <= count <= 160, count
    rules = {"canary": "true", "canary-by-header": "X-Canary", "canary-by-cookie": "try"}
    w.site("mine", "canary", [canary], rules, host=host)
    w.soon("the header", lambda: w.pod.who(host, headers={"X-Canary": "always"}) == "canary")
    w.soon("no share", lambda: {w.pod.who(host) for _ in range(20)} == {"main"})
    assert w.pod.who(host, headers={"Cookie": "try=always"}) == "canary"
    assert w.pod.who(host, headers={"Cookie": "try=always", "X-Canary": "never"}) == "main"
    w.site("mine", "canary", [canary], {**rules, "canary-by-header-value": "Blue"}, host=host)
    w.soon("the value", lambda: w.pod.who(host, headers={"X-Canary": "Blue"}) == "canary")
    assert w.pod.who(host, headers={"X-Canary": "always"}) == "main"
    w.site("mine", "canary", [canary], {**rules, "canary-by-header-pattern": "^v[0-9]+$"}, host=host)
    w.soon("the pattern", lambda: w.pod.who(host, headers={"X-Canary": "v12"}) == "canary")
    assert w.pod.who(host, headers={"X-Canary": "v"}) == "main"
    return f"{count} of 400 with a weight of 30"


def snippets_have_what_the_administrator_allows(w):
    one = Backend("one")
    host = w.site("snip", "site", [one], {
        "configuration-snippet": 'more_set_headers "X-Snippet: yes";\nif ($arg_stop) { return 418; }',
        "server-snippet": 'add_header X-Server yes;'})
    w.soon("the header", lambda: w.pod.ask(host).headers.get("x-snippet") == "yes")
    assert w.pod.ask(host, "/?stop=1").status == 418
    for name, text in (("file", "include /etc/passwd;"), ("other", "root /;"), ("out", "} } server { return 200 stolen;")):
        w.site("snip", name, [one], {"configuration-snippet": text})
    notes = [w.told("snip", name, "InvalidSnippet") for name in ("file", "other", "out")]
    assert "^" in notes[1], notes
    return notes[1].splitlines()[0]


def names_outside_of_the_cluster_are_servers_behind(w):
    one = Backend("one")
    w.api.put(namespace("outside"))
    w.api.put(service("outside", "far", external="outside.test"))
    w.api.put(ingress("outside", "far", "far.outside.test", [("/", "Prefix", "far")], {"upstream-vhost": "outside.test"}, number=one.port))
    w.soon("traffic", lambda: w.pod.who("far.outside.test") == "one", 3)
    assert w.pod.ask("far.outside.test").body["headers"]["Host"] == "outside.test"
    w.api.put(service("outside", "near", external="secrets.other.svc.cluster.local"))
    w.api.put(ingress("outside", "near", "near.outside.test", [("/", "Prefix", "near")], number=80))
    return w.told("outside", "near", "ExternalName")


def servers_behind_are_spoken_to_in_their_protocol(w):
    secure = Backend("secure", tls=certificate(w.dir, "behind", [POD]))
    host = w.site("speak", "tls", [secure], {"backend-protocol": "HTTPS"})
    w.soon("TLS behind", lambda: w.pod.who(host) == "secure")


def the_config_map_holds_for_all(w):
    one = Backend("one")
    host = w.site("common", "site", [one])
    w.soon("traffic", lambda: w.pod.who(host) == "one")
    w.api.put(config_map(NAMESPACE, "headers", {"X-All": "yes"}))
    w.api.put(config_map(NAMESPACE, "weir-ingress", {
        "proxy-body-size": "1k", "use-forwarded-headers": "true", "proxy-real-ip-cidr": "127.0.0.0/8", "hsts": "false",
        "proxy-set-headers": f"{NAMESPACE}/headers", "no-such-key": "x", "worker-processes": "3"}))
    w.soon("the limit", lambda: w.pod.ask(host, method="POST", body="x" * 2000).status == 413)
    answer = w.pod.ask(host, headers={"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"})
    heads = answer.body["headers"]
    assert (heads["X-Real-IP"], heads["X-Forwarded-Proto"], heads["X-All"]) == ("203.0.113.7", "https", "yes"), heads
    w.api.delete(config_map(NAMESPACE, "weir-ingress", {}))
    w.soon("no limit", lambda: w.pod.ask(host, method="POST", body="x" * 2000).status == 200)


def each_pod_serves_and_one_writes(w):
    one = Backend("one")
    second = w.new_pod("pod-2")
    try:
        second.ready()
        wait("one leader", 20, lambda: w.pod.metric("leader") == 1)
        assert second.metric("leader") == 0
        host = w.site("pods", "site", [one])
        w.soon("both", lambda: second.who(host) == "one" and w.pod.who(host) == "one")
        # The leader is killed: another follows when its time is over, and traffic does not mind.
        w.pod.controller.end(signal.SIGKILL)
        assert w.pod.who(host) == "one"
        took = wait("another leader", 40, lambda: second.metric("leader") == 1)
        w.pod.controller.start()
        w.pod.ready()
    finally:
        begin = time.monotonic()
        second.controller.send(signal.SIGTERM)
        wait("not ready", 2, lambda: second.probe("/readyz")[0] == 503)
        second.controller.child.wait(10)
        ended = time.monotonic() - begin
        second.end()
    # It gave the Lease back, so that the next one need not wait.
    back = wait("the first again", 12, lambda: w.pod.metric("leader") == 1)
    return f"after a kill another leads within {took:.0f} s, after SIGTERM within {back:.0f} s; the end took {ended:.1f} s"


def a_leader_that_was_stopped_writes_nothing(w):
    """When it goes on, in the middle of its writes, the Lease is another's."""
    one, space = Backend("one"), "stopped"
    path = f"/apis/networking.k8s.io/v1/namespaces/{space}/ingresses"
    sites = [f"site{n}" for n in range(120)]
    for site in sites:
        w.site(space, site, [one])
    items = lambda: w.api.call("GET", path)["items"]
    addresses = lambda: {one["ip"] for item in items() for one in item["status"]["loadBalancer"].get("ingress", [])}
    versions = lambda: {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items() if item["metadata"]["name"] != "last"}
    wait("the first pod's address", 40, lambda: addresses() == {"127.0.0.1"})
    second = w.new_pod("pod-second-address", range="127.0.13.0/24", address="127.0.0.2")
    try:
        second.ready()
        for site in sites:
            w.api.call("PATCH", f"{path}/{site}/status", {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}, "application/merge-patch+json")
        wait("some writes", 20, lambda: "127.0.0.1" in addresses())
        w.pod.controller.send(signal.SIGSTOP)
        took = wait("another leader", 40, lambda: second.metric("leader") == 1)
        wait("its address", 40, lambda: addresses() == {"127.0.0.2"})
        written = versions()
        w.pod.controller.send(signal.SIGCONT)
        assert w.pod.metric("leader") == 0
        # It hears of a new site, as the other pod does.
        w.site(space, "last", [one])
        last = lambda: w.api.get(ingress(space, "last", "", []))["status"]["loadBalancer"].get("ingress")
        wait("the last address", 20, lambda: last() == [{"ip": "127.0.0.2"}])
        assert addresses() == {"127.0.0.2"}, addresses()
        assert versions() == written, "the first pod has written meanwhile"
    finally:
        w.pod.controller.send(signal.SIGCONT)
        second.end()
    wait("the first again", 20, lambda: w.pod.metric("leader") == 1)
    return f"another leads within {took:.0f} s"


def figures_have_the_names_of_ingress_nginx(w):
    main, canary = Backend("main"), Backend("canary")
    host = w.site("counted", "main", [main])
    w.site("counted", "new", [canary], {"canary": "true", "canary-by-header": "X-New"}, host=host)
    w.soon("the canary", lambda: w.pod.who(host, headers={"X-New": "always"}) == "canary")

    def figures():
        rows = {}
        for line in w.pod.probe("/metrics")[1].splitlines():
            if line.startswith("nginx_ingress_controller_"):
                name, value = line.rsplit(" ", 1)
                assert name not in rows, name
                rows[name] = float(value)
        return rows
    labels = 'controller_class="weir.internal/ingress",controller_namespace="weir-system",controller_pod="pod-1"'
    of = lambda canary: f'{labels},namespace="counted",ingress="main",canary="{canary}"'
    series = [f'nginx_ingress_controller_requests{{{of(one)},status="2xx"}}' for one in ("", "counted-new-80")]
    before = figures()
    for value, count in (("never", 3), ("always", 2)):
        for _ in range(count):
            w.pod.ask(host, headers={"X-New": value})
    wait("the requests", 5, lambda: [figures()[name] - before.get(name, 0) for name in series] == [3, 2])
    now = figures()
    assert now[f"nginx_ingress_controller_request_duration_seconds_count{{{of('')}}}"] >= 3, now
    assert now[f"nginx_ingress_controller_config_last_reload_successful{{{labels}}}"] == 1, now
    assert now[f"nginx_ingress_controller_success{{{labels}}}"] >= 1 and now[f"nginx_ingress_controller_config_hash{{{labels}}}"] > 0, now
    assert now[f'nginx_ingress_controller_nginx_process_connections{{{labels},state="active"}}'] >= 1, now
    return f"{len(now)} series"


def a_format_of_logs_that_weir_refuses_takes_nothing_away(w):
    one = Backend("one")
    host = w.site("formats", "site", [one])
    w.soon("traffic", lambda: w.pod.who(host) == "one")
    w.api.put(config_map(NAMESPACE, "weir-ingress", {"log-format-upstream": "$namespace $no_such_variable", "proxy-body-size": "1k"}))
    try:
        w.soon("the other key", lambda: w.pod.ask(host, method="POST", body=b"x" * 2000).status == 413)
        new = w.site("formats", "new", [one])
        w.soon("a new site", lambda: w.pod.who(new) == "one")
        said = next(line for line in w.pod.controller.text().splitlines() if "log-format-upstream: it is left out" in line)
        assert "log-format-upstream" in said and "no_such_variable" in said, said
    finally:
        w.api.delete(config_map(NAMESPACE, "weir-ingress", {}))
    w.soon("no limit", lambda: w.pod.ask(host, method="POST", body=b"x" * 2000).status == 200)
    return said


def a_right_that_is_missing_is_named(w):
    pod = w.new_pod("pod-no-secrets", user="no-secrets")
    try:
        wait("the right", 20, lambda: 'cannot list resource "secrets"' in pod.probe("/readyz")[1])
        assert pod.probe("/readyz")[0] == 503
        wait("a line", 20, lambda: "a right is missing" in pod.controller.text())
        said = next(line for line in pod.controller.text().splitlines() if "a right is missing" in line)
        assert 'cannot list resource "secrets"' in said, said
    finally:
        pod.end()
    return said


# Gateway API comes before the snippets, some of which are scripts: a change needs new workers while a configuration has one.
TESTS = [traffic_reaches_a_server_within_a_second, no_request_is_lost_while_pods_and_sites_change,
         no_host_is_unknown_while_others_change_a_hundred_times_a_second, *gateway_cases.TESTS, *acme_cases.TESTS,
         a_secret_becomes_a_certificate_and_follows_its_changes, status_and_events_are_written,
         of_two_ingresses_with_one_path_the_older_one_has_it, a_namespace_reads_no_secret_of_another, passwords_are_asked_for,
         an_authentication_service_decides, a_canary_has_its_share, figures_have_the_names_of_ingress_nginx,
         a_format_of_logs_that_weir_refuses_takes_nothing_away, a_right_that_is_missing_is_named, snippets_have_what_the_administrator_allows,
         names_outside_of_the_cluster_are_servers_behind, servers_behind_are_spoken_to_in_their_protocol, the_config_map_holds_for_all,
         what_weir_refuses_is_left_out_alone, a_weir_that_starts_anew_gets_its_configuration, each_pod_serves_and_one_writes, a_leader_that_was_stopped_writes_nothing,
         *controller_cases.TESTS,
         traffic_goes_on_without_the_api_server, a_watch_whose_history_is_gone_begins_with_a_list,
         many_wrong_ingresses_take_nothing_from_others]


def main():
    server, binaries, *words = sys.argv[1:]
    dir = pathlib.Path(tempfile.mkdtemp(prefix="weir-kubernetes-"))
    passed = failed = 0
    world = World(dir, server, binaries)
    try:
        world.begin()
        for test in TESTS:
            if words and not any(word in test.__name__ for word in words):
                continue
            begin = time.monotonic()
            try:
                said = test(world) or ""
                passed += 1
                print(f"ok   {test.__name__} ({time.monotonic() - begin:.1f} s) {said}", flush=True)
            except (AssertionError, ApiError, OSError, KeyError, TypeError, StopIteration) as error:
                failed += 1
                print(f"FAIL {test.__name__} ({time.monotonic() - begin:.1f} s) {error!r}", flush=True)
    finally:
        world.end()
    print(f"{passed} passed, {failed} failed")
    if failed:
        print(f"logs: {dir}")
        sys.exit(1)
    shutil.rmtree(dir)


if __name__ == "__main__":
    main()
