//! Servers behind weir: each treats a request as its script says.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_testkit::Dice;

use crate::answer::{Message, Side};
use crate::book::{Book, Framing, Script, object_salt};
use crate::extras;
use crate::fate::Fate;
use crate::pattern;
use crate::reuse::Sent;
use crate::rfc::{self, Told};
use crate::wire::{Finish, Wire};

/// A connection to such a server.
pub struct Served {
    pub wire: Wire,
    asked: Message,
    /// The time at which the answer is to be given.
    pub thinks: Option<u64>,
    /// The answer goes on without end.
    pub floods: bool,
    haunted: Haunted,
    /// The number of the server.
    pub accept_queue: usize,
    pub done: bool,
}

/// Whether stray bytes follow an answer.
enum Haunted {
    No,
    /// They are on their way. A request that is sent before they arrive may take them for its
    /// answer.
    Soon,
    /// They were there at that time, so that the server could see them.
    Since(u64),
}

/// The body of an answer.
pub struct About {
    pub script: Script,
    pub owner: u64,
    /// The offset at which it begins.
    pub from: u64,
    pub status: u16,
    pub fields: String,
    /// It is about an object.
    pub sent: Option<Sent>,
    /// These objects have changed.
    pub updated: Vec<u64>,
}

/// A request, as the server has read it.
pub struct Question<'a> {
    pub path: &'a str,
    pub id: u64,
    /// The number of body bytes so far.
    pub got: u64,
    pub range: Option<&'a str>,
    /// `If-None-Match`
    pub condition: Option<&'a str>,
    /// It is a PUT.
    pub updates: bool,
}

/// Decides the answer's body.
pub fn about(question: &Question<'_>, fate: &Fate, book: &mut Book) -> About {
    let &Question { path, id, got, range, condition, updates } = question;
    let (from, status) = (0, 200);
    if let Some(name) = path.strip_prefix("/x/") {
        return slice(name.parse().unwrap_or(0), range, fate, book);
    }
    if path.starts_with("/a/") {
        let script = Script::plain(fate.seed.wrapping_add(id) % 7 * 1_000_000);
        return About {
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
            return update(name.parse().unwrap_or(0), id, fate);
        }
        return object(name.parse().unwrap_or(0), id, condition, fate, book);
    }
    let sane = path.rsplit('/').next().and_then(|n| n.parse().ok()) == Some(id);
    if !sane {
        book.find(format!("the path {path} came with the head of {id}"));
    }
    let script = book.scripts.get(&id).cloned().unwrap_or_else(|| {
        book.find(format!("a server was asked for {id}, which nobody wanted"));
        Script::draw(&mut Dice::new(id), 10, false)
    });
    let fields = format!("X-Id: {id}\r\nX-Got: {got}\r\n");
    About { script, owner: id, from, status, fields, sent: None, updated: Vec::new() }
}

/// A request changes an object, and with it another one that the answer names. Now and then the server refuses.
fn update(name: u64, id: u64, fate: &Fate) -> About {
    let mut dice = Dice::salted(fate.seed ^ id << 20, "update");
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
    About { script, owner: id, from: 0, status, fields, sent: None, updated }
}

/// An object that is cached. By the rules of the standard, the server says now and then that an answer which it has given still
/// stands, or that it has none.
fn object(name: u64, id: u64, condition: Option<&str>, fate: &Fate, book: &mut Book) -> About {
    let newest = book.generation(name);
    let salt = object_salt(fate.seed, name, newest);
    let script = fate.script(&mut Dice::new(salt));
    let number = book.told_number();
    let mut dice = Dice::salted(fate.seed ^ id << 20, "server");
    let (stands, fails) = (dice.one_in(2), dice.one_in(8));
    let standard = fate.extras.standard;
    // Requests that only look whether an object can be had get it.
    let fails = fails && book.reuses.said.contains_key(&id);
    let stands = condition.and_then(rfc::tagged).filter(|_| standard && stands);
    let (status, generation, told) = match stands {
        Some(generation) => (304, generation, Told::draw_unchanged(fate.seed ^ number << 20)),
        None if standard && fails => (503, newest, Told::default()),
        None if standard => (200, newest, Told::draw(salt)),
        None => (200, newest, Told::default()),
    };
    let sent = Some(Sent { name, generation, told, status });
    let owner = pattern::object(name, generation);
    let told = format!("{}X-Told: {number}\r\n", told.fields(generation));
    let bare = Script { framing: Framing::Length, floods: false, garbled: false, ..script.clone() };
    let (script, owner, fields) = match status {
        304 => (Script { len: 0, ..bare }, owner, told),
        503 => (Script { len: 10, ..bare }, id, String::new()),
        _ => (script, owner, format!("X-Name: {name}\r\nX-Gen: {generation}\r\n{told}")),
    };
    About { script, owner, from: 0, status, fields, sent, updated: Vec::new() }
}

