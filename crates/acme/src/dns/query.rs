//! Queries to name servers.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};

/// The timeout of a query over UDP. Each server is queried twice.
const PATIENCE: Duration = Duration::from_secs(2);
/// The deadline of a query over TCP.
const OVER_TCP: Duration = Duration::from_secs(10);
/// The most servers of `resolv.conf` that are used, as in the C library.
const RESOLVERS: usize = 3;

/// The machine's servers, as `/etc/resolv.conf` names them.
pub fn machine_resolvers() -> Vec<SocketAddr> {
    resolvers(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default())
}

fn resolvers(text: &str) -> Vec<SocketAddr> {
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        let first = words.next().filter(|word| *word == "nameserver")?;
        let _ = first;
        // Addresses with a scope, as in fe80::1%eth0, are left out.
        words.next()?.parse::<IpAddr>().ok()
    };
    let found = text.lines().filter_map(address).take(RESOLVERS);
    found.map(|ip| SocketAddr::new(ip, 53)).collect()
}

/// Parses a name for a query.
pub fn name(text: &str) -> Result<Name, String> {
    let mut name = Name::from_ascii(text).map_err(|e| format!("\"{text}\" is no name: {e}"))?;
    name.set_fqdn(true);
    Ok(name)
}

/// Asks one server, over TCP if the answer does not fit into a datagram.
pub fn ask(
    server: SocketAddr,
    name: &Name,
    kind: RecordType,
    recursive: bool,
) -> io::Result<Message> {
    let mut question = Message::query();
    question.metadata.recursion_desired = recursive;
    question.add_query(Query::query(name.clone(), kind));
    let bytes = question.to_vec().map_err(io::Error::other)?;
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    for _ in 0..2 {
        match over_udp(server, &bytes, &question) {
            Ok(answer) if answer.metadata.truncation => {
                let bytes = over_tcp(server, &bytes)?;
                return fits(&bytes, &question)
                    .ok_or_else(|| io::Error::other("the answer cannot be read"));
            }
            Ok(answer) => return Ok(answer),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Asks these servers one after another, until one answers without an error of its own.
pub fn ask_any(servers: &[SocketAddr], name: &Name, kind: RecordType) -> Result<Message, String> {
    let mut last = "no name server is known: \"dns_resolver\" names one".to_owned();
    for server in servers {
        match ask(*server, name, kind, true) {
            Ok(answer) => {
                let code = answer.metadata.response_code;
                if matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) {
                    return Ok(answer);
                }
                last = format!("the name server {server} answers {code} for \"{name}\"");
            }
            Err(e) => last = format!("the name server {server} cannot be asked: {e}"),
        }
    }
    Err(last)
}

/// The values of the TXT records in an answer.
pub fn texts(answer: &Message) -> Vec<String> {
    let texts = answer.answers.iter().filter_map(|record| match &record.data {
        RData::TXT(txt) => Some(String::from_utf8_lossy(&txt.txt_data.concat()).into_owned()),
        _ => None,
    });
    texts.collect()
}

fn over_udp(server: SocketAddr, bytes: &[u8], question: &Message) -> io::Result<Message> {
    let local = match server {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(local)?;
    socket.connect(server)?;
    socket.send(bytes)?;
    let until = Instant::now() + PATIENCE;
    let mut buffer = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let n = match socket.recv(&mut buffer) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            other => other?,
        };
        // Other datagrams answer an earlier query, or are forged.
        if let Some(answer) = buffer.get(..n).and_then(|bytes| fits(bytes, question)) {
            return Ok(answer);
        }
    }
}

/// Parses a datagram that answers this query.
fn fits(bytes: &[u8], question: &Message) -> Option<Message> {
    let answer = Message::from_vec(bytes).ok()?;
    let is_answer = answer.metadata.message_type == MessageType::Response;
    let same = answer.metadata.id == question.metadata.id && answer.queries == question.queries;
    (is_answer && same).then_some(answer)
}

/// Sends a message over a new connection and receives the answer.
pub fn over_tcp(server: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let until = Instant::now() + OVER_TCP;
    let left = || {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(left) }
    };
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_write_timeout(Some(left()?))?;
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), message].concat())?;
    let mut read = |buffer: &mut [u8]| -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            stream.set_read_timeout(Some(left()?))?;
            match stream.read(buffer.get_mut(filled..).unwrap_or_default())? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => filled += n,
            }
        }
        Ok(())
    };
    let mut length = [0; 2];
    read(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    read(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_names_the_machines_servers() {
        let text = "# a\nsearch a.org\nnameserver 192.0.2.1\n nameserver 2001:db8::1 # b\n\
                    nameserver fe80::1%eth0\nnameserver\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n";
        let wanted = ["192.0.2.1:53", "[2001:db8::1]:53", "192.0.2.2:53"];
        assert_eq!(resolvers(text).iter().map(ToString::to_string).collect::<Vec<_>>(), wanted);
    }
}
