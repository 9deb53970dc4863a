//! The facts of a request that is passed to servers behind, for variables and log lines.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_proto::Renew as _;
use weir_proto::http1::HeaderLine;
use weir_tls::IdentitySet;
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
    /// Its name in log lines and `$upstream_addr`.
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
    /// The server that was asked. None separates the attempts of two locations.
    pub who: Option<Who>,
    /// When it began.
    pub started: Instant,
    /// The status of the answer or of the failure.
    pub status: u16,
    /// The time until the connection was established.
    pub connect: Option<Duration>,
    /// The time until the head of the answer was read.
    pub header: Option<Duration>,
    /// The time of the whole attempt.
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
    /// An attempt that began at this time.
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

    /// Ends the attempt, unless it has ended.
    pub fn ends(&mut self, now: Instant) {
        self.response.get_or_insert(now.saturating_duration_since(self.started));
    }
}

/// Timeouts that a script has set. The others are those of the configuration.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChosenTimes {
    /// How long a connection may take.
    pub connect: Option<Duration>,
    /// How long the server may take no bytes.
    pub send: Option<Duration>,
    /// How long the server may send no bytes.
    pub read: Option<Duration>,
}

/// The facts of a request that was passed on.
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
    /// The server of the present attempt, for log lines.
    pub current: Option<Current>,
    /// Timeouts that a script has set.
    pub times: ChosenTimes,
    /// The deadline for the head of an answer (`proxy_answer_timeout`).
    pub answer_until: Option<Instant>,
    /// The facts about its cache.
    pub cache: Option<Rc<Shown>>,
    /// HEAD is sent as GET, since the answer is to be stored.
    pub ask_with_get: bool,
    /// The answer comes from a cache.
    pub cached: bool,
    /// The client of a cacheable request has left.
    pub client_left: Cell<bool>,
    /// `$proxy_host` and kin.
    pub vars: Option<std::borrow::Cow<'static, Vars>>,
    /// The framing of the body in the last request to a server.
    pub length: Length,
    /// The handshake in which a script takes part at present.
    pub handshake: Option<Box<ServerHandshake>>,
}

/// A handshake with a server, for a script that takes part in it.
#[derive(Debug, Default)]
pub struct ServerHandshake {
    /// The server's certificates in DER, its own first; none before it has shown them.
    pub chain: Vec<Vec<u8>>,
    /// The version that both ends speak, if it is known.
    pub version: Option<&'static str>,
    /// The certificate that the server is to be shown; `None`: the configuration's.
    pub own: Option<IdentitySet>,
    /// What is wrong with the server's certificates, by OpenSSL's numbers; 0: nothing.
    pub result: i32,
    /// The client's leaving ends the script.
    pub is_watched: bool,
}

/// The framing of the body of a request to a server.
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
    /// The number of bytes, if it is known.
    pub fn known(self) -> Option<u64> {
        match self {
            Length::Known(n) => Some(n),
            Length::None | Length::Chunked => None,
        }
    }
}

/// The parts of the URL that a request is passed to.
#[derive(Debug, Clone, Default)]
pub struct Vars {
    /// `http://`, `grpcs://` ...
    pub scheme: &'static str,
    /// `Host` for the server: `$proxy_host`.
    pub host: Vec<u8>,
    /// `$proxy_port`
    pub port: Vec<u8>,
    /// `unix:` and the path of a Unix socket. The default cache key has it instead of `host`, which
    /// is the same for all sockets.
    pub socket: Option<Vec<u8>>,
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
    /// Clears the facts for the connection's next request. Memory of attempts stays. `give_back` gets that of the head.
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
            client_left,
            vars,
            length,
            handshake,
        } = self;
        attempts.renew();
        if head.capacity() > 0 {
            give_back(std::mem::take(head));
        }
        (*headers, *trailers) = (Vec::new(), Headers::default());
        (*current, *cache, *vars, *handshake) = (None, None, None, None);
        (*times, *answer_until) = (ChosenTimes::default(), None);
        (*ask_with_get, *cached) = (false, false);
        client_left.set(false);
        *length = Length::None;
    }

    /// Clears what describes an earlier server's answer, since the request is passed on anew.
    pub fn begin(&mut self) {
        (self.cached, self.ask_with_get) = (false, false);
        (self.cache, self.current) = (None, None);
        self.head.clear();
        self.headers.clear();
        self.trailers = Headers::default();
    }

    /// Clears what belongs to a location with `proxy_pass`, since an internal redirect leaves it. The server's answer stays.
    pub fn redirected(&mut self) {
        (self.vars, self.length) = (None, Length::None);
    }

    /// Whether the deadline for the head of an answer has passed.
    pub fn is_late(&self, now: Instant) -> bool {
        self.answer_until.is_some_and(|until| until <= now)
    }

    /// The present attempt.
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
        let uri = weir_log::Bytes(&current.uri);
        let _ = write!(line, ", upstream: \"{}{name}{separator}{uri}\"", current.scheme);
    }
}
