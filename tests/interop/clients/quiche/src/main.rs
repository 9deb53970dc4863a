//! A client of quiche for tests/interop/run: see there for what each case asks.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use quiche::h3::{self, Header, NameValue};
use quiche::{ConnectionId, RecvInfo};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LONGEST: Duration = Duration::from_secs(280);
const PAUSE: Duration = Duration::from_micros(500);
const WINDOW: u64 = 1 << 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let (case, out) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    let urls: Vec<String> = args.collect();
    if let Err(error) = run(&case, Path::new(&out), &urls) {
        eprintln!("failed: {error}");
        std::process::exit(1);
    }
}

fn run(case: &str, out: &Path, urls: &[String]) -> Result<()> {
    match case {
        "multiconnect" => {
            for url in urls {
                Client::new(urls, None)?.fetch(case, out, std::slice::from_ref(url))?;
            }
            Ok(())
        }
        "resumption" | "zerortt" => {
            let session = Client::new(urls, None)?.fetch(case, out, &urls[..1])?;
            let mut client = Client::new(urls, session)?;
            client.early = case == "zerortt";
            client.fetch(case, out, &urls[1..])?;
            if !client.quic.is_resumed() {
                return Err("the second connection was not resumed".into());
            }
            Ok(())
        }
        _ => Client::new(urls, None)?.fetch(case, out, urls).map(drop),
    }
}

struct Client {
    quic: quiche::Connection,
    sockets: Vec<(UdpSocket, SocketAddr)>,
    peer: SocketAddr,
    /// Requests may go before the handshake is complete.
    early: bool,
}

fn config() -> Result<quiche::Config> {
    let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION)?;
    config.set_application_protos(h3::APPLICATION_PROTOCOL)?;
    config.set_max_idle_timeout(60_000);
    config.set_max_recv_udp_payload_size(1452);
    config.set_initial_max_data(10 * WINDOW);
    config.set_initial_max_stream_data_bidi_local(WINDOW);
    config.set_initial_max_stream_data_bidi_remote(WINDOW);
    config.set_initial_max_stream_data_uni(WINDOW);
    config.set_initial_max_streams_uni(100);
    config.set_active_connection_id_limit(4);
    config.enable_early_data();
    config.verify_peer(false);
    Ok(config)
}

fn id() -> Result<[u8; 16]> {
    let mut id = [0; 16];
    std::io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut id)?;
    Ok(id)
}

fn socket(peer: SocketAddr) -> Result<(UdpSocket, SocketAddr)> {
    let any = if peer.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer)?;
    socket.set_nonblocking(true)?;
    let local = socket.local_addr()?;
    Ok((socket, local))
}

impl Client {
    fn new(urls: &[String], session: Option<Vec<u8>>) -> Result<Client> {
        let first = urls.first().ok_or("no URL")?;
        let address = first.split('/').nth(2).ok_or("no host")?;
        let peer: SocketAddr = address.parse()?;
        let (socket, local) = socket(peer)?;
        let id = id()?;
        let id = ConnectionId::from_ref(&id);
        let mut quic = quiche::connect(Some("localhost"), &id, local, peer, &mut config()?)?;
        if let Some(session) = session {
            quic.set_session(&session)?;
        }
        Ok(Client { quic, sockets: vec![(socket, local)], peer, early: false })
    }

