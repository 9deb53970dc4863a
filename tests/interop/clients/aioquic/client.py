"""A client of aioquic for tests/interop/run: see there for what each case asks. usage: client.py CASE FOLDER URL..."""
import asyncio, os, ssl, sys
from urllib.parse import urlsplit
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamReset
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import CipherSuite


class Client(QuicConnectionProtocol):
    """Gets files over HTTP/3."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http, self.wanted = H3Connection(self._quic), {}

    def get(self, url, folder):
        parts = urlsplit(url)
        stream = self._quic.get_next_available_stream_id()
        self.http.send_headers(stream, [(b':method', b'GET'), (b':scheme', b'https'), (b':authority', b'localhost'), (b':path', parts.path.encode())], True)
        done = asyncio.get_running_loop().create_future()
        self.wanted[stream] = (done, open(os.path.join(folder, os.path.basename(parts.path)), 'wb'))
        self.transmit()
        return done

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated):
            for done, _ in self.wanted.values():
                if not done.done(): done.set_exception(ConnectionError('closed: %s %s' % (event.error_code, event.reason_phrase)))
        if isinstance(event, StreamReset) and event.stream_id in self.wanted:
            self.wanted[event.stream_id][0].set_exception(ConnectionError('reset: %s' % event.error_code))
        for heard in self.http.handle_event(event):
            done, file = self.wanted.get(getattr(heard, 'stream_id', None), (None, None))
            if done is None: continue
            if isinstance(heard, HeadersReceived):
                status = dict(heard.headers)[b':status']
                if status != b'200': done.set_exception(ConnectionError('status %s' % status.decode()))
            if isinstance(heard, DataReceived): file.write(heard.data)
            if heard.stream_ended and not done.done():
                file.close()
                done.set_result(None)


async def fetch(client, urls, folder, most):
    waiting, urls = set(), list(urls)
    while urls or waiting:
        while urls and len(waiting) < most: waiting.add(asyncio.ensure_future(wait_for(client.get(urls.pop(0), folder))))
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in done: one.result()


async def wait_for(future): await future


async def main(case, folder, urls):
    tickets = []
    config = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE, server_name='localhost', idle_timeout=60)
    if case == 'chacha20': config.cipher_suites = [CipherSuite.CHACHA20_POLY1305_SHA256]
    if case == 'v2': config.original_version, config.supported_versions = QuicProtocolVersion.VERSION_1, [QuicProtocolVersion.VERSION_2, QuicProtocolVersion.VERSION_1]
    first = urlsplit(urls[0])

    def to_server(wait=True):
        return connect(first.hostname, first.port, configuration=config, create_protocol=Client, session_ticket_handler=tickets.append, wait_connected=wait)
    if case == 'multiconnect':
        for url in urls:
            async with to_server() as client: await fetch(client, [url], folder, 1)
        return
    if case in ('resumption', 'zerortt'):
        async with to_server() as client:
            await fetch(client, urls[:1], folder, 1)
            for _ in range(50):
                if tickets: break
                await asyncio.sleep(0.1)
        config.session_ticket = tickets[-1]
        async with to_server(case != 'zerortt') as client:
            await fetch(client, urls[1:], folder, 50)
            if not client._quic.tls.session_resumed: sys.exit('the second connection was not resumed')
            if case == 'zerortt' and not client._quic.tls.early_data_accepted: sys.exit('the server took no early data')
        return
    async with to_server() as client:
        getting = asyncio.ensure_future(fetch(client, urls, folder, 100))
        await asyncio.sleep(0.15)
        if case == 'keyupdate': client.request_key_update()
        if case == 'connectionmigration':
            client.change_connection_id()
            old, loop = client._transport, asyncio.get_running_loop()
            local = ('::', 0, 0, 0) if ':' in first.hostname else ('::', 0, 0, 0)
            import socket
            other = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            other.bind(local)
            client._transport, _ = await loop.create_datagram_endpoint(lambda: Passes(client), sock=other)
            await getting
            old.close()
        await getting


class Passes(asyncio.DatagramProtocol):
    """Takes what comes to a second socket to the connection."""

    def __init__(self, client): self.client = client
    def datagram_received(self, data, address): self.client.datagram_received(data, address)


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
