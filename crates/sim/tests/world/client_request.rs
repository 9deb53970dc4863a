//! A client's request, and the answer that is expected.

use weir_testkit::Dice;

use crate::extras::{SLICED, sliced_len, sliced_name};
use crate::pattern;
use crate::plan::{CoursePlan, FILES, SCRIPTS, WORK_LOCATIONS, file_len};
use crate::records::{Framing, Records};
use crate::rfc9111::RequestFields;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    File(u64),
    Proxied,
    Upload(u64),
    Cached(u64),
    /// Cached in slices, by name.
    Sliced(u64),
    /// Stored in a file by `proxy_store`.
    Stored,
    /// Proxied, in a location with a limit.
    Limited,
    /// Answered by this Lua script.
    Script(&'static str),
    Short,
    /// The handler blocks its loop.
    Work(u64),
}

/// A request, and what is known of it.
#[derive(Clone, Debug)]
pub struct ClientRequest {
    pub id: u64,
    pub kind: RequestKind,
    pub head_only: bool,
    pub range: Option<(u64, u64)>,
    /// Whether the answer may be compressed.
    pub zipped: bool,
    /// Whether the request may fail.
    pub excused: bool,
    /// The seed of the request's cache directives, if the object is cached by RFC 9111.
    pub standard: Option<u64>,
    /// Whether the request changes the object, so that stored answers become invalid.
    pub updates: bool,
    /// Whether the answer may break off: the cache may abandon the store that it follows, when the
    /// server already has another answer.
    pub changes: bool,
}

/// The number of cached objects.
pub const OBJECTS: u64 = 5;

impl ClientRequest {
    pub fn draw(
        dice: &mut Dice,
        plan: &CoursePlan,
        id: u64,
        records: &mut Records,
    ) -> ClientRequest {
        let kind = match dice.below(13) {
            _ if plan.accepts.is_some() && dice.one_in(2) => RequestKind::Short,
            _ if plan.extras.caching => RequestKind::Cached(dice.below(2) as u64),
            _ if plan.again && dice.one_in(2) => {
                RequestKind::Cached(dice.below(OBJECTS as usize) as u64)
            }
            _ if plan.accepts.is_some() => {
                RequestKind::Work(dice.below(WORK_LOCATIONS as usize) as u64)
            }
            10 => RequestKind::Work(dice.below(WORK_LOCATIONS as usize) as u64),
            11 if !plan.changes.is_empty() => RequestKind::Short,
            11 => RequestKind::Script(dice.pick(SCRIPTS)),
            12 if plan.limits.is_some() => RequestKind::Limited,
            0..=2 => RequestKind::File(dice.below(FILES as usize) as u64),
            3..=5 => RequestKind::Proxied,
            6 => RequestKind::Upload(dice.below(plan.longest as usize) as u64),
            7 | 8 => RequestKind::Cached(dice.below(OBJECTS as usize) as u64),
            _ => RequestKind::Short,
        };
        let kind = match kind {
            RequestKind::Proxied if plan.extras.stored && dice.one_in(3) => RequestKind::Stored,
            RequestKind::Cached(_) if plan.extras.sliced && dice.one_in(2) => {
                RequestKind::Sliced(dice.below(SLICED as usize) as u64)
            }
            usual => usual,
        };
        let mut excused = plan.faults.excuse() || kind == RequestKind::Limited;
        let scripted = match kind {
            RequestKind::Proxied
            | RequestKind::Stored
            | RequestKind::Limited
            | RequestKind::Upload(_)
            | RequestKind::Script(_) => true,
            RequestKind::File(_)
            | RequestKind::Cached(_)
            | RequestKind::Sliced(_)
            | RequestKind::Short
            | RequestKind::Work(_) => false,
        };
        if scripted {
            let mut script = plan.script(dice);
            if let RequestKind::Script(how) = kind {
                // Scripts handle only one framing.
                (script.framing, script.floods, script.garbled) = (Framing::Length, false, false);
                script.left = how == "leave";
            }
            excused |= !script.is_sound();
            records.scripts.insert(id, script);
        }
        excused |=
            plan.broken_servers && matches!(kind, RequestKind::Cached(_) | RequestKind::Sliced(_));
        // Over HTTP/2, other requests share the connection that breaks.
        excused |= plan.broken_servers
            && plan.http2_behind
            && matches!(
                kind,
                RequestKind::Proxied | RequestKind::Upload(_) | RequestKind::Script(_)
            );
        let updates =
            plan.extras.caching && Dice::salted(plan.seed ^ id << 20, "updates").one_in(8);
        let head_only = !matches!(kind, RequestKind::Upload(_)) && dice.one_in(8) && !updates;
        let mut range = None;
        if let RequestKind::File(name) = kind
            && file_len(name) > 10
            && dice.one_in(3)
        {
            let from = dice.below(file_len(name) as usize) as u64;
            range = Some((from, (from + dice.below(50_000) as u64).min(file_len(name) - 1)));
        }
        let len = match kind {
            RequestKind::Cached(_) if plan.extras.ranged => plan.longest,
            RequestKind::Sliced(name) => sliced_len(name) + 2,
            _ => 0,
        };
        if len > 0 && dice.one_in(2) {
            let from = dice.below(len as usize) as u64;
            range = Some((from, from + dice.below(len as usize) as u64));
        }
        let zipped = plan.extras.zipped && dice.one_in(2);
        let changes = matches!(kind, RequestKind::Cached(_)) && plan.faults.gives_up_stores();
        let range = range.filter(|_| !updates);
        let standard = matches!(kind, RequestKind::Cached(_)) && plan.extras.standard && !updates;
        let standard = standard.then_some(plan.seed);
        ClientRequest { id, kind, head_only, range, zipped, excused, standard, updates, changes }
    }

