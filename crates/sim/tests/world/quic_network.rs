//! QUIC clients of a course, and the network between them and the server.
//!
//! Datagrams pass through UDP sockets of the kernel. A client's datagram is sent on its socket at
//! its time of arrival. A datagram of the server is taken from the client's socket at once, and
//! reaches the client at its time of arrival.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use weir_testkit::Dice;

use crate::client_request::ClientRequest;
use crate::course::{Course, CourseEvent};
use crate::path::Path;
use crate::quic_client::{QuicClient, QuicClientSetup};

/// Data of epoll events of client sockets: the client, and the index of its socket.
pub const DATAGRAMS: u64 = 1 << 41;
const SOCKETS: u64 = 64;
/// Longer than any datagram.
const ROOM: usize = 65_536;
/// The most sockets of a client.
const MAX_SOCKETS: usize = 16;
/// The server's port, and the first port of clients.
const SERVER: u16 = 4433;
const CLIENTS: u16 = 5000;

/// The server's address for QUIC, which differs between courses. The kernel selects sockets by
/// hashes of addresses, so a seed always has the same address.
pub fn address(seed: u64) -> SocketAddrV4 {
    let [_, _, _, _, _, b, c, d] = Dice::salted(seed, "address").any().to_be_bytes();
    SocketAddrV4::new(Ipv4Addr::new(127, 64 + (b & 0x3f), c, d), SERVER)
}

/// The directives of HTTP/3.
pub fn lines(d: &mut Dice, address: SocketAddrV4, home: &str, tls: bool) -> String {
    let keys = match tls {
        true => String::new(),
        false => format!(
            "        ssl_certificate {home}/h.pem;
        ssl_certificate_key {home}/h.key;
        ssl_session_cache shared:q:100k;
"
        ),
    };
    let onoff = |d: &mut Dice| d.pick(&["on", "off"]);
    let (streams, buffer) = (d.pick(&[1, 4, 128]), d.pick(&["1k", "8k", "64k"]));
    format!(
        "        listen {address} quic reuseport;
{keys}        ssl_early_data {};
        quic_retry {};
        quic_gso {};
        quic_congestion {};
        http3_max_concurrent_streams {streams};
        http3_stream_buffer_size {buffer};
",
        onoff(d),
        d.pick(&["off", "off", "on"]),
        onoff(d),
        d.pick(&["cubic", "cubic", "bbr"]),
    )
}

/// A datagram in flight.
pub struct DatagramInFlight {
    client: u64,
    /// The index of the client's socket.
    socket: usize,
    to_server: bool,
    bytes: Vec<u8>,
}

fn socket(address: SocketAddrV4) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
    let fd = fd.expect("a socket");
    rustix::net::bind(&fd, &address).expect("a port");
    let _ = sockopt::set_socket_recv_buffer_size(&fd, 8 << 20);
    fd
}

impl Course {
    /// Adds a QUIC client.
    pub fn add_quic_client(&mut self, server: SocketAddrV4, requests: Vec<ClientRequest>) -> u64 {
        let weights = requests.iter().map(|request| request.weight(&self.plan, &self.records));
        let (most, heaviest) =
            weights.fold((0, 0), |(sum, most), (to, fro)| (sum + to + fro, fro.max(most)));
        let mut path = Path::draw(&mut self.dice);
        if most > 100_000 {
            // Otherwise such a client would take an hour.
            path.delay = path.delay.min(5_000_000);
            path.jitter = path.jitter.min(path.delay / 2);
            path.loses = if path.loses > 0 { path.loses.max(100) } else { 0 };
        }
        let nature = QuicClientSetup {
            server: SocketAddr::V4(server),
            socket: self.socket(server),
            path,
            requests,
            heaviest,
            breaks: self.plan.broken_clients,
        };
        let tls = self.tls_settings.tls_13();
        let quic_client = QuicClient::new(tls, nature, &mut self.dice, self.world.now());
        let id = self.number();
        self.quic_clients.insert(id, Box::new(quic_client));
        self.listen(id);
        self.world.peers(self.peers.len() as u64 + 4 * self.quic_clients.len() as u64);
        self.run_quic_client(id);
        id
    }

    /// A socket for a client: the server's IP address, and a port of its own.
    fn socket(&mut self, server: SocketAddrV4) -> OwnedFd {
        let port = CLIENTS + self.sockets;
        self.sockets += 1;
        socket(SocketAddrV4::new(*server.ip(), port))
    }

