//! The sockets to a name server, which its queries share.
//!
//! To forge an answer, an attacker has to guess a query's id, its source port, its name and its
//! type, all at once. Ids are random, and the kernel chooses the port. A socket lives only while
//! queries wait on it, and takes a limited number of them for a limited time. So no port is in use
//! for long.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use weir_engine::{ConnectOptions, Datagram, Handle};
use weir_proto::dns::{self, BadName, Data, Message, QueryType};

use super::tell;

/// The largest answer over UDP. Larger answers are truncated and asked for over TCP.
pub const UDP_ANSWER: usize = 4096;
/// How many queries a socket takes, and for how long. After that, a socket with another port
/// replaces it.
const MOST_QUERIES: u32 = 256;
const LIFETIME: Duration = Duration::from_secs(10);

/// A query for a name server.
pub struct Query {
    name: String,
    kind: QueryType,
    /// The message, with id 0.
    bytes: Vec<u8>,
}

impl Query {
    /// A query for records of a name.
    pub fn new(name: &str, kind: QueryType) -> Result<Query, BadName> {
        let mut bytes = Vec::new();
        dns::query(0, name, kind, &mut bytes)?;
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        Ok(Query { name, kind, bytes })
    }

    /// The message with this id.
    pub fn numbered(&self, id: u16) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.splice(..2, id.to_be_bytes());
        bytes
    }

    /// Parses a message, if it is the answer to this query with this id.
    pub fn answer(&self, message: &[u8], id: u16) -> Option<Message> {
        let Ok(message) = dns::parse(message) else {
            tell(format_args!("malformed DNS response for {}", self.name));
            return None;
        };
        let repeats =
            message.id == id && message.kind == self.kind as u16 && message.name == self.name;
        let whole = message.code == 0 && !message.truncated;
        if let (true, Some(kind)) = (repeats && whole, self.stray(&message)) {
            tell(format_args!("unexpected {kind} record in DNS response for {}", self.name));
            return None;
        }
        repeats.then_some(message)
    }

    /// The type of addresses in the answer that were not asked for.
    fn stray(&self, message: &Message) -> Option<&'static str> {
        message.records.iter().find_map(|record| match (self.kind, &record.data) {
            (QueryType::A, Data::Aaaa(_)) => Some("AAAA"),
            (QueryType::Aaaa, Data::A(_)) => Some("A"),
            _ => None,
        })
    }
}

/// The sockets to one server: the current one, which takes queries, and the last one while queries
/// wait on it.
#[derive(Default)]
pub struct Sockets {
    current: Weak<SharedSocket>,
    last: Weak<SharedSocket>,
}

impl Sockets {
    /// A socket for another query.
    pub fn get(&mut self, handle: &Handle, server: SocketAddr) -> io::Result<Rc<SharedSocket>> {
        let current = self.current.upgrade().filter(|socket| !socket.closed.get());
        if let Some(current) = current {
            // There are never more than two sockets.
            if !current.is_worn(handle.now()) || self.last.strong_count() > 0 {
                return Ok(current);
            }
            self.last = Rc::downgrade(&current);
        }
        let socket = SharedSocket::open(handle, server)?;
        self.current = Rc::downgrade(&socket);
        Ok(socket)
    }
}

#[cfg(test)]
impl Sockets {
    /// The number of open sockets.
    pub fn open(&self) -> usize {
        self.current.strong_count().min(1) + self.last.strong_count().min(1)
    }
}

/// A socket that queries share, until none of them waits.
pub struct SharedSocket {
    socket: Datagram,
    opened: Instant,
    /// How many queries it took.
    taken: Cell<u32>,
    /// Waiting queries, by id.
    waiting: RefCell<HashMap<u16, WaitingQuery>>,
    /// The waker of the task that receives.
    receiver: Cell<Option<Waker>>,
    /// The task has ended.
    closed: Cell<bool>,
}

struct WaitingQuery {
    query: Rc<Query>,
    answer: Option<io::Result<Message>>,
    waker: Option<Waker>,
}

/// A query that was sent. Dropping it ends the wait.
pub struct SentQuery {
    socket: Rc<SharedSocket>,
    /// Its id.
    pub id: u16,
}

