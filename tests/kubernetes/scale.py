"""Many Ingresses that change all the time, at a real API server: how long changes take to traffic, and what is lost.

`tests/kubernetes/scale --sites 500 --rate 10 --seconds 60` runs it. The figures are a table; the exit status is 1 if a request or a
WebSocket was lost.
"""

import argparse
import base64
import collections
import hashlib
import json
import os
import pathlib
import queue
import random
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from cluster import ApiError, certificate, free_port, ingress, namespace, secret, service, wait
from measure import memory
from suite import World

HERE = pathlib.Path(__file__).resolve().parent
# Kinds of changes, and how many of a hundred. As many hosts go as come, so that the cluster keeps its size.
MIX = {"endpoints": 60, "path": 16, "new host": 7, "host gone": 7, "password": 5, "certificate": 5}
# Pods of a site have other addresses after a change: the second number of an address.
GENERATIONS = 4
SPACES = 25


def address(number, generation):
    return f"10.{100 + generation}.{number // 256}.{number % 256}"


class Load:
    """A process of scale_load.py."""

    def __init__(self, *words):
        args = [sys.executable, "-B", str(HERE / "scale_load.py"), *map(str, words)]
        self.child = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = json.loads(self.child.stdout.readline())

    def end(self):
        """What it says at its end."""
        try:
            said = self.child.communicate(timeout=30)[0]
        except subprocess.TimeoutExpired:
            self.child.kill()
            said = self.child.communicate()[0]
        return json.loads(said) if said else {}


class Sites:
    """Ingresses with their Services, pods and Secrets, and changes of them."""

    def __init__(self, world, count, endpoints, behind):
        self.world, self.api, self.count, self.behind = world, world.api, count, behind
        self.each = max(1, endpoints // count)
        self.generation = [0] * count
        self.moved = {}
        self.passwords = {}
        self.extra = collections.deque()
        self.last = 0
        self.certificates = [certificate(world.dir, f"scale-{n}", ["*.scale.test"]) for n in range(8)]
        self.certificate = {}

    def space(self, n):
        return f"scale-{n % SPACES}"

    def addresses(self, n, generation):
        return [address(n * self.each + k, generation) for k in range(self.each)]

    def slice(self, n):
        ready = [{"addresses": [one], "conditions": {"ready": True}} for one in self.addresses(n, self.generation[n])]
        return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": f"s{n}", "namespace": self.space(n), "labels": {"kubernetes.io/service-name": f"s{n}"}},
                "ports": [{"port": self.behind, "protocol": "TCP"}], "endpoints": ready}

    def users(self, n):
        word = f"word-{self.passwords.get(n, 0)}"
        digest = base64.b64encode(hashlib.sha1(word.encode()).digest()).decode()
        return secret(self.space(n), f"users-{n}", {"auth": f"alice:{{SHA}}{digest}\n"})

    def pair(self, n):
        crt, key = self.certificates[self.certificate.get(n, 0)]
        return secret(self.space(n), f"cert-{n}", {"tls.crt": crt.read_bytes(), "tls.key": key.read_bytes()}, "kubernetes.io/tls")

    def ingress(self, n):
        paths = [("/", "Prefix", f"s{n}")]
        if n in self.moved:
            paths.append(("/moved", "Prefix", f"s{self.moved[n]}"))
        asks = {"auth-type": "basic", "auth-secret": f"users-{n}"} if n % 10 == 8 else None
        return ingress(self.space(n), f"s{n}", f"s{n}.scale.test", paths, asks, tls=f"cert-{n}" if n % 10 == 9 else None)

    def make(self):
        """All of them, by some threads."""
        for n in range(SPACES):
            self.api.put(namespace(f"scale-{n}"))
        left, failed = queue.SimpleQueue(), []
        for n in range(self.count):
            left.put(n)

        def some():
            while not failed:
                try:
                    n = left.get_nowait()
                except queue.Empty:
                    return
                pods = service(self.space(n), f"s{n}")
                # The API server of the tests has addresses for 254 Services.
                pods["spec"]["clusterIP"] = "None"
                objects = [pods, self.slice(n), self.ingress(n)]
                objects += [self.users(n)] if n % 10 == 8 else [self.pair(n)] if n % 10 == 9 else []
                try:
                    for object in objects:
                        self.api.put(object)
                except (OSError, ApiError) as error:
                    failed.append(error)
        threads = [threading.Thread(target=some) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert not failed, failed

    # Each change gives the check that traffic follows it, or nothing if there is none to make now. `take` says whether nothing else
    # changes a site.

    def change(self, kind, dice, take):
        ends = {"password": (8,), "certificate": (9,)}.get(kind, range(8))
        n = dice.randrange(self.count)
        n = n - n % 10 + dice.choice(ends)
        if n >= self.count or not take(n):
            return None
        ask = self.world.pod.ask
        name = f"s{n}.scale.test"
        body = lambda answer: answer.body.get("at") if answer.status == 200 and isinstance(answer.body, dict) else answer.status
        if kind == "endpoints":
            self.generation[n] = (self.generation[n] + 1) % GENERATIONS
            wanted = set(self.addresses(n, self.generation[n]))
            self.world.api.put(self.slice(n))
            return n, lambda: body(ask(name)) in wanted
        if kind == "path":
            self.moved[n] = dice.randrange(n % SPACES, self.count, SPACES)
            numbers = {one.split(".", 2)[2] for one in self.addresses(self.moved[n], 0)}
            self.world.api.put(self.ingress(n))
            return n, lambda: str(body(ask(name, "/moved"))).split(".", 2)[-1] in numbers
        if kind == "new host":
            self.last += 1
            own = f"x{self.last}"
            self.world.api.put(ingress(self.space(n), own, f"{own}.scale.test", [("/", "Prefix", f"s{n}")]))
            self.extra.append((self.space(n), own))
            return own, lambda: ask(f"{own}.scale.test").status == 200
        if kind == "host gone":
            if len(self.extra) < 50:
                return None
            space, own = self.extra.popleft()
            self.world.api.delete(ingress(space, own, "", []))
            return own, lambda: ask(f"{own}.scale.test").status == 404
        if kind == "password":
            self.passwords[n] = self.passwords.get(n, 0) + 1
            word = base64.b64encode(f"alice:word-{self.passwords[n]}".encode()).decode()
            self.world.api.put(self.users(n))
            return n, lambda: ask(name, headers={"Authorization": f"Basic {word}"}).status == 200
        self.certificate[n] = (self.certificate.get(n, 0) + 1) % len(self.certificates)
        text = self.certificates[self.certificate[n]][0].read_text()
        der = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN"):])
        self.world.api.put(self.pair(n))
        return n, lambda: ask(name, tls=True).peer == der


def cpu(pod):
    """Seconds of the same three."""
    def of(pid):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100
    return [sum(of(pid) for pid in part) for part in ([pod.controller.child.pid], [pod.weir.child.pid], pod.workers())]


def give_way(pids, nice):
    """A cluster has the API server and the clients on other machines. Here they take a processor when the pod does not want it.
    The test itself does not give way: it would take its time too late.
    """
    for pid in pids:
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)


