"""A client of aioquic that can send what no honest client sends: packets of its own making, raw streams, altered parameters."""
import asyncio, dataclasses, os, re, shutil, socket, ssl, subprocess, sys, tempfile, time
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.quic import connection as quic_connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StopSendingReceived, StreamDataReceived, StreamReset
from aioquic.tls import Epoch

var = encode_uint_var
LONG_TYPES = {Epoch.INITIAL: 0, Epoch.ZERO_RTT: 1, Epoch.HANDSHAKE: 2}


def varints(*numbers): return b''.join(var(number) for number in numbers)
def frame(kind, payload): return varints(kind, len(payload)) + payload
def stream_frame(stream, offset, data): return varints(0x0e, stream, offset, len(data)) + data
def crypto_frame(data, offset=0): return varints(0x06, offset, len(data)) + data


def packet(quic, epoch, payload, reserved=0):
    """A packet with these frames, under the connection's keys."""
    crypto, number = quic._cryptos[epoch], quic._packet_number
    quic._packet_number += 1
    if epoch == Epoch.ONE_RTT: header = bytes([0x43 | reserved | crypto.key_phase << 2]) + quic._peer_cid.cid
    else:
        length = (4 + len(payload) + 16) | 0x4000
        token = b'\0' if epoch == Epoch.INITIAL else b''
        header = bytes([0xc3 | LONG_TYPES[epoch] << 4 | reserved]) + b'\0\0\0\1' + b''.join(bytes([len(id)]) + id for id in (quic._peer_cid.cid, quic.host_cid)) + token + length.to_bytes(2, 'big')
    return crypto.encrypt_packet(header + number.to_bytes(4, 'big'), payload, number)


class Client(QuicConnectionProtocol):
    """Notes how the connection and its streams end. `before(client)` gives datagrams that go before the connection's own, once."""
    before = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.closed, self.resets, self.stops, self.data, self.ended = None, {}, {}, {}, set()
        self.changed = asyncio.Event()

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated): self.closed = event
        if isinstance(event, StreamReset): self.resets[event.stream_id] = event.error_code
        if isinstance(event, StopSendingReceived): self.stops[event.stream_id] = event.error_code
        if isinstance(event, StreamDataReceived):
            self.data[event.stream_id] = self.data.get(event.stream_id, b'') + event.data
            if event.end_stream: self.ended.add(event.stream_id)
        self.changed.set()

    def transmit(self):
        if self.before:
            more = self.before(self)
            if more is not None:
                self.before = None
                for one in more: self.put(one)
        super().transmit()

    def put(self, datagram): self._transport.sendto(datagram, self._quic._network_paths[0].addr)
    def send(self, frames, reserved=0): self.put(packet(self._quic, Epoch.ONE_RTT, frames, reserved))

    def write(self, stream, data, end=False):
        self._quic.send_stream_data(stream, data, end)
        self.transmit()

    def greet(self, settings=b'', control=b''):
        """The three streams of HTTP/3: control, encoder, decoder."""
        self.write(2, b'\0' + frame(4, settings) + control)
        self.write(6, b'\2')
        self.write(10, b'\3')

    async def until(self, what, seconds=3.0):
        """Waits until `what` holds; false if it does not in time."""
        end = time.monotonic() + seconds
        while not what():
            left = end - time.monotonic()
            if left <= 0: return False
            self.changed.clear()
            try: await asyncio.wait_for(self.changed.wait(), min(left, 0.2))
            except asyncio.TimeoutError: pass
        return True


