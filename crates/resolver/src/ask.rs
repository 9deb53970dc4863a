//! Queries name servers: one after another, over UDP, over TCP if the answer is truncated, and
//! again for the target of a CNAME.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use weir_engine::{Chain, ConnectOptions, Either, Handle, Patience, either};
use weir_log::Cause;
use weir_proto::dns::{self, Data, Message, QueryType, ResourceRecord};

use super::socket::{Query, UDP_ANSWER};
use super::{
    LookupEvent, Resolution, Resolved, Resolver, Service, Services, Unresolved, answered, count,
    tell,
};
use weir_values::Address;

/// How long to wait for one server before the next is asked.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest chain of CNAMEs that is followed.
const ALIASES: usize = 50;
/// The most TCP connections at a time. Beyond it, a truncated answer is asked for again a little
/// later.
const CONNECTIONS: u32 = 8;
/// The pause before the only server is asked again after a failure.
const AGAIN: Duration = Duration::from_millis(500);
/// The pause before all servers are asked again after failures.
const PAUSE: Duration = Duration::from_millis(100);
/// The least time that an answer is cached. With a TTL of 0, each request of a burst would ask
/// again.
const LEAST: Duration = Duration::from_secs(1);
/// How long an answer is cached if `valid=` ends after all time that the clock can show.
const LONGEST: Duration = Duration::from_secs(1 << 31);

/// The records of a name.
#[derive(Default)]
struct ServerAnswer {
    addresses: Vec<IpAddr>,
    ttl: Option<u32>,
    alias: Option<String>,
}

/// Asks until a server answers, and follows CNAMEs to addresses.
pub async fn ask(resolver: &Resolver, handle: &Handle, name: &str) -> Resolution {
    let mut names = vec![name.to_owned()];
    let mut ttl = u32::MAX;
    while let Some(name) = names.last().filter(|_| names.len() <= ALIASES) {
        let answer = servers(resolver, handle, name).await?;
        ttl = ttl.min(answer.ttl.unwrap_or(u32::MAX));
        match answer.alias {
            _ if !answer.addresses.is_empty() => {
                let told_for = Duration::from_secs(ttl.into());
                let valid = resolver.conf.valid.unwrap_or(told_for);
                let until = expires(handle.now(), valid);
                return Ok(Resolved { addresses: answer.addresses, until });
            }
            Some(alias) if !names.contains(&alias) => names.push(alias),
            _ => break,
        }
    }
    Err(Unresolved::NO_SUCH_NAME)
}

/// Asks for the servers of a service, until one of the name servers answers.
pub async fn services(
    resolver: &Resolver,
    handle: &Handle,
    name: &str,
) -> Result<Services, Unresolved> {
    let (message, until) = records(resolver, handle, name.to_owned(), QueryType::Srv).await?;
    listed(&message, until)
}

/// Asks for the name of an address, until one of the name servers answers.
pub async fn pointer(
    resolver: &Resolver,
    handle: &Handle,
    ip: IpAddr,
) -> Result<String, Unresolved> {
    let (message, _) = records(resolver, handle, dns::reverse(ip), QueryType::Ptr).await?;
    let mut names = message.records.into_iter().filter_map(|record| match record.data {
        Data::Ptr(name) => Some(name),
        _ => None,
    });
    names.next().ok_or(Unresolved::NO_SUCH_NAME)
}

/// The answer with records of this type, after CNAMEs, and when it expires.
async fn records(
    resolver: &Resolver,
    handle: &Handle,
    name: String,
    kind: QueryType,
) -> Result<(Message, Instant), Unresolved> {
    let mut names = vec![name];
    let mut ttl = u32::MAX;
    while let Some(name) = names.last().filter(|_| names.len() <= ALIASES) {
        let message = one_message(resolver, handle, name, kind).await?;
        let mut answer = ServerAnswer::default();
        answer.take(&message);
        ttl = ttl.min(answer.ttl.unwrap_or(u32::MAX));
        let found = message.records.iter().any(|record| is_of(kind, record));
        match answer.alias.filter(|alias| !found && !names.contains(alias)) {
            Some(alias) => names.push(alias),
            None => {
                let valid = resolver.conf.valid.unwrap_or(Duration::from_secs(ttl.into()));
                return Ok((message, expires(handle.now(), valid)));
            }
        }
    }
    Err(Unresolved::NO_SUCH_NAME)
}

/// When an answer that holds for `valid` expires.
pub(super) fn expires(now: Instant, valid: Duration) -> Instant {
    now.checked_add(valid.max(LEAST)).unwrap_or(now + LONGEST)
}

/// A query for a name. An invalid name counts as one that does not exist.
fn query(name: &str, kind: QueryType) -> Result<Rc<Query>, Unresolved> {
    Query::new(name, kind).map(Rc::new).map_err(|_| Unresolved::NO_SUCH_NAME)
}

fn is_of(kind: QueryType, record: &ResourceRecord) -> bool {
    match record.data {
        Data::Srv { .. } => kind == QueryType::Srv,
        Data::Ptr(_) => kind == QueryType::Ptr,
        _ => false,
    }
}