    /// The lengths of the longest bodies of the request and of the answer.
    pub fn weight(&self, plan: &CoursePlan, records: &Records) -> (u64, u64) {
        let script = records.scripts.get(&self.id).map_or(0, |script| script.len);
        match self.kind {
            RequestKind::File(name) => (0, file_len(name)),
            RequestKind::Proxied
            | RequestKind::Stored
            | RequestKind::Limited
            | RequestKind::Script(_) => (0, script),
            RequestKind::Upload(len) => (len, script),
            RequestKind::Cached(_) => (0, plan.longest),
            RequestKind::Sliced(name) => (0, sliced_len(name)),
            RequestKind::Short | RequestKind::Work(_) => (0, 0),
        }
    }

    /// Records a fault in the answer.
    pub fn suspect(&self, records: &mut Records, what: String) {
        records.suspect(
            self.id,
            matches!(self.kind, RequestKind::Cached(_) | RequestKind::Sliced(_)),
            what,
        );
    }

    pub fn path(&self) -> String {
        let id = self.id;
        match self.kind {
            RequestKind::File(name) => format!("/s/f{name}"),
            RequestKind::Proxied => format!("/p/{id}"),
            RequestKind::Limited => format!("/k/{id}"),
            RequestKind::Stored => format!("/t/{id}"),
            RequestKind::Sliced(name) => format!("/x/{name}"),
            RequestKind::Upload(_) => format!("/u/{id}"),
            RequestKind::Cached(name) => format!("/c/{name}"),
            RequestKind::Script(how) => format!("/l/{how}/{id}"),
            RequestKind::Short => "/r".to_owned(),
            RequestKind::Work(name) => format!("/w{name}"),
        }
    }