class Memory:
    """What the pod takes, each minute."""

    def __init__(self, pod):
        self.pod, self.rows, self.over = pod, [], threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.over.wait(60):
            self.rows.append(memory(self.pod))

    def end(self):
        self.over.set()
        self.thread.join()
        return self.rows


class Changes:
    """So many changes a second; the way of some of them to traffic is followed."""

    def __init__(self, sites, options):
        self.sites, self.options = sites, options
        self.first, self.all = collections.defaultdict(list), collections.defaultdict(list)
        # Sites that are followed, and those that a thread writes.
        self.busy, self.writing = set(), set()
        self.failed, self.made = [], collections.Counter()
        self.dice = random.Random(7)
        self.lock = threading.Lock()
        self.work = queue.Queue()
        self.checks = queue.Queue()

    def run(self):
        writers = [threading.Thread(target=self.write, daemon=True) for _ in range(8)]
        lookers = [threading.Thread(target=self.look, daemon=True) for _ in range(self.options.lookers)]
        for one in writers + lookers:
            one.start()
        begin, count = time.monotonic(), 0
        kinds, weights = list(MIX), list(MIX.values())
        while time.monotonic() - begin < self.options.seconds:
            count += 1
            self.work.put(self.dice.choices(kinds, weights)[0])
            time.sleep(max(0, begin + count / self.options.rate - time.monotonic()))
        late = self.work.qsize()
        for _ in writers:
            self.work.put(None)
        for one in writers:
            one.join(60)
        self.took = time.monotonic() - begin
        for _ in lookers:
            self.checks.put(None)
        for one in lookers:
            one.join(120)
        return late

    def write(self):
        dice = random.Random(threading.get_ident())
        own = set()

        def take(n):
            with self.lock:
                if n in self.busy or n in self.writing:
                    return False
                self.writing.add(n)
                own.add(n)
                return True

        while kind := self.work.get():
            for _ in range(20):
                done = None
                try:
                    done = self.sites.change(kind, dice, take)
                except (OSError, ApiError) as error:
                    self.failed.append(f"{kind}: {error!r}")
                    break
                finally:
                    with self.lock:
                        # As many as there are lookers are followed at a time, the others are only written.
                        if done and len(self.busy) < self.options.lookers:
                            n, check = done
                            self.busy.add(n)
                            self.checks.put((time.monotonic(), kind, n, check))
                        self.writing -= own
                        own.clear()
                if done:
                    self.made[kind] += 1
                    break

    def look(self):
        while item := self.checks.get():
            begin, kind, n, check = item
            first = last = None
            good = 0
            # A tenth of what it may take at first; later a twentieth of the time so far, so that the questions cost little.
            pause = 0.01 if kind == "endpoints" else 0.1
            # Another worker may take it later: it is over when several new connections in a row find it.
            while good < 6 and time.monotonic() - begin < 60:
                asked = time.monotonic()
                try:
                    found = check()
                except OSError as error:
                    found = False
                    self.failed.append(f"{kind}: {error!r}")
                now = time.monotonic()
                if found:
                    first, last, good = first or now, last or now, good + 1
                else:
                    last, good = None, 0
                    pause = max(pause, (now - begin) / 20)
                time.sleep(max(0.0, (0.01 if found else pause) - (now - asked)))
            if good < 6:
                self.failed.append(f"{kind} of {n}: not within a minute")
            else:
                self.first[kind].append(first - begin)
                self.all[kind].append(last - begin)
            with self.lock:
                self.busy.discard(n)


