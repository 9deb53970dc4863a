//! Asks name servers: one after another, over UDP, over TCP where the answer does not fit, and again for the
//! name that a name stands for.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use weir_engine::{Chain, ConnectOptions, Handle};
use weir_proto::dns::{self, Data, Kind, Message};

use super::{Found, Outcome, Question, Resolver, Unresolved};
use crate::address::Address;

/// How long one server is waited for before the next is asked.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many names may stand for one another in a row.
const ALIASES: usize = 50;
/// Larger answers come over TCP.
const UDP_ANSWER: usize = 4096;
/// How long an answer holds at least, so that a TTL of 0 does not ask for each request of a burst twice.
const LEAST: Duration = Duration::from_secs(1);

/// What the servers said of one type of address.
struct Told {
    addresses: Vec<IpAddr>,
    ttl: Duration,
}

/// Asks as long as somebody waits.
pub async fn ask(
    resolver: &Resolver,
    handle: &Handle,
    name: &str,
    question: &Rc<Question>,
) -> Outcome {
    let conf = &resolver.conf;
    let one = async |wanted: bool, kind| match wanted {
        true => Some(follow(resolver, handle, name, kind, question).await),
        false => None,
    };
    let told = both(one(conf.ipv4, Kind::A), one(conf.ipv6, Kind::Aaaa)).await;
    let mut addresses = Vec::new();
    let (mut ttl, mut failed) = (None::<Duration>, None);
    for told in [told.0, told.1].into_iter().flatten() {
        match told {
            Ok(told) => {
                addresses.extend(told.addresses);
                ttl = Some(ttl.map_or(told.ttl, |t| t.min(told.ttl)));
            }
            Err(why) => {
                failed.get_or_insert(why);
            }
        }
    }
    match ttl {
        Some(ttl) if !addresses.is_empty() => {
            let valid = conf.valid.unwrap_or(ttl).max(LEAST);
            Ok(Found { addresses, until: handle.now() + valid })
        }
        _ => Err(failed.unwrap_or(Unresolved::NO_SUCH_NAME)),
    }
}

/// Waits for both.
async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut a_out, mut b_out) = (None, None);
    std::future::poll_fn(|cx| {
        if a_out.is_none()
            && let Poll::Ready(out) = a.as_mut().poll(cx)
        {
            a_out = Some(out);
        }
        if b_out.is_none()
            && let Poll::Ready(out) = b.as_mut().poll(cx)
        {
            b_out = Some(out);
        }
        match (a_out.take(), b_out.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (a_out, b_out) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

/// Follows aliases to addresses.
async fn follow(
    resolver: &Resolver,
    handle: &Handle,
    name: &str,
    kind: Kind,
    question: &Rc<Question>,
) -> Result<Told, Unresolved> {
    let mut name = name.to_owned();
    for _ in 0..ALIASES {
        let message = servers(resolver, handle, &name, kind, question).await?;
        if message.code != 0 {
            return Err(Unresolved::Code(message.code));
        }
        let (told, alias) = read(&message, &name);
        match alias {
            _ if !told.addresses.is_empty() => return Ok(told),
            Some(alias) if alias != name => name = alias,
            _ => return Err(Unresolved::NO_SUCH_NAME),
        }
    }
    Err(Unresolved::NO_SUCH_NAME)
}

/// The addresses in an answer, and the name at the end of its aliases.
fn read(message: &Message, name: &str) -> (Told, Option<String>) {
    let mut told = Told { addresses: Vec::new(), ttl: Duration::MAX };
    let mut alias: Option<String> = None;
    for record in &message.records {
        let address = match &record.data {
            Data::A(ip) => IpAddr::from(*ip),
            Data::Aaaa(ip) => IpAddr::from(*ip),
            Data::Cname(target) => {
                if record.name == alias.as_deref().unwrap_or(name) {
                    alias = Some(target.clone());
                }
                continue;
            }
            _ => continue,
        };
        told.addresses.push(address);
        told.ttl = told.ttl.min(Duration::from_secs(record.ttl.into()));
    }
    (told, alias)
}

/// Asks the servers in turn until one answers, or nobody waits any more.
async fn servers(
    resolver: &Resolver,
    handle: &Handle,
    name: &str,
    kind: Kind,
    question: &Rc<Question>,
) -> Result<Message, Unresolved> {
    let servers = &resolver.conf.servers;
    // Two hold the question when nobody waits any more: the table and the task.
    while Rc::strong_count(question) > 2 {
        let turn = resolver.next.get();
        resolver.next.set(turn.wrapping_add(1));
        let Some(Address::Inet(server)) = servers.get(turn % servers.len().max(1)) else {
            return Err(Unresolved::TimedOut);
        };
        let mut query = Vec::new();
        let id = number();
        dns::query(id, name, kind, &mut query).map_err(|_| Unresolved::NO_SUCH_NAME)?;
        let until = handle.now() + PATIENCE;
        match udp(handle, *server, &query, id, kind, until).await {
            Ok(message) if message.truncated => {
                if let Ok(message) = tcp(handle, *server, &query, id, until).await {
                    return Ok(message);
                }
            }
            Ok(message) => return Ok(message),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            // A server that refuses at once must not be asked in a tight circle.
            Err(_) => handle.sleep_until(until).await,
        }
    }
    Err(Unresolved::TimedOut)
}

/// A query's number that others cannot guess.
fn number() -> u16 {
    let mut bytes = [0; 2];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u16::from_ne_bytes(bytes)
}

async fn udp(
    handle: &Handle,
    server: SocketAddr,
    query: &[u8],
    id: u16,
    kind: Kind,
    until: Instant,
) -> io::Result<Message> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    // A socket, and so a port, for each query: one more thing that a forger would have to guess.
    let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    rustix::net::connect(&fd, &server)?;
    let socket = handle.datagram(fd)?;
    socket.set_deadline(Some(until));
    socket.send_to(query, None).await?;
    let mut buf = handle.take_buf(UDP_ANSWER);
    loop {
        buf.clear();
        let (received, back) = socket.recv_from(buf).await;
        buf = back;
        received?;
        // Anything else is not what was asked for; the answer may still come.
        if let Ok(message) = dns::parse(&buf)
            && message.id == id
            && message.kind == kind as u16
        {
            handle.give_buf(buf);
            return Ok(message);
        }
    }
}

async fn tcp(
    handle: &Handle,
    server: SocketAddr,
    query: &[u8],
    id: u16,
    until: Instant,
) -> io::Result<Message> {
    let how = ConnectOptions { deadline: Some(until), ..ConnectOptions::default() };
    let stream = handle.connect(&server.into(), &how).await?;
    let len = u16::try_from(query.len()).unwrap_or(u16::MAX);
    let mut chain = Chain::new();
    chain.push([&len.to_be_bytes(), query].concat());
    stream.send(&mut chain).await?;
    let mut buf = handle.take_buf(UDP_ANSWER);
    loop {
        if let Some((len, message)) = buf.split_first_chunk::<2>()
            && let Some(message) = message.get(..usize::from(u16::from_be_bytes(*len)))
        {
            let invalid = || io::Error::from(io::ErrorKind::InvalidData);
            let message = dns::parse(message).map_err(|_| invalid())?;
            return if message.id == id { Ok(message) } else { Err(invalid()) };
        }
        if buf.len() == buf.capacity() {
            buf.reserve(UDP_ANSWER);
        }
        let (received, back) = stream.recv(buf).await;
        buf = back;
        if received? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
