//! Name servers for tests.

use std::net::{Ipv4Addr, UdpSocket};
use std::thread;

/// The reply of a name server.
#[derive(Debug, Clone)]
pub enum NameReply {
    /// No reply.
    Silence,
    /// The name does not exist (NXDOMAIN).
    NoSuchName,
    /// Records with this TTL in seconds.
    Records(u32, Vec<NameRecord>),
}

/// A record.
#[derive(Debug, Clone)]
pub enum NameRecord {
    /// An A record.
    Address(Ipv4Addr),
    /// A PTR record.
    Name(&'static str),
    /// An SRV record.
    Service {
        /// Lower priorities are used first.
        priority: u16,
        /// The weight among records of one priority.
        weight: u16,
        /// Its port.
        port: u16,
        /// The target's name.
        target: &'static str,
    },
}

/// The query type A.
const ADDRESS: u16 = 1;
/// The query type PTR.
const NAME: u16 = 12;
/// The query type SRV.
const SERVICE: u16 = 33;

/// Starts a name server on 127.0.0.1 that answers with the records of `reply`. Returns the port. A
/// query gets the records of its type. It ends with the test's process.
pub fn name_server(mut reply: impl FnMut(&str) -> NameReply + Send + 'static) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port for a name server");
    let port = socket.local_addr().expect("its address").port();
    thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((n, from)) = socket.recv_from(&mut buf) {
            let Some((name, end)) = question(&buf[..n]) else { continue };
            let kind = u16::from_be_bytes([buf[end], buf[end + 1]]);
            let mut answer = buf[..end + 4].to_vec();
            answer[6..12].fill(0);
            answer[2..4].copy_from_slice(&[0x81, 0x80]);
            match reply(&name) {
                NameReply::Silence => continue,
                NameReply::NoSuchName => answer[3] = 0x83,
                NameReply::Records(seconds, records) => {
                    for record in records {
                        append(&mut answer, kind, seconds, &record);
                    }
                }
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    port
}

/// The name of a query, and the offset of its type.
fn question(message: &[u8]) -> Option<(String, usize)> {
    let (mut at, mut name) = (12, String::new());
    loop {
        let length = usize::from(*message.get(at)?);
        if length == 0 {
            return (message.len() >= at + 5).then_some((name, at + 1));
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(&String::from_utf8_lossy(message.get(at + 1..=at + length)?));
        at += length + 1;
    }
}

fn labels(name: &str) -> Vec<u8> {
    let mut labels = Vec::new();
    for label in name.split('.') {
        labels.push(label.len() as u8);
        labels.extend_from_slice(label.as_bytes());
    }
    labels.push(0);
    labels
}

fn append(answer: &mut Vec<u8>, asked: u16, seconds: u32, record: &NameRecord) {
    let (kind, data) = match record {
        NameRecord::Address(ip) => (ADDRESS, ip.octets().to_vec()),
        NameRecord::Name(name) => (NAME, labels(name)),
        NameRecord::Service { priority, weight, port, target } => {
            let mut data = Vec::new();
            for number in [priority, weight, port] {
                data.extend_from_slice(&number.to_be_bytes());
            }
            data.extend(labels(target));
            (SERVICE, data)
        }
    };
    if kind != asked {
        return;
    }
    answer[7] += 1;
    answer.extend_from_slice(&[0xc0, 12]);
    answer.extend_from_slice(&kind.to_be_bytes());
    answer.extend_from_slice(&[0, 1]);
    answer.extend_from_slice(&seconds.to_be_bytes());
    answer.extend_from_slice(&(data.len() as u16).to_be_bytes());
    answer.extend_from_slice(&data);
}
