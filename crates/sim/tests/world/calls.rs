//! Clients over QUIC in a course, and the network between them and the server.
//!
//! Datagrams go through UDP sockets of the kernel. What a client sends enters its socket when it arrives. What the
//! server sends is taken out of the client's socket at once, and reaches the client when it arrives.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use weir_testkit::Dice;

use crate::caller::{Caller, Nature};
use crate::client::Ask;
use crate::course::{Course, What};
use crate::path::Path;

/// What epoll says of a client's socket: the client, and the number of its socket.
pub const DATAGRAMS: u64 = 1 << 41;
const SOCKETS: u64 = 64;
/// Longer than any datagram.
const ROOM: usize = 65_536;
/// A client is told to have moved so often at most.
const MOST: usize = 16;
/// The server's port, and the first one of clients.
const SERVER: u16 = 4433;
const CLIENTS: u16 = 5000;

/// The server's port for QUIC, at an address that no other course has. The kernel chooses sockets by addresses, so a seed
/// always has the same.
pub fn address(seed: u64) -> SocketAddrV4 {
    let [_, _, _, _, _, b, c, d] = Dice::salted(seed, "address").any().to_be_bytes();
    SocketAddrV4::new(Ipv4Addr::new(127, 64 + (b & 0x3f), c, d), SERVER)
}

/// The lines that make the server speak HTTP/3.
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

/// A datagram on its way.
pub struct Flight {
    client: u64,
    /// The client's socket.
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
    /// A client of QUIC comes.
    pub fn call(&mut self, server: SocketAddrV4, asks: Vec<Ask>) -> u64 {
        let weights = asks.iter().map(|ask| ask.weight(&self.fate, &self.book));
        let (most, heaviest) =
            weights.fold((0, 0), |(sum, most), (to, fro)| (sum + to + fro, fro.max(most)));
        let mut path = Path::draw(&mut self.dice);
        if most > 100_000 {
            // Such a client would take an hour.
            path.delay = path.delay.min(5_000_000);
            path.jitter = path.jitter.min(path.delay / 2);
            path.loses = if path.loses > 0 { path.loses.max(100) } else { 0 };
        }
        let nature = Nature {
            server: SocketAddr::V4(server),
            socket: self.socket(server),
            path,
            asks,
            heaviest,
            breaks: self.fate.broken_clients,
        };
        let tls = self.secrets.tls_13();
        let caller = Caller::new(tls, nature, &mut self.dice, self.world.now());
        let id = self.number();
        self.callers.insert(id, Box::new(caller));
        self.listen(id);
        self.world.peers(self.peers.len() as u64 + 4 * self.callers.len() as u64);
        self.goes_on(id);
        id
    }

    /// A socket of a client, at the server's address with a port of its own.
    fn socket(&mut self, server: SocketAddrV4) -> OwnedFd {
        let port = CLIENTS + self.sockets;
        self.sockets += 1;
        socket(SocketAddrV4::new(*server.ip(), port))
    }

    /// Watches the client's last socket.
    fn listen(&mut self, id: u64) {
        let Some(caller) = self.callers.get(&id) else { return };
        let number = caller.sockets.len() as u64 - 1;
        let data = EventData::new_u64(DATAGRAMS + id * SOCKETS + number);
        let flags = EventFlags::IN | EventFlags::ET;
        if let Some(fd) = caller.sockets.last() {
            epoll::add(&self.epoll, fd, data, flags).expect("a socket to watch");
        }
    }

    /// The client does what there is to do.
    pub fn goes_on(&mut self, id: u64) {
        let now = self.world.now();
        let Some(mut caller) = self.callers.remove(&id) else { return };
        let sent = caller.act(now, &mut self.book);
        self.world.note("calls", id, sent.iter().map(|d| d.len() as u64).sum());
        if std::mem::take(&mut caller.wants_socket)
            && caller.sockets.len() < MOST
            && let Some(server) = self.fate.http3
        {
            caller.sockets.push(self.socket(server));
            self.callers.insert(id, caller);
            self.listen(id);
        } else {
            self.callers.insert(id, caller);
        }
        for bytes in sent {
            self.fly(id, usize::MAX, true, bytes);
        }
        let Some(caller) = self.callers.get_mut(&id) else { return };
        if caller.done {
            // What it has sent is on its way; the sockets stay until then.
            caller.planned = None;
            self.world.note("hangs up", id, 0);
            return self.after(2_000_000_000, What::Leave(id));
        }
        let next = caller.next();
        if let Some(at) = next
            && caller.planned.is_none_or(|planned| at < planned || planned <= now)
        {
            caller.planned = Some(at);
            self.after(at.saturating_sub(now), What::Calls(id));
        }
    }

    /// A datagram begins its way.
    fn fly(&mut self, client: u64, socket: usize, to_server: bool, bytes: Vec<u8>) {
        let now = self.world.now();
        let Some(caller) = self.callers.get_mut(&client) else { return };
        let socket = socket.min(caller.sockets.len() - 1);
        for (delay, damaged) in caller.path.clone().carry(&mut caller.dice, now, bytes.len()) {
            let mut bytes = bytes.clone();
            if damaged {
                let at = self.dice.below(bytes.len());
                bytes[at] ^= 1 << self.dice.below(8);
            }
            let number = self.number();
            self.flights.insert(number, Flight { client, socket, to_server, bytes });
            self.after(delay, What::Lands(number));
        }
    }

    /// It is there.
    pub fn land(&mut self, number: u64) {
        let Some(Flight { client, socket, to_server, bytes }) = self.flights.remove(&number) else {
            return;
        };
        let now = self.world.now();
        self.world.note(if to_server { "to" } else { "fro" }, client, bytes.len() as u64);
        let Some(caller) = self.callers.get_mut(&client) else { return };
        if to_server {
            if let Some(fd) = caller.sockets.get(socket) {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let _ = rustix::net::sendto(fd, &bytes, flags, &caller.server);
            }
        } else if !caller.done {
            caller.hear(now, &bytes);
            self.goes_on(client);
        }
    }

    /// No connection is left when all clients are gone.
    pub fn look_for_calls(&mut self) {
        let open = self.generations.as_ref().map_or(0, |all| all.open_quic());
        if open > 0 {
            self.book.find(format!("{open} connections of QUIC are left"));
        }
    }

    /// Takes what the server has sent to a client's socket.
    pub fn take_datagrams(&mut self, data: u64) {
        let (id, number) = ((data - DATAGRAMS) / SOCKETS, (data - DATAGRAMS) % SOCKETS);
        let mut buf = vec![0; ROOM];
        loop {
            let Some(fd) = self.callers.get(&id).and_then(|c| c.sockets.get(number as usize))
            else {
                return;
            };
            match rustix::net::recv(fd, &mut buf[..], RecvFlags::DONTWAIT) {
                Ok((n, _)) => {
                    let bytes = buf[..n].to_vec();
                    self.world.note("said", id, n as u64);
                    self.fly(id, number as usize, false, bytes);
                }
                Err(_) => return,
            }
        }
    }
}
