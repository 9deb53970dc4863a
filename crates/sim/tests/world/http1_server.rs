//! Upstream servers over HTTP/1: each answers a request as its script says.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_testkit::Dice;

use crate::answer::{Message, Side};
use crate::extras;
use crate::pattern;
use crate::plan::CoursePlan;
use crate::records::{Framing, Records, Script, object_salt};
use crate::reuse::SentObject;
use crate::rfc9111::{self, AnswerFields};
use crate::wire::{Finish, Wire};

/// A connection to such a server.
pub struct Http1Server {
    pub wire: Wire,
    request: Message,
    /// The delay until the answer, once a request is complete.
    pub answer_delay: Option<u64>,
    /// Whether the answer never ends.
    pub floods: bool,
    /// Whether stray bytes follow an answer.
    stray: StrayBytes,
    /// The index of the server.
    pub accept_queue: usize,
    pub done: bool,
}

/// Whether stray bytes follow an answer.
enum StrayBytes {
    No,
    /// They are in flight. A request that is sent before they arrive may take them for its answer.
    Soon,
    /// They had arrived at this time, so that the server could see them.
    Since(u64),
}

/// An answer: its script, status, fields and body.
pub struct AnswerPlan {
    pub script: Script,
    pub owner: u64,
    /// The offset at which the body begins.
    pub from: u64,
    pub status: u16,
    pub fields: String,
    /// The object of the answer, if it has one.
    pub sent: Option<SentObject>,
    /// The objects that the request has changed.
    pub updated: Vec<u64>,
}

/// A request, as the server has parsed it.
pub struct ServerRequest<'a> {
    pub path: &'a str,
    pub id: u64,
    /// The number of body bytes so far.
    pub got: u64,
    pub range: Option<&'a str>,
    /// `If-None-Match`
    pub condition: Option<&'a str>,
    /// Whether the method is PUT.
    pub updates: bool,
}

/// Decides the answer to a request.
pub fn answer_plan(
    question: &ServerRequest<'_>,
    plan: &CoursePlan,
    records: &mut Records,
) -> AnswerPlan {
    let &ServerRequest { path, id, got, range, condition, updates } = question;
    let (from, status) = (0, 200);
    if let Some(name) = path.strip_prefix("/x/") {
        return slice(name.parse().unwrap_or(0), range, plan, records);
    }
    if path.starts_with("/a/") {
        let script = Script::plain(plan.seed.wrapping_add(id) % 7 * 1_000_000);
        return AnswerPlan {
            script,
            owner: id,
            from,
            status,
            fields: String::new(),
            sent: None,
            updated: Vec::new(),
        };
    }
    if let Some(name) = path.strip_prefix("/c/") {
        if updates {
            return update(name.parse().unwrap_or(0), id, plan);
        }
        return object(name.parse().unwrap_or(0), id, condition, plan, records);
    }
    let sane = path.rsplit('/').next().and_then(|n| n.parse().ok()) == Some(id);
    if !sane {
        records.report(format!("the path {path} came with the head of {id}"));
    }
    let script = records.scripts.get(&id).cloned().unwrap_or_else(|| {
        records.report(format!("a server received request {id}, which no client sent"));
        Script::draw(&mut Dice::new(id), 10, false)
    });
    let fields = format!("X-Id: {id}\r\nX-Got: {got}\r\n");
    AnswerPlan { script, owner: id, from, status, fields, sent: None, updated: Vec::new() }
}

/// A request that changes an object, and another one that the answer names. Now and then the server
/// refuses.
fn update(name: u64, id: u64, plan: &CoursePlan) -> AnswerPlan {
    let mut dice = Dice::salted(plan.seed ^ id << 20, "update");
    let (script, mut updated) =
        (Script::plain(dice.pick(&[0, 5_000_000, 400_000_000])), vec![name]);
    let mut fields = String::new();
    if dice.one_in(2) {
        let field = dice.pick(&["Location", "Content-Location"]);
        fields = format!("{field}: /c/{}\r\n", 1 - name % 2);
        updated.push(1 - name % 2);
    }
    let status = if dice.one_in(6) { 503 } else { 200 };
    updated.retain(|_| status == 200);
    AnswerPlan { script, owner: id, from: 0, status, fields, sent: None, updated }
}