    pub fn method(&self) -> &'static str {
        match self.kind {
            _ if self.head_only => "HEAD",
            RequestKind::Upload(_) => "POST",
            _ if self.updates => "PUT",
            _ => "GET",
        }
    }

    /// Appends the request in HTTP/1.1.
    pub fn write(&self, dice: &mut Dice, out: &mut Vec<u8>, records: &mut Records) {
        let (method, path, id) = (self.method(), self.path(), self.id);
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nX-Ask: {id}\r\n");
        if let Some((from, to)) = self.range {
            head.push_str(&format!("Range: bytes={from}-{to}\r\n"));
        }
        if self.zipped {
            head.push_str("Accept-Encoding: gzip\r\n");
        }
        if let Some(salt) = self.standard {
            let said = RequestFields::draw(salt, self.id);
            head.push_str(&said.fields());
            records.reuses.said.insert(self.id, said);
        }
        if dice.one_in(4) {
            head.push_str(&format!("X-Long: {}\r\n", "y".repeat(dice.below(3_000))));
        }
        if self.updates {
            head.push_str("Content-Length: 0\r\n");
        }
        let RequestKind::Upload(len) = self.kind else {
            out.extend_from_slice(head.as_bytes());
            return out.extend_from_slice(b"\r\n");
        };
        if dice.one_in(2) {
            head.push_str(&format!("Content-Length: {len}\r\n\r\n"));
            out.extend_from_slice(head.as_bytes());
            return pattern::fill(out, id, 0, len);
        }
        head.push_str("Transfer-Encoding: chunked\r\n\r\n");
        out.extend_from_slice(head.as_bytes());
        pattern::chunks(out, dice, (id, len), 70_000, "");
        out.extend_from_slice(b"\r\n");
    }

    /// The expected body of the answer: its owner in the pattern, its offset and its length. `None`
    /// if the body has no pattern.
    pub fn expected_body(&self, answer: &Head<'_>) -> Result<Option<(u64, u64, u64)>, String> {
        let status = answer.status;
        if self.updates {
            return match status {
                200 | 503 => Ok(None),
                _ if self.excused && status >= 400 => Ok(None),
                _ => Err(format!("status {status}")),
            };
        }
        let of_cache = matches!(self.kind, RequestKind::Cached(_) | RequestKind::Sliced(_));
        let wants = if self.range.is_some() { 206 } else { 200 };
        // An answer that is never complete in the cache has no ranges.
        let whole = status == 200 && (of_cache || self.zipped);
        if status != wants && !whole {
            return match status {
                416 if self.range.is_some() => Ok(None),
                503 | 504 if self.standard.is_some() => Ok(None),
                _ if self.excused && status >= 400 => Ok(None),
                _ => Err(format!("status {status}")),
            };
        }
        let number = |name| answer.number(name).ok_or_else(|| format!("an answer without {name}"));
        Ok(Some(match self.kind {
            RequestKind::File(name) => {
                let range = self.range.filter(|_| status == 206);
                let (from, to) = range.unwrap_or((0, file_len(name).wrapping_sub(1)));
                (pattern::file(name), from, to.wrapping_add(1) - from)
            }
            RequestKind::Proxied
            | RequestKind::Stored
            | RequestKind::Limited
            | RequestKind::Upload(_)
            | RequestKind::Script(_) => {
                let whose = number("x-id")?;
                if whose != self.id {
                    return Err(format!("the answer to {whose}"));
                }
                (self.id, 0, number("x-len")?)
            }
            RequestKind::Cached(name) => {
                let whose = number("x-name")?;
                if whose != name {
                    return Err(format!("object {whose} instead of {name}"));
                }
                let (owner, len) = (pattern::object(name, number("x-gen")?), number("x-len")?);
                self.part(answer, owner, len)?
            }
            RequestKind::Sliced(name) => {
                let (whose, name) = (number("x-name")?, sliced_name(name));
                if whose != name {
                    return Err(format!("slices of {whose} instead of {name}"));
                }
                let owner = pattern::object(name, number("x-gen")?);
                self.part(answer, owner, sliced_len(name - sliced_name(0)))?
            }
            RequestKind::Short | RequestKind::Work(_) => return Ok(None),
        }))
    }

    /// The expected part of a body with this length: all of it, or the requested range.
    fn part(&self, answer: &Head<'_>, owner: u64, len: u64) -> Result<(u64, u64, u64), String> {
        let (Some((from, to)), 206) = (self.range, answer.status) else {
            return Ok((owner, 0, len));
        };
        // If a server broke off a body without a length, caches take the received part for the
        // whole.
        let told = (answer.field)("content-range");
        let told = told.and_then(|text| text.rsplit_once('/')?.1.parse::<u64>().ok());
        let len = told.filter(|told| self.excused && *told < len).unwrap_or(len);
        let to = to.min(len.saturating_sub(1));
        let (is, be) = ((answer.field)("content-range"), format!("bytes {from}-{to}/{len}"));
        match is.as_ref() == Some(&be) {
            true => Ok((owner, from, to + 1 - from)),
            false => Err(format!("{is:?} instead of {be}")),
        }
    }
}

/// The head of an answer, for all protocol versions.
pub struct Head<'a> {
    pub status: u16,
    pub field: &'a dyn Fn(&str) -> Option<String>,
}

impl Head<'_> {
    fn number(&self, name: &str) -> Option<u64> {
        (self.field)(name)?.parse().ok()
    }
}