    /// Watches the client's last socket.
    fn listen(&mut self, id: u64) {
        let Some(quic_client) = self.quic_clients.get(&id) else { return };
        let number = quic_client.sockets.len() as u64 - 1;
        let data = EventData::new_u64(DATAGRAMS + id * SOCKETS + number);
        let flags = EventFlags::IN | EventFlags::ET;
        if let Some(fd) = quic_client.sockets.last() {
            epoll::add(&self.epoll, fd, data, flags).expect("a socket to watch");
        }
    }

    /// Lets the client do its work.
    pub fn run_quic_client(&mut self, id: u64) {
        let now = self.world.now();
        let Some(mut quic_client) = self.quic_clients.remove(&id) else { return };
        let sent = quic_client.act(now, &mut self.records);
        self.world.note("calls", id, sent.iter().map(|d| d.len() as u64).sum());
        if std::mem::take(&mut quic_client.wants_socket)
            && quic_client.sockets.len() < MAX_SOCKETS
            && let Some(server) = self.plan.http3
        {
            quic_client.sockets.push(self.socket(server));
            self.quic_clients.insert(id, quic_client);
            self.listen(id);
        } else {
            self.quic_clients.insert(id, quic_client);
        }
        for bytes in sent {
            self.transmit(id, usize::MAX, true, bytes);
        }
        let Some(quic_client) = self.quic_clients.get_mut(&id) else { return };
        if quic_client.done {
            // Its last datagrams are still in flight, so its sockets stay for a while.
            quic_client.planned = None;
            self.world.note("hangs up", id, 0);
            return self.after(2_000_000_000, CourseEvent::Leave(id));
        }
        let next = quic_client.next();
        if let Some(at) = next
            && quic_client.planned.is_none_or(|planned| at < planned || planned <= now)
        {
            quic_client.planned = Some(at);
            self.after(at.saturating_sub(now), CourseEvent::Calls(id));
        }
    }

    /// Sends a datagram on the network.
    fn transmit(&mut self, client: u64, socket: usize, to_server: bool, bytes: Vec<u8>) {
        let now = self.world.now();
        let Some(quic_client) = self.quic_clients.get_mut(&client) else { return };
        let socket = socket.min(quic_client.sockets.len() - 1);
        for (delay, damaged) in
            quic_client.path.clone().carry(&mut quic_client.dice, now, bytes.len())
        {
            let mut bytes = bytes.clone();
            if damaged {
                let at = self.dice.below(bytes.len());
                bytes[at] ^= 1 << self.dice.below(8);
            }
            let number = self.number();
            self.datagrams.insert(number, DatagramInFlight { client, socket, to_server, bytes });
            self.after(delay, CourseEvent::Lands(number));
        }
    }

    /// Delivers a datagram.
    pub fn deliver(&mut self, number: u64) {
        let Some(DatagramInFlight { client, socket, to_server, bytes }) =
            self.datagrams.remove(&number)
        else {
            return;
        };
        let now = self.world.now();
        self.world.note(if to_server { "to" } else { "fro" }, client, bytes.len() as u64);
        let Some(quic_client) = self.quic_clients.get_mut(&client) else { return };
        if to_server {
            if let Some(fd) = quic_client.sockets.get(socket) {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let _ = rustix::net::sendto(fd, &bytes, flags, &quic_client.server);
            }
        } else if !quic_client.done {
            quic_client.receive(now, &bytes);
            self.run_quic_client(client);
        }
    }

    /// Checks that no connection is left when all clients have gone.
    pub fn check_quic_connections(&mut self) {
        let open = self.generations.as_ref().map_or(0, |all| all.open_quic());
        if open > 0 {
            self.records.report(format!("{open} connections of QUIC are left"));
        }
    }

    /// Receives the datagrams that the server has sent to a client's socket.
    pub fn take_datagrams(&mut self, data: u64) {
        let (id, number) = ((data - DATAGRAMS) / SOCKETS, (data - DATAGRAMS) % SOCKETS);
        let mut buf = vec![0; ROOM];
        loop {
            let Some(fd) = self.quic_clients.get(&id).and_then(|c| c.sockets.get(number as usize))
            else {
                return;
            };
            match rustix::net::recv(fd, &mut buf[..], RecvFlags::DONTWAIT) {
                Ok((n, _)) => {
                    let bytes = buf[..n].to_vec();
                    self.world.note("said", id, n as u64);
                    self.transmit(id, number as usize, false, bytes);
                }
                Err(_) => return,
            }
        }
    }
}
