//! Binds the requests of a client to one server. nginx: ngx_http_upstream_sticky_module.
//!
//! The client shows which server it is bound to in one of three ways: a cookie with the server's
//! id, variables with the server's id (`route`), or a session id that was seen in an answer of the
//! server (`learn`).

use std::time::Duration;

use md5::{Digest, Md5};
use weir_log::Level;
use weir_upstream::Peer;
use weir_zone::{Locked, LockedEntry, ZoneRef};

use crate::request::Request;
use crate::variables::VariableId;
use weir_values::Subject;
use weir_values::Template;

mod conf;

pub use conf::read;

/// The tag of zones for sessions.
const TAG: &str = "sticky";
/// Words of a session: the server's id in up to 32 bytes, and the time of the last use.
const VALUES: usize = 5;

/// How clients are bound to servers.
#[derive(Debug)]
pub struct Sticky {
    /// The first variable with a value has the id of the server or session.
    lookup: Vec<VariableId>,
    cookie: Option<Cookie>,
    sessions: Option<Sessions>,
}

/// `sticky cookie`
#[derive(Debug, Default)]
struct Cookie {
    name: Vec<u8>,
    domain: Option<Template>,
    path: Option<Vec<u8>>,
    expires: Option<Expires>,
    http_only: bool,
    secure: bool,
    same_site: Option<Template>,
}

/// How long a cookie is kept.
#[derive(Debug, Clone, Copy)]
enum Expires {
    Max,
    /// After this many seconds.
    After(u64),
}

/// `sticky learn`
#[derive(Debug)]
struct Sessions {
    zone: ZoneRef,
    timeout: Duration,
    create: Vec<VariableId>,
    /// `header`: sessions are learned at the head of an answer, not at its end.
    at_header: bool,
}

/// The id that a request shows.
#[derive(Debug, Default)]
pub struct Bound {
    /// The id of the server or the session.
    id: Vec<u8>,
}

impl Sticky {
    /// The id of the server that the request is bound to; empty for none.
    pub fn bound(&self, r: &mut Request) -> (Bound, Vec<u8>) {
        let id = first(r, &self.lookup).unwrap_or_default();
        let sid = match &self.sessions {
            None => id.clone(),
            Some(_) if id.is_empty() => Vec::new(),
            Some(sessions) => sessions.find(r, &id).unwrap_or_default(),
        };
        (Bound { id }, sid)
    }

    /// The cookie that binds a client to a server.
    pub fn cookie(&self, r: &mut Request, peer: &Peer) -> Option<Vec<u8>> {
        self.cookie.as_ref().map(|cookie| cookie.write(r, peer))
    }

    /// Learns a session at the head of an answer, if configured.
    pub fn answered(&self, r: &mut Request, bound: &Bound, peer: &Peer) {
        if let Some(sessions) = self.sessions.as_ref().filter(|s| s.at_header) {
            sessions.learn(r, bound, peer);
        }
    }

    /// Learns a session at the end of an answer, if configured.
    pub fn served(&self, r: &mut Request, bound: &Bound, peer: &Peer) {
        if let Some(sessions) = self.sessions.as_ref().filter(|s| !s.at_header) {
            sessions.learn(r, bound, peer);
        }
    }
}

fn first(r: &mut Request, variables: &[VariableId]) -> Option<Vec<u8>> {
    let mut values = variables.iter().filter_map(|id| r.variable_value(*id));
    values.find(|value| !value.is_empty())
}

impl Cookie {
    fn write(&self, r: &mut Request, peer: &Peer) -> Vec<u8> {
        let mut out = [self.name.as_slice(), b"=", peer.sid().as_bytes()].concat();
        match self.expires {
            None => {}
            Some(Expires::Max) => {
                out.extend_from_slice(b"; expires=Thu, 31-Dec-37 23:55:55 GMT; max-age=315360000");
            }
            Some(Expires::After(seconds)) => {
                out.extend_from_slice(b"; expires=");
                let now = r.event_loop.handle.wall().secs;
                let until = now.saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX));
                weir_proto::date::cookie(until, &mut out);
                out.extend_from_slice(format!("; max-age={seconds}").as_bytes());
            }
        }
        attribute(&mut out, b"; domain=", self.domain.as_ref().map(|t| t.eval(r)).as_deref());
        if self.http_only {
            out.extend_from_slice(b"; httponly");
        }
        if self.secure {
            out.extend_from_slice(b"; secure");
        }
        let same_site = self.same_site.as_ref().map(|t| match t.eval(r) {
            known if known.is_empty() || conf::is_same_site(&known) => known,
            // For an unknown value, the strictest one is used.
            _ => b"strict".as_slice().into(),
        });
        attribute(&mut out, b"; samesite=", same_site.as_deref());
        if let Some(path) = &self.path {
            out.extend_from_slice(b"; path=");
            out.extend_from_slice(path);
        }
        out
    }
}