    fn receive(&mut self) -> Result<bool> {
        let (mut buf, mut any) = ([0; 65_535], false);
        for (socket, local) in &self.sockets {
            loop {
                match socket.recv(&mut buf) {
                    Ok(n) => {
                        any = true;
                        let info = RecvInfo { from: self.peer, to: *local };
                        // What was corrupted on its way is no reason to end.
                        let _ = self.quic.recv(&mut buf[..n], info);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => break,
                }
            }
        }
        Ok(any)
    }

    fn send(&mut self) -> Result<()> {
        let mut buf = [0; 1452];
        loop {
            match self.quic.send(&mut buf) {
                Ok((n, info)) => {
                    let socket = self.sockets.iter().find(|(_, local)| *local == info.from);
                    if let Some((socket, _)) = socket {
                        let _ = socket.send(&buf[..n]);
                    }
                }
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn turn(&mut self) -> Result<()> {
        self.send()?;
        if !self.receive()? {
            std::thread::sleep(PAUSE);
        }
        if self.quic.timeout().is_some_and(|left| left.is_zero()) {
            self.quic.on_timeout();
        }
        Ok(())
    }

    /// Moves the connection to a socket of another port.
    fn migrate(&mut self) -> Result<bool> {
        if self.quic.available_dcids() == 0 {
            return Ok(false);
        }
        if self.sockets.len() == 1 {
            let (socket, local) = socket(self.peer)?;
            self.sockets.push((socket, local));
            let id = id()?;
            self.quic.new_scid(&ConnectionId::from_ref(&id), 7, true)?;
        }
        let local = self.sockets[1].1;
        match self.quic.migrate_source(local) {
            Ok(_) => Ok(true),
            Err(quiche::Error::OutOfIdentifiers) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gets all files over the connection. What it can be resumed with.
    fn fetch(&mut self, case: &str, out: &Path, urls: &[String]) -> Result<Option<Vec<u8>>> {
        let began = Instant::now();
        let mut http = None;
        let mut wanted: Vec<&String> = urls.iter().rev().collect();
        let mut files: HashMap<u64, File> = HashMap::new();
        let mut moves = case == "connectionmigration";
        loop {
            self.turn()?;
            if self.quic.is_closed() {
                return Err(format!("closed: {:?} {:?}", self.quic.peer_error(), self.quic.local_error()).into());
            }
            if began.elapsed() > LONGEST {
                return Err("too long".into());
            }
            let may = self.quic.is_established() || self.early && self.quic.is_in_early_data();
            if http.is_none() && may {
                let config = h3::Config::new()?;
                http = Some(h3::Connection::with_transport(&mut self.quic, &config)?);
            }
            let Some(http) = &mut http else { continue };
            while let Some(url) = wanted.last() {
                let path = &url[url.rfind('/').unwrap_or_default()..];
                let field = |name: &str, value: &str| Header::new(name.as_bytes(), value.as_bytes());
                let head = [
                    field(":method", "GET"),
                    field(":scheme", "https"),
                    field(":authority", "localhost"),
                    field(":path", path),
                ];
                match http.send_request(&mut self.quic, &head, true) {
                    Ok(stream) => {
                        files.insert(stream, File::create(out.join(&path[1..]))?);
                        wanted.pop();
                    }
                    Err(h3::Error::StreamBlocked | h3::Error::TransportError(quiche::Error::StreamLimit)) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            read(http, &mut self.quic, &mut files)?;
            if moves && self.quic.is_established() && began.elapsed() > Duration::from_millis(150) {
                moves = !self.migrate()?;
            }
            // A ticket comes behind the handshake.
            let has_ticket = self.quic.session().is_some() || case != "resumption" && case != "zerortt";
            if wanted.is_empty() && files.is_empty() && has_ticket && self.quic.is_established() {
                break;
            }
        }
        if moves {
            return Err("it could not move".into());
        }
        let session = self.quic.session().map(<[u8]>::to_vec);
        let _ = self.quic.close(true, 0x100, b"");
        self.send()?;
        Ok(session)
    }
}

fn read(http: &mut h3::Connection, quic: &mut quiche::Connection, files: &mut HashMap<u64, File>) -> Result<()> {
    let mut buf = [0; 65_535];
    loop {
        match http.poll(quic) {
            Ok((_, h3::Event::Headers { list, .. })) => {
                if list.iter().any(|field| field.name() == b":status" && field.value() != b"200") {
                    return Err(format!("{list:?}").into());
                }
            }
            Ok((stream, h3::Event::Data)) => {
                while let Ok(n) = http.recv_body(quic, stream, &mut buf) {
                    if let Some(file) = files.get_mut(&stream) {
                        file.write_all(&buf[..n])?;
                    }
                }
            }
            Ok((stream, h3::Event::Finished)) => drop(files.remove(&stream)),
            Ok((stream, h3::Event::Reset(code))) => return Err(format!("stream {stream} was reset: {code}").into()),
            Ok(_) => {}
            Err(h3::Error::Done) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