impl SharedSocket {
    fn open(handle: &Handle, server: SocketAddr) -> io::Result<Rc<SharedSocket>> {
        let socket = handle.connect_datagrams(&server.into(), &ConnectOptions::default())?;
        let shared = Rc::new(SharedSocket {
            socket,
            opened: handle.now(),
            taken: Cell::new(0),
            waiting: RefCell::default(),
            receiver: Cell::default(),
            closed: Cell::new(false),
        });
        handle.spawn(shared.clone().receive(handle.clone()));
        Ok(shared)
    }

    fn is_worn(&self, now: Instant) -> bool {
        self.taken.get() >= MOST_QUERIES || now.saturating_duration_since(self.opened) >= LIFETIME
    }

    /// Sends a query.
    pub fn ask(self: &Rc<Self>, query: &Rc<Query>) -> io::Result<SentQuery> {
        let id = self.number()?;
        let waiting = WaitingQuery { query: query.clone(), answer: None, waker: None };
        self.waiting.borrow_mut().insert(id, waiting);
        self.taken.set(self.taken.get().saturating_add(1));
        let asked = SentQuery { socket: self.clone(), id };
        match self.socket.try_send_to(&query.numbered(id), None) {
            Ok(Some(_)) => Ok(asked),
            Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
            // The kernel reports an ICMP error once, at any call. It may belong to an earlier
            // query, so all fail.
            Err(error) => {
                self.fail(&error);
                Err(error)
            }
        }
    }

    /// A random id that no waiting query has. Fails if too many queries wait.
    fn number(&self) -> io::Result<u16> {
        let waiting = self.waiting.borrow();
        if waiting.len() > usize::from(u16::MAX) / 2 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        loop {
            let mut bytes = [0; 2];
            rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
            let id = u16::from_ne_bytes(bytes);
            if !waiting.contains_key(&id) {
                return Ok(id);
            }
        }
    }

    /// The socket's task: receives answers and passes them to their queries.
    async fn receive(self: Rc<Self>, handle: Handle) {
        loop {
            let readable = poll_fn(|cx| {
                if self.waiting.borrow().is_empty() {
                    return Poll::Ready(None);
                }
                self.receiver.set(Some(cx.waker().clone()));
                self.socket.poll_readable(cx).map(Some)
            });
            if readable.await.is_none() {
                break;
            }
            let mut buf = handle.take_buf(UDP_ANSWER);
            while !weir_engine::is_spent() {
                buf.clear();
                match self.socket.try_recv(&mut buf) {
                    Ok(None) => break,
                    Ok(Some(_)) => self.dispatch(&buf),
                    Err(error) => self.fail(&error),
                }
            }
            handle.give_buf(buf);
        }
        self.closed.set(true);
    }

    /// Handles a message. One that answers no waiting query is ignored, since the real answer may
    /// still arrive.
    fn dispatch(&self, message: &[u8]) {
        let Some(id) = message.first_chunk().map(|id| u16::from_be_bytes(*id)) else { return };
        let mut waiting = self.waiting.borrow_mut();
        let Some(waiting) = waiting.get_mut(&id) else { return };
        if let Some(message) = waiting.query.answer(message, id) {
            waiting.answer(Ok(message));
        }
    }

    /// Fails all waiting queries, since the server cannot be reached.
    fn fail(&self, error: &io::Error) {
        for waiting in self.waiting.borrow_mut().values_mut() {
            let same = error.raw_os_error().map(io::Error::from_raw_os_error);
            waiting.answer(Err(same.unwrap_or_else(|| error.kind().into())));
        }
    }
}

impl WaitingQuery {
    fn answer(&mut self, answer: io::Result<Message>) {
        self.answer.get_or_insert(answer);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl SentQuery {
    /// Waits for the answer.
    pub async fn answer(&self) -> io::Result<Message> {
        poll_fn(|cx| {
            let mut all = self.socket.waiting.borrow_mut();
            let Some(waiting) = all.get_mut(&self.id) else { return Poll::Pending };
            if let Some(answer) = waiting.answer.take() {
                return Poll::Ready(answer);
            }
            waiting.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for SentQuery {
    fn drop(&mut self) {
        let mut waiting = self.socket.waiting.borrow_mut();
        waiting.remove(&self.id);
        if waiting.is_empty()
            && let Some(receiver) = self.socket.receiver.take()
        {
            receiver.wake();
        }
    }
}