fn attribute(out: &mut Vec<u8>, name: &[u8], value: Option<&[u8]>) {
    if let Some(value) = value.filter(|v| !v.is_empty()) {
        out.extend_from_slice(name);
        out.extend_from_slice(value);
    }
}

impl Sessions {
    /// The server of a session.
    fn find(&self, r: &Request, id: &[u8]) -> Option<Vec<u8>> {
        let now = self.now(r);
        let table = self.zone.get()?.lock();
        let entry = table.find(&Md5::digest(id))?;
        (!self.is_over(&table, entry, now)).then(|| sid(&table, entry))
    }

    /// Stores the server of a session: one that begins with this answer, or one that goes on.
    fn learn(&self, r: &mut Request, bound: &Bound, peer: &Peer) {
        let created = first(r, &self.create);
        let (id, creates) = match &created {
            Some(id) => (id, true),
            None if bound.id.is_empty() => return,
            None => (&bound.id, false),
        };
        let now = self.now(r);
        let key = Md5::digest(id);
        let Some(mut table) = self.zone.get().map(weir_zone::Zone::lock) else { return };
        // A session may expire before the answer of its request arrives. The answer does not renew
        // it.
        let known = table.find(&key).filter(|entry| creates || !self.is_over(&table, *entry, now));
        let entry = match known {
            Some(entry) => Some(entry),
            None if creates => self.add(r, &mut table, &key, now),
            None => return,
        };
        let Some(entry) = entry else {
            drop(table);
            let text = "could not allocate node in sticky session zone";
            return r.log(Level::Alert, format_args!("{text} \"{}\"", self.zone.name()));
        };
        let mut values = [0; VALUES];
        let sid = peer.sid();
        for (value, bytes) in values.iter_mut().zip(sid.as_bytes().chunks(8)).take(VALUES - 1) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            *value = u64::from_le_bytes(word);
        }
        values[VALUES - 1] = now;
        table.set_values(entry, values);
        table.touch(entry);
    }

    /// Adds a session. Expired ones are removed first. If there is still no room, the least
    /// recently used one is evicted.
    fn add(
        &self,
        r: &Request,
        table: &mut Locked<'_>,
        key: &[u8],
        now: u64,
    ) -> Option<LockedEntry> {
        while let Some(oldest) = table.oldest().filter(|oldest| self.is_over(table, *oldest, now)) {
            table.remove(oldest);
        }
        if let Some(entry) = table.add(key) {
            return Some(entry);
        }
        let name = self.zone.name();
        let text = "could not allocate node in sticky session zone";
        let doing = "expiring least recently used session";
        r.log(Level::Warn, format_args!("{text} \"{name}\", {doing}"));
        let oldest = table.oldest()?;
        table.remove(oldest);
        table.add(key)
    }

    fn is_over(&self, table: &Locked<'_>, entry: LockedEntry, now: u64) -> bool {
        let used = table.value(entry, VALUES - 1);
        used.saturating_add(self.timeout.as_millis() as u64) <= now
    }

    fn now(&self, r: &Request) -> u64 {
        self.zone.get().map_or(0, |zone| zone.msec(r.event_loop.handle.now()))
    }
}

/// The server's id in a session. An id has no zero bytes.
fn sid(table: &Locked<'_>, entry: LockedEntry) -> Vec<u8> {
    let words = (0..VALUES - 1).map(|i| table.value(entry, i).to_le_bytes());
    words.flatten().take_while(|byte| *byte != 0).collect()
}