def row(kind, list):
    list = sorted(list)
    at = lambda share: list[min(len(list) - 1, int(len(list) * share))] * 1000
    return f"{kind:<24} {len(list):>6} {at(0.5):>8.0f} {at(0.99):>8.0f} {list[-1] * 1000:>8.0f}"


def main():
    server, binaries, *words = sys.argv[1:]
    parser = argparse.ArgumentParser()
    for name, usual in (("sites", 5000), ("endpoints", 20000), ("rate", 100), ("seconds", 600), ("sockets", 1000), ("asks", 100), ("lookers", 8), ("nice", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args(words)
    # In memory, as the chart's volumes are.
    dir = pathlib.Path(tempfile.mkdtemp(prefix="weir-scale-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    subprocess.run(["ip", "route", "add", "local", "10.100.0.0/14", "dev", "lo"], check=True)
    behind = free_port()
    world, loads = None, [Load("serve", behind)]
    wrong = 0
    try:
        world = World(dir, server, binaries)
        world.begin()
        pod = world.pod
        sites = Sites(world, options.sites, options.endpoints, behind)
        begin = time.monotonic()
        sites.make()
        made = time.monotonic() - begin
        settled = wait("all sites", 300, lambda: pod.metric("changes_waiting") == 0 and pod.ask(f"s{options.sites - 1}.scale.test").status in (200, 308))
        print(f"{options.sites} Ingresses, {options.endpoints} endpoints: written within {made:.0f} s, served {settled:.1f} s later", flush=True)
        loads += [Load("hold", pod.http, options.sites, options.sockets), Load("ask", pod.http, options.sites, options.asks)]
        others = [world.api.process.child.pid, world.api.etcd.child.pid, *(load.child.pid for load in loads)]
        give_way(others, options.nice)
        before, used, taken, workers = memory(pod), cpu(pod), pod.metric("configurations_taken_total"), pod.workers()
        changes = Changes(sites, options)
        meanwhile = Memory(pod)
        late = changes.run()
        wait("all changes", 120, lambda: pod.metric("changes_waiting") == 0)
        after, spent, count = memory(pod), cpu(pod), sum(changes.made.values())
        asked, held = loads.pop().end(), loads.pop().end()
        each_minute = meanwhile.end()
        # The WebSockets are gone, and with them the configurations that they kept.
        wait("one configuration", 60, lambda: pod.weir_metric("weir_sites") == 1)
        at_last = memory(pod)
        print(f"{count} changes in {changes.took:.0f} s ({count / changes.took:.1f} a second, {late} late): {dict(changes.made)}")
        print(f"configurations taken: {pod.metric('configurations_taken_total') - taken}, refused: {pod.metric('configurations_refused_total')}; "
              f"the same workers: {pod.workers() == workers}")
        print(f"\n{'until traffic, ms':<24} {'count':>6} {'p50':>8} {'p99':>8} {'most':>8}")
        for kind in MIX:
            if changes.first[kind]:
                print(row(kind, changes.first[kind]))
                print(row("  from all workers", changes.all[kind]))
        names = ("weir-ingress", "master", "workers")
        print(f"\n{'memory, MiB':<24} {'before':>8} {'after':>8} {'then':>8}   each minute")
        for name, first, last, then, *rows in zip(names, before, after, at_last, *each_minute):
            print(f"{name:<24} {first:>8.0f} {last:>8.0f} {then:>8.0f}   {' '.join(f'{one:.0f}' for one in rows)}")
        print(f"CPU, seconds: {', '.join(f'{name} {b - a:.0f}' for name, a, b in zip(names, used, spent))}")
        print(f"processes: 1 + 1 + {len(pod.workers())}")
        print(f"requests: {sum(asked['answers'].values())}, {asked['answers']}, lost: {asked['lost']} {asked['first'][:5]}")
        print(f"WebSockets: {held['alive']} of {options.sockets} open, {held['words']} words, lost: {held['lost']}")
        print(f"wrong: {len(changes.failed)} {changes.failed[:5]}", flush=True)
        wrong = asked["lost"] + options.sockets - held["alive"] + len(changes.failed)
    finally:
        for load in loads:
            load.end()
        if world:
            world.end()
    if wrong:
        print(f"logs: {dir}")
        sys.exit(1)
    shutil.rmtree(dir)


main()