/// A part of an object that is cached in slices. An unreliable server sends a part of another body
/// now and then.
fn slice(name: u64, range: Option<&str>, fate: &Fate, book: &mut Book) -> About {
    let (len, name) = (extras::sliced_len(name), extras::sliced_name(name));
    book.slices += 1;
    if fate.broken_servers && book.slices.is_multiple_of(13) {
        book.next_generation(name);
    }
    let generation = if fate.broken_servers { book.generation(name) } else { 0 };
    let owner = pattern::object(name, generation);
    let mut script = Script::plain(book.slices % 5 * 3_000_000);
    let own = format!("X-Name: {name}\r\nX-Gen: {generation}\r\nETag: \"{generation}\"\r\n");
    script.len = len;
    let Some((from, to)) = range.and_then(|range| extras::range(range, len)) else {
        return About {
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
        return About {
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
    if fate.broken_servers && book.slices.is_multiple_of(17) {
        script.breaks = Some(script.len / 2 + 200);
    }
    let fields = format!("{own}Content-Range: bytes {from}-{to}/{len}\r\n");
    About { script, owner, from, status: 206, fields, sent: None, updated: Vec::new() }
}

impl Served {
    pub fn new(wire: Wire, accept_queue: usize) -> Served {
        let (asked, thinks) = (Message::default(), None);
        let (floods, haunted, done) = (false, Haunted::No, false);
        Served { wire, asked, thinks, floods, haunted, accept_queue, done }
    }

    /// Takes bytes of requests. Returns the id of the last request.
    pub fn hear(&mut self, mut bytes: &[u8], fate: &Fate, book: &mut Book) -> u64 {
        let mut id = 0;
        while !bytes.is_empty() && !self.done {
            if self.asked.done && matches!(self.haunted, Haunted::No) {
                book.find("a server was asked again before it had answered".to_owned());
                return id;
            }
            if self.asked.done {
                // What strayed passed for the answer. HTTP/1 cannot tell the two apart, nor what follows now.
                self.asked = Message::default();
                self.haunted = Haunted::Soon;
            }
            let at = self.asked.seen;
            let (used, body) = self.asked.feed(bytes, Side::Request);
            bytes = &bytes[used..];
            if let Some(why) = &self.asked.broken {
                book.find(format!("a server was sent {why}"));
                self.done = true;
                return id;
            }
            id = self.asked.number("x-ask").unwrap_or(0);
            if !book.spoiled.contains(&id)
                && let Some(wrong) = pattern::first_wrong(id, at, body)
            {
                book.find(format!("the server of request {id} got wrong bytes at {wrong}"));
            }
            if self.asked.done {
                self.judge_use(id, book);
                let first = self.asked.lines.first();
                let beside = matches!(self.asked.path().get(..3), Some("/m/" | "/a/"));
                let post = first.is_some_and(|l| l.starts_with("POST ")) && !beside;
                if post && !book.spoiled.contains(&id) {
                    book.asked(id);
                }
                self.thinks = Some(self.about(fate, book).script.delay);
            }
        }
        id
    }

    /// It was asked for something with a limit and has not answered, and the client has not gone.
    pub fn is_at_limited(&self) -> bool {
        let gone = PollFlags::HUP | PollFlags::RDHUP;
        let mut fds = [PollFd::from_borrowed_fd(self.wire.fd.as_fd(), gone)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.asked.done
            && self.asked.path().starts_with("/k/")
            && poll(&mut fds, Some(&now)).is_ok_and(|found| found == 0)
    }

    /// More of the answer has arrived at weir.
    pub fn arrived(&mut self, now: u64) {
        if std::mem::take(&mut self.wire.strayed) {
            self.haunted = Haunted::Since(now);
        }
    }

    /// Checks that weir may use this connection again.
    fn judge_use(&self, id: u64, book: &mut Book) {
        let began = book.begun.get(&id).copied().unwrap_or(0);
        match self.haunted {
            Haunted::No => {}
            Haunted::Since(at) if at < began => {
                book.find(format!(
                    "request {id} went where something unasked lay for {} ns",
                    began - at
                ));
            }
            _ => {
                book.haunted.insert(id);
            }
        }
    }

    fn about(&self, fate: &Fate, book: &mut Book) -> About {
        let id = self.asked.number("x-ask").unwrap_or(0);
        let (got, range) = (self.asked.seen, self.asked.field("range"));
        let condition = self.asked.field("if-none-match");
        let updates = self.asked.lines.first().is_some_and(|line| line.starts_with("PUT "));
        about(&Question { path: self.asked.path(), id, got, range, condition, updates }, fate, book)
    }

    /// Gives the answer to a request.
    pub fn answer(&mut self, fate: &Fate, book: &mut Book) {
        self.thinks = None;
        let About { script, owner, from, status, fields, sent, updated } = self.about(fate, book);
        book.updates(&updated, self.asked.number("x-ask").unwrap_or(0));
        if let Some(sent) = sent {
            book.sends(sent, self.asked.number("x-ask").unwrap_or(0));
        }
        let unchanged = status == 304;
        let to_head =
            unchanged || self.asked.lines.first().is_some_and(|line| line.starts_with("HEAD "));
        self.asked = Message::default();
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
        let strange = out.len();
        if script.left && len > 0 && !to_head {
            self.haunted = Haunted::Soon;
            self.wire.strange = Some(strange - (len - len / 2) as usize);
        }
        if script.garbled && !to_head {
            out.extend_from_slice(b"zz\r\n");
        }
        if (script.extra || script.garbled) && !script.floods {
            self.haunted = Haunted::Soon;
            self.wire.strange.get_or_insert(strange);
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
