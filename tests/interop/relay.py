"""A path between clients and a server: it forwards UDP datagrams, and delays, drops, corrupts or rebinds them.

It runs in a network namespace of its own (see `run`), reads its rules as JSON from its first argument, and writes what it has seen as
JSON when its standard input ends. Each client address has a socket towards the server, as behind a router that translates addresses.

Rules: `listen` and `server` ([host, port]), `out` (addresses towards the server, the first is used first), `delay` (s), `rate` (bytes/s),
`queue` (datagrams), `loss` and `corrupt` (probabilities), `burst`, `drop` (numbers of the client's datagrams that get lost), `hole` ([on, off] in s,
repeatedly), `rebind` ([first, then each] in s), `rebind_address`, `marks` (each so many-th datagram to the client is marked as having met congestion),
`reorder` (probability), `seed`.
"""
import heapq, json, random, select, socket, struct, sys, time

LONG, HANDSHAKE, RETRY = 0x80, 2, 3
VERSION_2 = 0x6b3343cf


class Client:
    """One address of a client, with the socket that stands for it."""

    def __init__(self, back):
        self.back, self.since, self.rebound = back, time.monotonic(), 0
        self.received = self.sent = 0
        self.shown = False


class Relay:
    def __init__(self, rules):
        self.rules, self.random = rules, random.Random(rules.get('seed', 1))
        self.family = socket.AF_INET6 if ':' in rules['listen'][0] else socket.AF_INET
        self.front = self.socket(rules['listen'])
        self.clients, self.of_back, self.waiting, self.number = {}, {}, [], 0
        self.free, self.in_burst = [0.0, 0.0], [0, 0]
        self.began = None
        self.seen = dict(to_server=0, to_client=0, dropped=0, corrupted=0, reordered=0, retries=0, rebinds=0, ect=0, marked=0, client_ect=0,
                         after_rebind=0, amplification=0.0, versions=[])

    def socket(self, address):
        one = socket.socket(self.family, socket.SOCK_DGRAM)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        if self.family == socket.AF_INET6: one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        else: one.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        one.setblocking(False)
        one.bind(tuple(address))
        return one

    def back(self, client=None):
        out = self.rules['out']
        turn = client.rebound if client and self.rules.get('rebind_address') else 0
        return self.socket([out[turn % len(out)], 0])

    def receive(self, one):
        data, extra, _, sender = one.recvmsg(65535, 128)
        bits = 0
        for level, kind, value in extra:
            if (level, kind) in ((socket.IPPROTO_IP, socket.IP_TOS), (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)): bits = value[0] & 3
        return data, bits, sender[:2]

    def send(self, one, data, bits, to):
        level, kind = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS) if self.family == socket.AF_INET6 else (socket.IPPROTO_IP, socket.IP_TOS)
        try: one.sendmsg([data], [(level, kind, struct.pack('i', bits))], 0, tuple(to))
        except OSError: pass

    def is_lost(self, direction, number, now):
        """Whether the path drops a datagram."""
        rules, hole = self.rules, self.rules.get('hole')
        if hole and (now - self.began) % (hole[0] + hole[1]) >= hole[0]: return True
        if direction == 0 and number in rules.get('drop', []): return True
        lost = self.random.random() < rules.get('loss', 0) and self.in_burst[direction] < rules.get('burst', 3)
        self.in_burst[direction] = self.in_burst[direction] + 1 if lost else 0
        return lost

    def carry(self, direction, data, bits, client, address, now):
        rules, seen = self.rules, self.seen
        number = seen[('to_server', 'to_client')[direction]] = seen[('to_server', 'to_client')[direction]] + 1
        if self.is_lost(direction, number, now):
            seen['dropped'] += 1
            return
        if self.random.random() < rules.get('corrupt', 0):
            at = self.random.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ (1 << self.random.randrange(8))]) + data[at + 1:]
            seen['corrupted'] += 1
        due = now
        if rules.get('rate'):
            if (self.free[direction] - now) * rules['rate'] > rules.get('queue', 25) * 1500:
                seen['dropped'] += 1
                return
            self.free[direction] = due = max(self.free[direction], now) + (len(data) + 28) / rules['rate']
        if rules.get('marks') and direction == 1 and bits == 2 and number % rules['marks'] == 0:
            bits, seen['marked'] = 3, seen['marked'] + 1
        if self.random.random() < rules.get('reorder', 0):
            due, seen['reordered'] = due + 0.005 + self.random.random() * 0.02, seen['reordered'] + 1
        self.number += 1
        heapq.heappush(self.waiting, (due + rules.get('delay', 0), self.number, direction, data, bits, client, address))

    def from_client(self, now):
        data, bits, sender = self.receive(self.front)
        self.began = self.began or now
        client = self.clients.get(sender)
        if not client:
            client = self.clients[sender] = Client(self.back())
            self.of_back[client.back] = (client, sender)
        self.seen['client_ect'] += bits == 2
        self.carry(0, data, bits, client, sender, now)

    def from_server(self, one, now):
        data, bits, _ = self.receive(one)
        client, address = self.of_back[one]
        client.sent += len(data)
        if not client.shown and client.received: self.seen['amplification'] = max(self.seen['amplification'], client.sent / client.received)
        self.seen['ect'] += bits == 2
        if data[0] & LONG and len(data) > 5:
            version = int.from_bytes(data[1:5], 'big')
            if version not in self.seen['versions']: self.seen['versions'].append(version)
            self.seen['retries'] += version > 0 and RETRY in kinds(data)
        self.seen['after_rebind'] += client.rebound > 0
        self.carry(1, data, bits, client, address, now)

    def rebind(self, now):
        """Gives clients another port or address towards the server, and forgets the old one."""
        first, then = self.rules['rebind']
        for address, client in self.clients.items():
            if now - client.since >= first + client.rebound * then:
                client.rebound += 1
                del self.of_back[client.back]
                client.back.close()
                client.back = self.back(client)
                self.of_back[client.back] = (client, address)
                self.seen['rebinds'] += 1

    def deliver(self, now):
        while self.waiting and self.waiting[0][0] <= now:
            _, _, direction, data, bits, client, address = heapq.heappop(self.waiting)
            if direction == 0:
                client.received += len(data)
                # From its first packet of the handshake proper on, the address is known to be the client's own. So is one with a token.
                if not data[0] & LONG or (len(data) > 5 and any(kind == HANDSHAKE for kind in kinds(data))): client.shown = True
                self.send(client.back, data, bits, self.rules['server'])
            else: self.send(self.front, data, bits, address)

    def run(self):
        while True:
            now = time.monotonic()
            wait = min(0.05, max(0, self.waiting[0][0] - now)) if self.waiting else 0.05
            ready, _, _ = select.select([self.front, sys.stdin, *self.of_back], [], [], wait)
            now = time.monotonic()
            for one in ready:
                if one is sys.stdin: return
                for _ in range(64):
                    try: self.from_client(now) if one is self.front else self.from_server(one, now)
                    except BlockingIOError: break
                    except OSError: continue
            if self.rules.get('rebind'): self.rebind(now)
            self.deliver(time.monotonic())


def kinds(data):
    """The types of the long packets in a datagram of version 1 or 2 (RFC 9000, section 12.2)."""
    def number(at):
        length = 1 << (data[at] >> 6)
        return int.from_bytes(data[at:at + length], 'big') & ((1 << (8 * length - 2)) - 1), at + length
    at = 0
    try:
        while at < len(data) and data[at] & LONG:
            version = int.from_bytes(data[at + 1:at + 5], 'big')
            kind = data[at] >> 4 & 3
            if version == VERSION_2: kind = (kind - 1) % 4
            yield kind
            here = at + 5
            for _ in range(2): here += 1 + data[here]
            if kind == 0:
                length, here = number(here)
                here += length
            if kind == RETRY: return
            length, here = number(here)
            at = here + length
    except IndexError: return


def main():
    relay = Relay(json.loads(sys.argv[1]))
    print('ready', flush=True)
    relay.run()
    relay.seen['clients'] = [[client.received, client.sent] for client in relay.clients.values()]
    print(json.dumps(relay.seen), flush=True)


if __name__ == '__main__': main()
