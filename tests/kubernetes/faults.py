"""Faults at full size: invalid objects by the thousand beside valid ones, then no API server for minutes.

`tests/kubernetes/faults --wrong 10000 --valid 100 --away 600` are the figures of a whole run, 20 minutes. The exit status is 1 if a request
was lost, an invalid object was not told of, or a valid one could not be changed meanwhile.
"""

import argparse
import collections
import pathlib
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time

import gateway_cases
from cluster import ApiError, Backend, endpoints, ingress, namespace, wait
from measure import memory
from suite import World

SPACES = 25
# Of a hundred invalid objects, so many are routes of Gateway API. They have conditions; Ingresses have Events.
ROUTES = 10
# Annotations that are wrong. All of these Ingresses lack their Service as well.
WRONG = [{"whitelist-source-range": "10.0.0.0/99"}, {"auth-url": "http://localhost/"}, {"rewrite-target": "/$("}, {"server-alias": "}"},
         {"configuration-snippet": "proxy_pass http://evil;"}, {"use-regex": "maybe"}, {"canary": "true"}, {"auth-type": "digest", "auth-secret": "x"},
         {"proxy-body-size": "much"}]
# The most Events that weir-ingress may write in a second.
MOST_EVENTS = 50
# A change of a valid object must be served within so many seconds, whatever stands beside it.
SOON = 20