/// A cached object. With RFC 9111, the server sometimes answers that an older answer is still valid
/// (304), or with an error.
fn object(
    name: u64,
    id: u64,
    condition: Option<&str>,
    plan: &CoursePlan,
    records: &mut Records,
) -> AnswerPlan {
    let newest = records.generation(name);
    let salt = object_salt(plan.seed, name, newest);
    let script = plan.script(&mut Dice::new(salt));
    let number = records.told_number();
    let mut dice = Dice::salted(plan.seed ^ id << 20, "server");
    let (stands, fails) = (dice.one_in(2), dice.one_in(8));
    let standard = plan.extras.standard;
    // The requests of the final checks always receive the object.
    let fails = fails && records.reuses.said.contains_key(&id);
    let stands = condition.and_then(rfc9111::tagged).filter(|_| standard && stands);
    let (status, generation, told) = match stands {
        Some(generation) => {
            (304, generation, AnswerFields::draw_unchanged(plan.seed ^ number << 20))
        }
        None if standard && fails => (503, newest, AnswerFields::default()),
        None if standard => (200, newest, AnswerFields::draw(salt)),
        None => (200, newest, AnswerFields::default()),
    };
    let sent = Some(SentObject { name, generation, told, status });
    let owner = pattern::object(name, generation);
    let told = format!("{}X-Told: {number}\r\n", told.fields(generation));
    let bare = Script { framing: Framing::Length, floods: false, garbled: false, ..script.clone() };
    let (script, owner, fields) = match status {
        304 => (Script { len: 0, ..bare }, owner, told),
        503 => (Script { len: 10, ..bare }, id, String::new()),
        _ => (script, owner, format!("X-Name: {name}\r\nX-Gen: {generation}\r\n{told}")),
    };
    AnswerPlan { script, owner, from: 0, status, fields, sent, updated: Vec::new() }
}

/// A slice of an object. An unreliable server sometimes sends a slice of another generation.
fn slice(name: u64, range: Option<&str>, plan: &CoursePlan, records: &mut Records) -> AnswerPlan {
    let (len, name) = (extras::sliced_len(name), extras::sliced_name(name));
    records.slices += 1;
    if plan.broken_servers && records.slices.is_multiple_of(13) {
        records.next_generation(name);
    }
    let generation = if plan.broken_servers { records.generation(name) } else { 0 };
    let owner = pattern::object(name, generation);
    let mut script = Script::plain(records.slices % 5 * 3_000_000);
    let own = format!("X-Name: {name}\r\nX-Gen: {generation}\r\nETag: \"{generation}\"\r\n");
    script.len = len;
    let Some((from, to)) = range.and_then(|range| extras::range(range, len)) else {
        return AnswerPlan {
            script,
            owner,
            from: 0,
            status: 200,
            fields: own,
            sent: None,
            updated: Vec::new(),
        };
    };
    if from > to || from >= len {
        script.len = 0;
        let fields = format!("Content-Range: bytes */{len}\r\n");
        return AnswerPlan {
            script,
            owner,
            from: 0,
            status: 416,
            fields,
            sent: None,
            updated: Vec::new(),
        };
    }
    script.len = to + 1 - from;
    if plan.broken_servers && records.slices.is_multiple_of(17) {
        script.breaks = Some(script.len / 2 + 200);
    }
    let fields = format!("{own}Content-Range: bytes {from}-{to}/{len}\r\n");
    AnswerPlan { script, owner, from, status: 206, fields, sent: None, updated: Vec::new() }
}

impl Http1Server {
    pub fn new(wire: Wire, accept_queue: usize) -> Http1Server {
        let (request, answer_delay) = (Message::default(), None);
        let (floods, stray, done) = (false, StrayBytes::No, false);
        Http1Server { wire, request, answer_delay, floods, stray, accept_queue, done }
    }

    /// Parses received bytes. Returns the id of the last request.
    pub fn receive(&mut self, mut bytes: &[u8], plan: &CoursePlan, records: &mut Records) -> u64 {
        let mut id = 0;
        while !bytes.is_empty() && !self.done {
            if self.request.done && matches!(self.stray, StrayBytes::No) {
                records.report(
                    "a server received a request before it had answered the previous one"
                        .to_owned(),
                );
                return id;
            }
            if self.request.done {
                // The stray bytes passed for the answer. HTTP/1 cannot tell them apart, nor what
                // follows.
                self.request = Message::default();
                self.stray = StrayBytes::Soon;
            }
            let at = self.request.seen;
            let (used, body) = self.request.feed(bytes, Side::Request);
            bytes = &bytes[used..];
            if let Some(why) = &self.request.broken {
                records.report(format!("a server was sent {why}"));
                self.done = true;
                return id;
            }
            id = self.request.number("x-ask").unwrap_or(0);
            if !records.broken_requests.contains(&id)
                && let Some(wrong) = pattern::first_wrong(id, at, body)
            {
                records.report(format!("the server of request {id} got wrong bytes at {wrong}"));
            }
            if self.request.done {
                self.judge_use(id, records);
                let first = self.request.lines.first();
                let beside = matches!(self.request.path().get(..3), Some("/m/" | "/a/"));
                let post = first.is_some_and(|l| l.starts_with("POST ")) && !beside;
                if post && !records.broken_requests.contains(&id) {
                    records.post_arrived(id);
                }
                self.answer_delay = Some(self.answer_plan(plan, records).script.delay);
            }
        }
        id
    }