async fn one_message(
    resolver: &Resolver,
    handle: &Handle,
    name: &str,
    kind: QueryType,
) -> Result<Message, Unresolved> {
    let query = query(name, kind)?;
    let mut turns = resolver.turns();
    loop {
        let server = turns.server()?;
        let until = handle.now() + PATIENCE;
        match server_says(resolver, handle, server, &query, until).await {
            Ok(message) if message.code != 0 => return Err(answered(message.code)),
            Ok(message) => return Ok(message),
            Err(error) => next_server(handle, server, &error, &turns, until).await,
        }
    }
}

fn listed(message: &Message, until: Instant) -> Result<Services, Unresolved> {
    let mut list = Vec::new();
    for record in &message.records {
        let Data::Srv { priority, weight, port, target } = &record.data else { continue };
        let (priority, weight, port) = (*priority, *weight, *port);
        list.push(Service { priority, weight, port, target: target.clone() });
    }
    if list.is_empty() {
        return Err(Unresolved::NO_SUCH_NAME);
    }
    Ok(Services { list, until })
}

/// Why a name server could not be asked: the call and its error.
struct QueryFailure(&'static str, io::Error);

impl<E: Into<io::Error>> From<E> for QueryFailure {
    fn from(error: E) -> Self {
        QueryFailure("recv()", error.into())
    }
}

/// Logs why a server could not be asked, and pauses before the next one.
async fn next_server(
    handle: &Handle,
    server: SocketAddr,
    QueryFailure(what, error): &QueryFailure,
    turns: &Turns<'_>,
    until: Instant,
) {
    if error.raw_os_error().is_some() {
        let cause = Cause(error);
        tell(format_args!("{what} failed {cause} while resolving, resolver: {server}"));
    }
    match error.kind() {
        io::ErrorKind::TimedOut => {
            crate::timed_out();
            return;
        }
        _ => count(LookupEvent::Failed),
    }
    match turns.servers.len() {
        // A server that does not understand the query will not do so soon.
        0 | 1 if error.kind() == io::ErrorKind::InvalidData => handle.sleep_until(until).await,
        // A server that refuses at once must not be asked in a tight loop.
        0 | 1 => handle.sleep_until(until.min(handle.now() + AGAIN)).await,
        // There is no pause before each server was asked once.
        servers if !turns.asked.is_multiple_of(servers) => {}
        _ => handle.sleep(PAUSE).await,
    }
}

/// The order in which the servers are asked for a query. Each query begins with another server.
pub(super) struct Turns<'r> {
    servers: &'r [Address],
    next: usize,
    /// How many times a server was asked.
    asked: usize,
}

impl Resolver {
    pub(super) fn turns(&self) -> Turns<'_> {
        let first = self.next.get();
        self.next.set(first.wrapping_add(1));
        Turns { servers: &self.conf.servers, next: first, asked: 0 }
    }
}

impl Turns<'_> {
    /// The name server to ask next.
    pub(super) fn server(&mut self) -> Result<SocketAddr, Unresolved> {
        let turn = self.next;
        self.next = turn.wrapping_add(1);
        self.asked = self.asked.wrapping_add(1);
        match self.servers.get(turn % self.servers.len().max(1)) {
            Some(Address::Inet(server)) => Ok(*server),
            _ => Err(Unresolved::TimedOut),
        }
    }
}