class Crowd:
    """Invalid objects."""

    def __init__(self, world, count):
        self.world, self.api, self.count = world, world.api, count

    def space(self, n):
        return f"wrong-{n % SPACES}"

    def is_route(self, n):
        return n % 100 < ROUTES

    def object(self, n):
        if self.is_route(n):
            return gateway_cases.route(self.space(n), f"w{n}", {"name": "gate", "namespace": "good"}, ["nothing"], hosts=[f"w{n}.wrong.test"])
        return ingress(self.space(n), f"w{n}", f"w{n}.wrong.test", [("/", "Prefix", "nothing")], WRONG[n % len(WRONG)])

    def all(self, act):
        """Does something with each, by some threads."""
        left, failed = queue.SimpleQueue(), []
        for n in range(self.count):
            left.put(n)

        def some():
            while not failed:
                try:
                    act(self.object(left.get_nowait()))
                except queue.Empty:
                    return
                except (OSError, ApiError) as error:
                    failed.append(error)
        threads = [threading.Thread(target=some) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert not failed, failed

    def make(self):
        for n in range(SPACES):
            self.api.put(namespace(f"wrong-{n}"))
        self.all(self.api.put)

    def untold(self):
        """Names of invalid objects that are not told of yet."""
        told = set()
        for n in range(SPACES):
            items = self.api.call("GET", f"/apis/events.k8s.io/v1/namespaces/wrong-{n}/events")["items"]
            told.update(event["regarding"]["name"] for event in items)
            for route in self.api.call("GET", f"/apis/gateway.networking.k8s.io/v1/namespaces/wrong-{n}/httproutes")["items"]:
                conditions = [one for parent in route.get("status", {}).get("parents", []) for one in parent["conditions"]]
                if any(one["type"] == "ResolvedRefs" and one["status"] == "False" for one in conditions):
                    told.add(route["metadata"]["name"])
        return [name for n in range(self.count) if (name := f"w{n}") not in told]


class Watcher(threading.Thread):
    """Looks once a second: how many Events and statuses were written, and how much memory there is."""

    def __init__(self, pod):
        super().__init__(daemon=True)
        self.pod, self.stop = pod, False
        self.written, self.most = collections.deque(maxlen=11), [0.0, 0.0]
        self.memory = [0.0, 0.0, 0.0]
        self.start()

    def run(self):
        while not self.stop:
            try:
                row = [self.pod.metric("events_written_total"), self.pod.metric("statuses_written_total")]
                self.memory = [max(pair) for pair in zip(self.memory, memory(self.pod))]
            except (OSError, StopIteration):
                time.sleep(1)
                continue
            self.written.append((time.monotonic(), row))
            (begin, first), (end, last) = self.written[0], self.written[-1]
            # Over ten seconds.
            if end - begin > 5:
                self.most = [max(most, (b - a) / (end - begin)) for most, a, b in zip(self.most, first, last)]
            time.sleep(1)


class Valid:
    """Valid sites, and changes of them."""

    def __init__(self, world, count):
        self.world, self.pod, self.count = world, world.pod, count
        self.servers = [Backend("one"), Backend("two")]
        self.at = [0] * count
        self.times = []

    def make(self):
        for n in range(self.count):
            self.world.site("good", f"s{n}", [self.servers[0]])
        self.world.api.put(gateway_cases.gateway("good", "gate", [{**gateway_cases.listener("http", 80), "allowedRoutes": {"namespaces": {"from": "All"}}}]))
        for n in range(self.count):
            wait("traffic", 60, lambda n=n: self.pod.who(f"s{n}.good.test") == "one")

    def change(self, n):
        """Another server behind; seconds until traffic."""
        n %= self.count
        self.at[n] = 1 - self.at[n]
        server = self.servers[self.at[n]]
        self.world.api.put(endpoints("good", f"s{n}", [server])[0])
        self.times.append(wait(f"the change of s{n}", 120, lambda: self.pod.who(f"s{n}.good.test") == server.name))

    def while_so(self, what):
        """Changes one after the other until something has ended."""
        n = 0
        while what():
            self.change(n)
            n += 7
            time.sleep(1)


def mib(row):
    return ", ".join(f"{name} {value:.0f}" for name, value in zip(("weir-ingress", "master", "workers"), row))


def times(list):
    return f"{len(list)} changes until traffic: median {sorted(list)[len(list) // 2]:.2f} s, longest {max(list):.2f} s"


def wrong_ones(world, valid, crowd, say):
    """All invalid objects are written, told of, and go; what is valid is served and changed meanwhile."""
    pod, failures = world.pod, []
    before = memory(pod)
    watcher = Watcher(pod)
    writer = threading.Thread(target=crowd.make, daemon=True)
    begin = time.monotonic()
    writer.start()
    valid.while_so(writer.is_alive)
    say(f"{crowd.count} invalid objects written within {time.monotonic() - begin:.0f} s; {times(valid.times)}")
    wait("all changes", 300, lambda: pod.metric("changes_waiting") == 0)
    valid.times.clear()
    written = time.monotonic()
    left = [None]

    def waits():
        left[:] = crowd.untold()
        return left and time.monotonic() - written < 1800
    valid.while_so(waits)
    say(f"told of {crowd.count - len(left)} after {time.monotonic() - written:.0f} s more; {times(valid.times)}")
    failures += [f"{len(left)} were not told of: {left[:3]}"] if left else []
    failures += [f"a change took {max(valid.times):.0f} s"] if max(valid.times) > SOON else []
    watcher.stop = True
    watcher.join()
    say(f"Events {pod.metric('events_written_total')}, at most {watcher.most[0]:.0f} a second; statuses {pod.metric('statuses_written_total')}, "
        f"at most {watcher.most[1]:.0f} a second; errors {pod.metric('finding_errors')}; "
        f"configurations taken {pod.metric('configurations_taken_total')}, refused {pod.metric('configurations_refused_total')}")
    failures += ["too many Events a second"] if watcher.most[0] > MOST_EVENTS + 5 else []
    say(f"memory, MiB: before: {mib(before)}; at most: {mib(watcher.memory)}")
    return failures


def refused_ones(world, valid, count, say):
    """weir itself refuses a line of each of these: it is left out, and asked for again later. A valid site is changed meanwhile."""
    valid.times.clear()
    refused = world.pod.metric("configurations_refused_total")
    snippet = {"configuration-snippet": "add_header X-New $no_such_variable;"}
    for n in range(count):
        world.api.put(ingress("good", f"r{n}", f"r{n}.good.test", [("/", "Prefix", "s0")], snippet))
    begin = time.monotonic()
    valid.change(5)
    for n in range(count):
        world.told("good", f"r{n}", "Refused", 600)
    say(f"{count} that weir refuses: left out within {time.monotonic() - begin:.0f} s, "
        f"{world.pod.metric('configurations_refused_total') - refused} configurations refused; {times(valid.times)}")
    for n in range(count):
        world.api.delete(ingress("good", f"r{n}", "", []))
    wait("all changes", 300, lambda: world.pod.metric("changes_waiting") == 0)
    return [f"a change took {max(valid.times):.0f} s"] if max(valid.times) > SOON else []


def no_api_server(world, valid, seconds, say):
    """The API server is killed and comes back; what is served stays."""
    pod, failures = world.pod, []
    told, logs = pod.metric("events_written_total"), len(pod.controller.text())
    world.api.process.end(signal.SIGKILL)
    gone = time.monotonic()
    unready = 0
    while time.monotonic() - gone < seconds:
        unready += pod.probe("/readyz")[0] != 200
        time.sleep(1)
    # The same program goes on by itself if weir starts anew meanwhile.
    world.api.process.start()
    world.api.ready()
    back = time.monotonic()
    valid.times.clear()
    valid.change(3)
    seen = time.monotonic() - back
    said = len(pod.controller.text()) - logs
    say(f"API server gone for {seconds:.0f} s: not ready {unready} times, {said} bytes of log; a change after it was served within {seen:.1f} s")
    wait("all changes", 120, lambda: pod.metric("changes_waiting") == 0)
    failures += ["not ready without API server"] if unready else []
    failures += [f"{said} bytes of log"] if said > 200 * (seconds + 100) else []
    # What was told is not told again.
    again = pod.metric("events_written_total") - told
    failures += [f"{again} Events again"] if again > 10 else []
    return failures


def main():
    server, binaries, *words = sys.argv[1:]
    parser = argparse.ArgumentParser()
    for name, usual in (("wrong", 10000), ("valid", 100), ("refused", 50), ("away", 600)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args(words)
    say = lambda text: print(text, flush=True)
    dir = pathlib.Path(tempfile.mkdtemp(prefix="weir-faults-"))
    world = World(dir, server, binaries)
    failures = []
    try:
        world.begin()
        gateway_cases.begin(world)
        valid, crowd = Valid(world, options.valid), Crowd(world, options.wrong)
        valid.make()
        clients = [world.client(f"s{n}.good.test", ("one", "two")) for n in range(0, options.valid, max(1, options.valid // 4))]
        workers = world.pod.workers()
        if options.refused:
            failures += refused_ones(world, valid, options.refused, say)
        if options.wrong:
            failures += wrong_ones(world, valid, crowd, say)
        if options.away:
            failures += no_api_server(world, valid, options.away, say)
        if options.wrong:
            begin = time.monotonic()
            crowd.all(world.api.delete)
            wait("all changes", 300, lambda: world.pod.metric("changes_waiting") == 0)
            say(f"all deleted within {time.monotonic() - begin:.0f} s; errors {world.pod.metric('finding_errors')}; memory, MiB: {mib(memory(world.pod))}")
        say(f"the same workers: {world.pod.workers() == workers}")
        for client in clients:
            try:
                say(f"{client.done()} requests of {client.host}, none lost")
            except AssertionError as error:
                failures.append(str(error))
    except AssertionError as error:
        failures.append(str(error))
    finally:
        world.end()
    for failure in failures:
        say(f"FAIL {failure}")
    if failures:
        print(f"logs: {dir}")
        sys.exit(1)
    shutil.rmtree(dir)


main()