    /// Whether it has an unanswered request with a limit whose client has not gone.
    pub fn is_at_limited(&self) -> bool {
        let gone = PollFlags::HUP | PollFlags::RDHUP;
        let mut fds = [PollFd::from_borrowed_fd(self.wire.fd.as_fd(), gone)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.request.done
            && self.request.path().starts_with("/k/")
            && poll(&mut fds, Some(&now)).is_ok_and(|found| found == 0)
    }

    /// Notes that more of the answer has arrived at weir.
    pub fn arrived(&mut self, now: u64) {
        if std::mem::take(&mut self.wire.stray_arrived) {
            self.stray = StrayBytes::Since(now);
        }
    }

    /// Checks that weir may use this connection again.
    fn judge_use(&self, id: u64, records: &mut Records) {
        let began = records.begun.get(&id).copied().unwrap_or(0);
        match self.stray {
            StrayBytes::No => {}
            StrayBytes::Since(at) if at < began => {
                records.report(format!(
                    "request {id} was sent on a connection with stray bytes for {} ns",
                    began - at
                ));
            }
            _ => {
                records.maybe_stray.insert(id);
            }
        }
    }

    fn answer_plan(&self, plan: &CoursePlan, records: &mut Records) -> AnswerPlan {
        let id = self.request.number("x-ask").unwrap_or(0);
        let (got, range) = (self.request.seen, self.request.field("range"));
        let condition = self.request.field("if-none-match");
        let updates = self.request.lines.first().is_some_and(|line| line.starts_with("PUT "));
        answer_plan(
            &ServerRequest { path: self.request.path(), id, got, range, condition, updates },
            plan,
            records,
        )
    }

    /// Answers a request.
    pub fn answer(&mut self, plan: &CoursePlan, records: &mut Records) {
        self.answer_delay = None;
        let AnswerPlan { script, owner, from, status, fields, sent, updated } =
            self.answer_plan(plan, records);
        records.updates(&updated, self.request.number("x-ask").unwrap_or(0));
        if let Some(sent) = sent {
            records.sends(sent, self.request.number("x-ask").unwrap_or(0));
        }
        let unchanged = status == 304;
        let to_head =
            unchanged || self.request.lines.first().is_some_and(|line| line.starts_with("HEAD "));
        self.request = Message::default();
        let out = &mut self.wire.out;
        let begin = out.len();
        for _ in 0..script.interim {
            out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n");
        }
        let len = script.len;
        out.extend_from_slice(format!("HTTP/1.1 {status} OK\r\n{fields}").as_bytes());
        if !unchanged {
            out.extend_from_slice(format!("X-Len: {len}\r\n").as_bytes());
        }
        if !script.keeps {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        match script.framing {
            Framing::Length if unchanged => {}
            Framing::Length => {
                out.extend_from_slice(format!("Content-Length: {len}\r\n").as_bytes())
            }
            Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            Framing::Close => {}
        }
        out.extend_from_slice(b"\r\n");
        match script.framing {
            _ if to_head => {}
            _ if script.floods => {
                out.extend_from_slice(b"1;");
                self.floods = true;
            }
            _ if script.garbled => {
                pattern::chunks(out, &mut Dice::new(owner), (owner, len), 40_000, "");
                out.truncate(out.len() - 3);
            }
            Framing::Chunked => chunked(out, owner, len),
            _ => pattern::fill(out, owner, from, len),
        }
        let stray_from = out.len();
        if script.left && len > 0 && !to_head {
            self.stray = StrayBytes::Soon;
            self.wire.stray_from = Some(stray_from - (len - len / 2) as usize);
        }
        if script.garbled && !to_head {
            out.extend_from_slice(b"zz\r\n");
        }
        if (script.extra || script.garbled) && !script.floods {
            self.stray = StrayBytes::Soon;
            self.wire.stray_from.get_or_insert(stray_from);
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
        }
        if let Some(at) = script.breaks {
            out.truncate(begin + at as usize);
        }
        if script.breaks.is_some() || !script.keeps {
            self.wire.finish = Finish::Close;
        }
        if let (Some(tls), None) = (&mut self.wire.tls, script.breaks)
            && !script.keeps
        {
            tls.ends();
        }
    }
}

fn chunked(out: &mut Vec<u8>, owner: u64, len: u64) {
    pattern::chunks(out, &mut Dice::new(owner), (owner, len), 40_000, ";a=b");
    out.extend_from_slice(b"X-Trailer: t\r\n\r\n");
}
