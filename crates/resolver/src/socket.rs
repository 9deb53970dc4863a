//! The sockets to a name server. All questions to it share one.
//!
//! A forger of answers has to guess a question's number, its source port, its name and its kind,
//! all at once. Numbers are random, and the kernel chooses the port. A socket lives as long as
//! questions wait on it, for a limited number of questions and a limited time, so that a port is
//! not in use for long.

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

/// Larger answers come over TCP.
pub const UDP_ANSWER: usize = 4096;
/// A socket takes so many questions, for so long. Then one with another port takes its place.
const MOST: u32 = 256;
const TIME: Duration = Duration::from_secs(10);

/// A question for a name server.
pub struct Query {
    name: String,
    kind: QueryType,
    /// As it goes out, but for its number.
    bytes: Vec<u8>,
}

impl Query {
    /// Asks for what is known of a name.
    pub fn new(name: &str, kind: QueryType) -> Result<Query, BadName> {
        let mut bytes = Vec::new();
        dns::query(0, name, kind, &mut bytes)?;
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        Ok(Query { name, kind, bytes })
    }

    /// As it goes out with this number.
    pub fn numbered(&self, id: u16) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.splice(..2, id.to_be_bytes());
        bytes
    }

    /// The answer to this question, which went out with this number, if a message is one.
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

    /// Addresses of another kind than was asked for.
    fn stray(&self, message: &Message) -> Option<&'static str> {
        message.records.iter().find_map(|record| match (self.kind, &record.data) {
            (QueryType::A, Data::Aaaa(_)) => Some("AAAA"),
            (QueryType::Aaaa, Data::A(_)) => Some("A"),
            _ => None,
        })
    }
}

/// The sockets to one server: the one that takes questions, and the one before it while its last questions wait.
#[derive(Default)]
pub struct Sockets {
    current: Weak<SharedSocket>,
    last: Weak<SharedSocket>,
}

impl Sockets {
    /// A socket that takes another question.
    pub fn get(&mut self, handle: &Handle, server: SocketAddr) -> io::Result<Rc<SharedSocket>> {
        let current = self.current.upgrade().filter(|socket| !socket.closed.get());
        if let Some(current) = current {
            // Never more than two.
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
    /// How many are open.
    pub fn open(&self) -> usize {
        self.current.strong_count().min(1) + self.last.strong_count().min(1)
    }
}

/// A socket that many questions share, until none of them waits.
pub struct SharedSocket {
    socket: Datagram,
    opened: Instant,
    /// How many questions it took.
    taken: Cell<u32>,
    /// Those that wait, by their numbers.
    waiting: RefCell<HashMap<u16, WaitingQuery>>,
    /// The task that receives.
    receiver: Cell<Option<Waker>>,
    /// It has no task any more.
    closed: Cell<bool>,
}

struct WaitingQuery {
    query: Rc<Query>,
    answer: Option<io::Result<Message>>,
    waker: Option<Waker>,
}

/// A question that went out. It waits no more when this is dropped.
pub struct SentQuery {
    socket: Rc<SharedSocket>,
    /// Its number.
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
        self.taken.get() >= MOST || now.saturating_duration_since(self.opened) >= TIME
    }

    /// Asks.
    pub fn ask(self: &Rc<Self>, query: &Rc<Query>) -> io::Result<SentQuery> {
        let id = self.number()?;
        let waiting = WaitingQuery { query: query.clone(), answer: None, waker: None };
        self.waiting.borrow_mut().insert(id, waiting);
        self.taken.set(self.taken.get().saturating_add(1));
        let asked = SentQuery { socket: self.clone(), id };
        match self.socket.try_send_to(&query.numbered(id), None) {
            Ok(Some(_)) => Ok(asked),
            Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
            // The kernel reports a refusal once: here, though an earlier question was refused.
            Err(error) => {
                self.fail(&error);
                Err(error)
            }
        }
    }

    /// A number that no other question has, and that others cannot guess. Without one, nothing is asked.
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

    /// The socket's task: gives answers to the questions that they are for.
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
                    Ok(Some(_)) => self.came(&buf),
                    Err(error) => self.fail(&error),
                }
            }
            handle.give_buf(buf);
        }
        self.closed.set(true);
    }

    /// A message. What is for no question, or for another one, is left aside: the answer may still come.
    fn came(&self, message: &[u8]) {
        let Some(id) = message.first_chunk().map(|id| u16::from_be_bytes(*id)) else { return };
        let mut waiting = self.waiting.borrow_mut();
        let Some(waiting) = waiting.get_mut(&id) else { return };
        if let Some(message) = waiting.query.answer(message, id) {
            waiting.answer(Ok(message));
        }
    }

    /// The server cannot be reached, which all questions hear.
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
