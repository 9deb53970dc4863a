//! What is remembered of a request that is passed on to other servers, for variables and log lines.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_proto::Renew as _;
use weir_proto::http1::HeaderLine;
use weir_upstream::{Group, Peer};

use super::cached::Shown;
use crate::answer::headers::Headers;

/// The server that was asked.
#[derive(Debug, Clone)]
pub enum Who {
    /// A server.
    Peer(Arc<Peer>),
    /// No server of the group was available.
    Group(Arc<Group>),
}

impl Who {
    /// As log lines and `$upstream_addr` show it.
    pub fn name(&self) -> &str {
        match self {
            Who::Peer(peer) => &peer.name,
            Who::Group(group) => &group.name,
        }
    }
}

/// One attempt to get an answer.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The server that was asked; `None` stands between the attempts of two locations that a
    /// request went through.
    pub who: Option<Who>,
    /// When it began.
    pub started: Instant,
    /// The answer's status, or what the failure amounts to.
    pub status: u16,
    /// How long until there was a connection.
    pub connect: Option<Duration>,
    /// How long until the head of the answer.
    pub header: Option<Duration>,
    /// How long in all.
    pub response: Option<Duration>,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes of the body, its framing included.
    pub length: u64,
    /// The error number of the system call that failed, if one did.
    pub errno: Cell<Option<i32>>,
}

impl Attempt {
    /// An attempt that begins now.
    pub fn new(who: Option<Who>, started: Instant) -> Attempt {
        Attempt {
            who,
            started,
            status: 0,
            connect: None,
            header: None,
            response: None,
            sent: 0,
            received: 0,
            length: 0,
            errno: Cell::new(None),
        }
    }

    /// It is over, unless it was before.
    pub fn ends(&mut self, now: Instant) {
        self.response.get_or_insert(now.saturating_duration_since(self.started));
    }
}

/// Times that a script has chosen for the request; the others are those of the configuration.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChosenTimes {
    /// How long a connection may take.
    pub connect: Option<Duration>,
    /// How long the server may take no bytes.
    pub send: Option<Duration>,
    /// How long the server may send no bytes.
    pub read: Option<Duration>,
}

/// What a request remembers of being passed on.
#[derive(Debug, Default)]
pub struct UpstreamContext {
    /// The attempts, in order.
    pub attempts: Vec<Attempt>,
    /// The bytes of the last head.
    pub head: Vec<u8>,
    /// Its header lines, in these bytes.
    pub headers: Vec<HeaderLine>,
    /// Trailers of the answer.
    pub trailers: Headers,
    /// What log lines say of the upstream.
    pub current: Option<Current>,
    /// How long servers may take.
    pub times: ChosenTimes,
    /// When the head of an answer must have come, if that is bounded.
    pub answer_until: Option<Instant>,
    /// What is to be seen of what the request has to do with a cache.
    pub cache: Option<Rc<Shown>>,
    /// HEAD goes out as GET, since the answer is to be kept.
    pub ask_with_get: bool,
    /// The answer comes from a cache.
    pub cached: bool,
    /// `$proxy_host` and kin.
    pub vars: Option<std::borrow::Cow<'static, Vars>>,
    /// What the last request to a server says of its body.
    pub length: Length,
}

/// How the length of the body of a request to a server is told.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// There is no body.
    #[default]
    None,
    /// So many bytes.
    Known(u64),
    /// In chunks.
    Chunked,
}

impl Length {
    /// How many bytes, as far as that is known.
    pub fn known(self) -> Option<u64> {
        match self {
            Length::Known(n) => Some(n),
            Length::None | Length::Chunked => None,
        }
    }
}

/// What a URL says of the request.
#[derive(Debug, Clone, Default)]
pub struct Vars {
    /// `http://`, `grpcs://` ...
    pub scheme: &'static str,
    /// `Host` for the server: `$proxy_host`.
    pub host: Vec<u8>,
    /// `$proxy_port`
    pub port: Vec<u8>,
    /// The URI, if there is one.
    pub uri: Vec<u8>,
}

/// The server that a request is being passed to.
#[derive(Debug, Clone)]
pub struct Current {
    /// `http://` and kin.
    pub scheme: &'static str,
    /// The path of the request that goes out.
    pub uri: Bytes,
}

impl UpstreamContext {
    /// Makes ready for the connection's next request. The memory of attempts stays, `give_back` gets the head's.
    pub fn renew(&mut self, give_back: impl FnOnce(Vec<u8>)) {
        let UpstreamContext {
            attempts,
            head,
            headers,
            trailers,
            current,
            times,
            answer_until,
            cache,
            ask_with_get,
            cached,
            vars,
            length,
        } = self;
        attempts.renew();
        if head.capacity() > 0 {
            give_back(std::mem::take(head));
        }
        (*headers, *trailers) = (Vec::new(), Headers::default());
        (*current, *cache, *vars) = (None, None, None);
        (*times, *answer_until) = (ChosenTimes::default(), None);
        (*ask_with_get, *cached) = (false, false);
        *length = Length::None;
    }

    /// Whether the head of an answer is too late at this time.
    pub fn is_late(&self, now: Instant) -> bool {
        self.answer_until.is_some_and(|until| until <= now)
    }

    /// The attempt under way.
    pub fn attempt(&mut self) -> Option<&mut Attempt> {
        self.attempts.last_mut()
    }

    /// `, upstream: "..."` for a log line, if the request is being passed on.
    pub fn describe(&self, line: &mut String) {
        use std::fmt::Write;
        let (Some(current), Some(attempt)) = (&self.current, self.attempts.last()) else { return };
        let Some(who) = &attempt.who else { return };
        let name = who.name();
        let separator = if name.starts_with("unix:") { ":" } else { "" };
        let uri = String::from_utf8_lossy(&current.uri);
        let _ = write!(line, ", upstream: \"{}{name}{separator}{uri}\"", current.scheme);
    }
}