impl ServerAnswer {
    /// Adds an answer: its addresses, the name at the end of its CNAMEs, and the smallest TTL.
    fn take(&mut self, message: &Message) {
        let mut alias: Option<&str> = None;
        for record in &message.records {
            match &record.data {
                Data::A(ip) => self.addresses.push((*ip).into()),
                Data::Aaaa(ip) => self.addresses.push((*ip).into()),
                Data::Cname(target) if record.name == alias.unwrap_or(&message.name) => {
                    alias = Some(target);
                }
                // As in nginx, the smallest TTL of all records counts, in any order.
                Data::Cname(_) | Data::Srv { .. } | Data::Ptr(_) => {}
                _ => continue,
            }
            self.ttl = Some(self.ttl.map_or(record.ttl, |ttl| ttl.min(record.ttl)));
        }
        if let Some(alias) = alias {
            self.alias = Some(alias.to_owned());
        }
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

/// Asks the servers in turn until one answers.
async fn servers(
    resolver: &Resolver,
    handle: &Handle,
    name: &str,
) -> Result<ServerAnswer, Unresolved> {
    let conf = &resolver.conf;
    let wanted = |wanted: bool, kind| wanted.then(|| query(name, kind)).transpose();
    let (v4, v6) = (wanted(conf.ipv4, QueryType::A)?, wanted(conf.ipv6, QueryType::Aaaa)?);
    let mut turns = resolver.turns();
    loop {
        let server = turns.server()?;
        let until = handle.now() + PATIENCE;
        let one = async |query: &Option<Rc<Query>>| match query {
            Some(query) => Some(server_says(resolver, handle, server, query, until).await),
            None => None,
        };
        let (v4, v6) = both(one(&v4), one(&v6)).await;
        let answers: Result<Vec<Message>, QueryFailure> = [v4, v6].into_iter().flatten().collect();
        match answers {
            Ok(answers) => {
                if let Some(bad) = answers.iter().find(|m| m.code != 0) {
                    return Err(answered(bad.code));
                }
                // As in nginx, a last answer without any record ends the search, even if another
                // one has a CNAME.
                let nothing = answers.last().is_some_and(|m| m.records.is_empty());
                let mut merged = ServerAnswer::default();
                answers.iter().for_each(|answer| merged.take(answer));
                if nothing && merged.addresses.is_empty() {
                    count(LookupEvent::NotFound);
                    return Err(Unresolved::NO_SUCH_NAME);
                }
                return Ok(merged);
            }
            Err(error) => next_server(handle, server, &error, &turns, until).await,
        }
    }
}

/// One server's answer to one query. A format error counts as a failure, so that another server is
/// asked.
async fn server_says(
    resolver: &Resolver,
    handle: &Handle,
    server: SocketAddr,
    query: &Rc<Query>,
    until: Instant,
) -> Result<Message, QueryFailure> {
    const FORMAT_ERROR: u8 = 1;
    let mut message = udp(resolver, handle, server, query, until).await?;
    if message.truncated {
        message = tcp(resolver, handle, server, query, message.id, until).await?;
    }
    if message.code == FORMAT_ERROR { Err(io::ErrorKind::InvalidData.into()) } else { Ok(message) }
}

async fn udp(
    resolver: &Resolver,
    handle: &Handle,
    server: SocketAddr,
    query: &Rc<Query>,
    until: Instant,
) -> Result<Message, QueryFailure> {
    let socket = resolver.sockets.borrow_mut().entry(server).or_default().get(handle, server);
    let socket = socket.map_err(|error| QueryFailure("connect()", error))?;
    count(LookupEvent::Asked);
    let asked = socket.ask(query).map_err(|error| QueryFailure("send()", error))?;
    match either(asked.answer(), handle.sleep_until(until)).await {
        Either::Left(answer) => Ok(answer?),
        Either::Right(()) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// One of the TCP connections that a resolver may have.
struct Connecting<'r>(&'r Resolver);

impl<'r> Connecting<'r> {
    fn begin(resolver: &'r Resolver) -> io::Result<Connecting<'r>> {
        let connections = resolver.connections.get();
        if connections >= CONNECTIONS {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        resolver.connections.set(connections + 1);
        Ok(Connecting(resolver))
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
    }
}

async fn tcp(
    resolver: &Resolver,
    handle: &Handle,
    server: SocketAddr,
    query: &Query,
    id: u16,
    until: Instant,
) -> Result<Message, QueryFailure> {
    let _connection = Connecting::begin(resolver)?;
    let how = ConnectOptions { deadline: Some(until), ..ConnectOptions::default() };
    let stream = handle.connect(&server.into(), &how).await;
    let stream = stream.map_err(|error| QueryFailure("connect()", error))?;
    let query_bytes = query.numbered(id);
    let len = u16::try_from(query_bytes.len()).unwrap_or(u16::MAX);
    let mut chain = Chain::new();
    chain.push([&len.to_be_bytes(), query_bytes.as_slice()].concat());
    let sent = stream.send(&mut chain, Patience::Until(until)).await;
    sent.map_err(|error| QueryFailure("send()", error))?;
    let mut buf = handle.take_buf(UDP_ANSWER);
    loop {
        if let Some((len, message)) = buf.split_first_chunk::<2>()
            && let Some(message) = message.get(..usize::from(u16::from_be_bytes(*len)))
        {
            return query.answer(message, id).ok_or_else(|| io::ErrorKind::InvalidData.into());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, ttl: u32, data: Data) -> ResourceRecord {
        ResourceRecord { name: name.to_owned(), ttl, data }
    }

    #[test]
    fn the_shortest_time_holds_for_all_of_an_answer() {
        let address = record("c", 90, Data::A([127, 0, 0, 1].into()));
        let alias = |name, target: &str, ttl| record(name, ttl, Data::Cname(target.to_owned()));
        let target = "c".to_owned();
        let service = Data::Srv { priority: 1, weight: 1, port: 1, target };
        for (records, end) in [
            (vec![alias("a", "b", 60), alias("b", "c", 30), address.clone()], "c"),
            (vec![alias("b", "c", 30), alias("a", "b", 60), address], "b"),
            (vec![alias("a", "b", 30), record("b", 60, service)], "b"),
        ] {
            let (name, kind) = ("a".to_owned(), 1);
            let message = Message { id: 0, code: 0, truncated: false, name, kind, records };
            let mut answer = ServerAnswer::default();
            answer.take(&message);
            assert_eq!((answer.ttl, answer.alias.as_deref()), (Some(30), Some(end)));
        }
    }
}