class Open:
    """A connection to a server, as a context; closes without waiting."""

    def __init__(self, port, change=None, before=None, alpn='h3', extensions=None, ticket=None, tickets=None, wait=True, local=None):
        self.config = QuicConfiguration(is_client=True, alpn_protocols=[alpn], verify_mode=ssl.CERT_NONE, server_name='localhost', idle_timeout=30)
        self.config.session_ticket = ticket
        self.port, self.change, self.before, self.extensions, self.tickets, self.wait = port, change, before, extensions, tickets, wait

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        quic = quic_connection.QuicConnection(configuration=self.config, session_ticket_handler=self.tickets.append if self.tickets is not None else None)
        if self.change or self.extensions:
            begin, change, extensions = quic._initialize, self.change, self.extensions
            def initialize(peer_cid):
                push = quic_connection.push_quic_transport_parameters
                def altered(buf, parameters):
                    if change: change(parameters)
                    push(buf, parameters)
                quic_connection.push_quic_transport_parameters = altered
                try: begin(peer_cid)
                finally: quic_connection.push_quic_transport_parameters = push
                if extensions: quic.tls.handshake_extensions = extensions(quic.tls.handshake_extensions)
            quic._initialize = initialize
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(('127.0.0.1', 0))
        self.transport, client = await loop.create_datagram_endpoint(lambda: Client(quic), sock=sock)
        client.before = self.before
        client.connect(('127.0.0.1', self.port))
        if self.wait:
            try: await asyncio.wait_for(client.wait_connected(), 5)
            except (ConnectionError, asyncio.TimeoutError): pass
        self.client = client
        return client

    async def __aexit__(self, *error):
        self.client._quic.close(0x100)
        self.client.transmit()
        self.transport.close()


class Server:
    """A weir with a port for QUIC and one for its figures."""

    def __init__(self, weir, inside='', http='', plain=False):
        self.dir = tempfile.mkdtemp(prefix='weir-quic-')
        os.chmod(self.dir, 0o755)
        self.port, self.status = free(socket.SOCK_DGRAM), free(socket.SOCK_STREAM)
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', self.dir + '/k', '-out', self.dir + '/c', '-days', '2', '-subj', '/CN=localhost'],
                       stderr=subprocess.DEVNULL, check=True)
        os.makedirs(self.dir + '/www'), os.makedirs(self.dir + '/logs')
        open(self.dir + '/www/large', 'wb').write(os.urandom(1 << 20))
        open(self.dir + '/www/small', 'w').write('fine')
        open(self.dir + '/nginx.conf', 'w').write(
            'daemon off; user root; worker_processes 2; pid p; error_log e.log info; events { worker_connections 4096; } http { ssl_certificate c; ssl_certificate_key k; access_log off; %s'
            ' ssl_session_cache shared:sessions:1m; ssl_early_data on; server { listen 127.0.0.1:%d quic reuseport; root www; %s } server { listen 127.0.0.1:%d; location / { %s; } } }' % (http, self.port, inside, self.status, 'return 200 ready' if plain else 'weir_status'))
        self.process = subprocess.Popen([weir, '-p', self.dir, '-c', self.dir + '/nginx.conf', '-e', 'stderr'], stderr=open(self.dir + '/said', 'w'))
        for _ in range(100):
            if self.page(): return
            time.sleep(0.1)
        sys.exit('the server did not start: ' + open(self.dir + '/said').read())

    def page(self):
        return subprocess.run(['curl', '-s', '-m', '5', 'http://127.0.0.1:%d/' % self.status], capture_output=True, text=True).stdout

    def count(self, name):
        found = re.search(r'^weir_%s (\d+)' % name, self.page(), re.M)
        return int(found[1]) if found else 0

    def workers(self): return [int(pid) for pid in open('/proc/%d/task/%d/children' % (self.process.pid, self.process.pid)).read().split()]

    def memory(self):
        """KiB that the workers have to themselves."""
        total = 0
        for pid in self.workers():
            for line in open('/proc/%d/smaps_rollup' % pid): total += int(line.split()[1]) if line.startswith('Private_Dirty') else 0
        return total

    def complaints(self):
        return [line for line in (open(self.dir + '/e.log').read() + open(self.dir + '/said').read()).splitlines() if re.search(r'\[(alert|emerg|crit)\]|panicked|exited on signal', line)]

    def stop(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def free(kind):
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind(('127.0.0.1', 0))
        return one.getsockname()[1]


def literal(name, value):
    """A field that refers to nothing. RFC 9204, section 4.5.6."""
    def text(prefix, bits, data):
        most = (1 << bits) - 1
        if len(data) < most: return bytes([prefix | len(data)]) + data
        out, left = bytes([prefix | most]), len(data) - most
        while left >= 128: out, left = out + bytes([left & 127 | 128]), left >> 7
        return out + bytes([left]) + data
    return text(0x20, 3, name) + text(0, 7, value)


def section(*fields): return b'\0\0' + b''.join(literal(name, value) for name, value in fields)


def request(path=b'/small', *more):
    return frame(1, section((b':method', b'GET'), (b':scheme', b'https'), (b':authority', b'localhost'), (b':path', path), *more))
