//! Clients over HTTP/1: what they ask, and how they check the answers.

use std::collections::VecDeque;
use std::io::Write;

use flate2::write::GzDecoder;
use weir_testkit::Dice;

use crate::answer::{Message, Side};
use crate::book::{Book, Framing};
use crate::extras::{SLICED, sliced_len, sliced_name};
use crate::fate::{FILES, Fate, SCRIPTS, WORKS, file_len};
use crate::pattern;
use crate::rfc::Said;
use crate::wire::{Finish, Wire};

/// `lingering_time`: so long, in nanoseconds, the server reads on for a client that it has answered early.
const LINGERING_TIME: u64 = 30_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File(u64),
    Proxied,
    Upload(u64),
    Cached(u64),
    /// Cached in slices, by its name.
    Sliced(u64),
    /// Kept in a file.
    Stored,
    /// The same, in a location with a limit.
    Limited,
    /// Answered by a script of this kind.
    Script(&'static str),
    Short,
    /// The handler stalls its loop.
    Work(u64),
}

/// A request, and what is known of it.
#[derive(Clone, Debug)]
pub struct Ask {
    pub id: u64,
    pub kind: Kind,
    pub head_only: bool,
    pub range: Option<(u64, u64)>,
    /// The answer may be compressed.
    pub zipped: bool,
    /// The request may fail.
    pub excused: bool,
    /// The object is cached by the rules of the standard: what draws the request's fields.
    pub standard: Option<u64>,
    /// It changes the object: stored answers are invalid from then on.
    pub updates: bool,
    /// The answer may break off: it follows a store that was given up, and the server has another answer by now.
    pub changes: bool,
}

/// Objects that are cached.
pub const OBJECTS: u64 = 5;

impl Ask {
    pub fn draw(dice: &mut Dice, fate: &Fate, id: u64, book: &mut Book) -> Ask {
        let kind = match dice.below(13) {
            _ if fate.accepts.is_some() && dice.one_in(2) => Kind::Short,
            _ if fate.extras.caching => Kind::Cached(dice.below(2) as u64),
            _ if fate.again && dice.one_in(2) => Kind::Cached(dice.below(OBJECTS as usize) as u64),
            _ if fate.accepts.is_some() => Kind::Work(dice.below(WORKS as usize) as u64),
            10 => Kind::Work(dice.below(WORKS as usize) as u64),
            11 if !fate.changes.is_empty() => Kind::Short,
            11 => Kind::Script(dice.pick(SCRIPTS)),
            12 if fate.limits.is_some() => Kind::Limited,
            0..=2 => Kind::File(dice.below(FILES as usize) as u64),
            3..=5 => Kind::Proxied,
            6 => Kind::Upload(dice.below(fate.longest as usize) as u64),
            7 | 8 => Kind::Cached(dice.below(OBJECTS as usize) as u64),
            _ => Kind::Short,
        };
        let kind = match kind {
            Kind::Proxied if fate.extras.stored && dice.one_in(3) => Kind::Stored,
            Kind::Cached(_) if fate.extras.sliced && dice.one_in(2) => {
                Kind::Sliced(dice.below(SLICED as usize) as u64)
            }
            usual => usual,
        };
        let mut excused = fate.faults.excuse() || kind == Kind::Limited;
        let scripted = match kind {
            Kind::Proxied | Kind::Stored | Kind::Limited | Kind::Upload(_) | Kind::Script(_) => {
                true
            }
            Kind::File(_) | Kind::Cached(_) | Kind::Sliced(_) | Kind::Short | Kind::Work(_) => {
                false
            }
        };
        if scripted {
            let mut script = fate.script(dice);
            if let Kind::Script(how) = kind {
                // A script handles one framing only.
                (script.framing, script.floods, script.garbled) = (Framing::Length, false, false);
                script.left = how == "leave";
            }
            excused |= !script.is_sound();
            book.scripts.insert(id, script);
        }
        excused |= fate.broken_servers && matches!(kind, Kind::Cached(_) | Kind::Sliced(_));
        // Over HTTP/2, other requests share a connection that breaks.
        excused |= fate.broken_servers
            && fate.http2_behind
            && matches!(kind, Kind::Proxied | Kind::Upload(_) | Kind::Script(_));
        let updates =
            fate.extras.caching && Dice::salted(fate.seed ^ id << 20, "updates").one_in(8);
        let head_only = !matches!(kind, Kind::Upload(_)) && dice.one_in(8) && !updates;
        let mut range = None;
        if let Kind::File(name) = kind
            && file_len(name) > 10
            && dice.one_in(3)
        {
            let from = dice.below(file_len(name) as usize) as u64;
            range = Some((from, (from + dice.below(50_000) as u64).min(file_len(name) - 1)));
        }
        let len = match kind {
            Kind::Cached(_) if fate.extras.ranged => fate.longest,
            Kind::Sliced(name) => sliced_len(name) + 2,
            _ => 0,
        };
        if len > 0 && dice.one_in(2) {
            let from = dice.below(len as usize) as u64;
            range = Some((from, from + dice.below(len as usize) as u64));
        }
        let zipped = fate.extras.zipped && dice.one_in(2);
        let changes = matches!(kind, Kind::Cached(_)) && fate.faults.gives_up_stores();
        let range = range.filter(|_| !updates);
        let standard = matches!(kind, Kind::Cached(_)) && fate.extras.standard && !updates;
        let standard = standard.then_some(fate.seed);
        Ask { id, kind, head_only, range, zipped, excused, standard, updates, changes }
    }

    /// The most bytes of bodies that the request takes, in each direction.
    pub fn weight(&self, fate: &Fate, book: &Book) -> (u64, u64) {
        let script = book.scripts.get(&self.id).map_or(0, |script| script.len);
        match self.kind {
            Kind::File(name) => (0, file_len(name)),
            Kind::Proxied | Kind::Stored | Kind::Limited | Kind::Script(_) => (0, script),
            Kind::Upload(len) => (len, script),
            Kind::Cached(_) => (0, fate.longest),
            Kind::Sliced(name) => (0, sliced_len(name)),
            Kind::Short | Kind::Work(_) => (0, 0),
        }
    }

    /// Notes a fault in the request's answer.
    pub fn doubt(&self, book: &mut Book, what: String) {
        book.doubt(self.id, matches!(self.kind, Kind::Cached(_) | Kind::Sliced(_)), what);
    }

    pub fn path(&self) -> String {
        let id = self.id;
        match self.kind {
            Kind::File(name) => format!("/s/f{name}"),
            Kind::Proxied => format!("/p/{id}"),
            Kind::Limited => format!("/k/{id}"),
            Kind::Stored => format!("/t/{id}"),
            Kind::Sliced(name) => format!("/x/{name}"),
            Kind::Upload(_) => format!("/u/{id}"),
            Kind::Cached(name) => format!("/c/{name}"),
            Kind::Script(how) => format!("/l/{how}/{id}"),
            Kind::Short => "/r".to_owned(),
            Kind::Work(name) => format!("/w{name}"),
        }
    }

    pub fn method(&self) -> &'static str {
        match self.kind {
            _ if self.head_only => "HEAD",
            Kind::Upload(_) => "POST",
            _ if self.updates => "PUT",
            _ => "GET",
        }
    }

    fn write(&self, dice: &mut Dice, out: &mut Vec<u8>, book: &mut Book) {
        let (method, path, id) = (self.method(), self.path(), self.id);
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nX-Ask: {id}\r\n");
        if let Some((from, to)) = self.range {
            head.push_str(&format!("Range: bytes={from}-{to}\r\n"));
        }
        if self.zipped {
            head.push_str("Accept-Encoding: gzip\r\n");
        }
        if let Some(salt) = self.standard {
            let said = Said::draw(salt, self.id);
            head.push_str(&said.fields());
            book.reuses.said.insert(self.id, said);
        }
        if dice.one_in(4) {
            head.push_str(&format!("X-Long: {}\r\n", "y".repeat(dice.below(3_000))));
        }
        if self.updates {
            head.push_str("Content-Length: 0\r\n");
        }
        let Kind::Upload(len) = self.kind else {
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

    /// The answer's body: its id in the pattern, its offset and its length. `None` if the pattern
    /// says nothing of it.
    pub fn owner(&self, answer: &Head<'_>) -> Result<Option<(u64, u64, u64)>, String> {
        let status = answer.status;
        if self.updates {
            return match status {
                200 | 503 => Ok(None),
                _ if self.excused && status >= 400 => Ok(None),
                _ => Err(format!("status {status}")),
            };
        }
        let of_cache = matches!(self.kind, Kind::Cached(_) | Kind::Sliced(_));
        let wants = if self.range.is_some() { 206 } else { 200 };
        // An answer that never existed as a whole has no parts.
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
            Kind::File(name) => {
                let range = self.range.filter(|_| status == 206);
                let (from, to) = range.unwrap_or((0, file_len(name).wrapping_sub(1)));
                (pattern::file(name), from, to.wrapping_add(1) - from)
            }
            Kind::Proxied | Kind::Stored | Kind::Limited | Kind::Upload(_) | Kind::Script(_) => {
                let whose = number("x-id")?;
                if whose != self.id {
                    return Err(format!("the answer to {whose}"));
                }
                (self.id, 0, number("x-len")?)
            }
            Kind::Cached(name) => {
                let whose = number("x-name")?;
                if whose != name {
                    return Err(format!("object {whose} instead of {name}"));
                }
                let (owner, len) = (pattern::object(name, number("x-gen")?), number("x-len")?);
                self.part(answer, owner, len)?
            }
            Kind::Sliced(name) => {
                let (whose, name) = (number("x-name")?, sliced_name(name));
                if whose != name {
                    return Err(format!("slices of {whose} instead of {name}"));
                }
                let owner = pattern::object(name, number("x-gen")?);
                self.part(answer, owner, sliced_len(name - sliced_name(0)))?
            }
            Kind::Short | Kind::Work(_) => return Ok(None),
        }))
    }
}

impl Ask {
    /// The part of a body of this length that the answer has: all of it, or the range that was
    /// asked for.
    fn part(&self, answer: &Head<'_>, owner: u64, len: u64) -> Result<(u64, u64, u64), String> {
        let (Some((from, to)), 206) = (self.range, answer.status) else {
            return Ok((owner, 0, len));
        };
        // A server that broke off a body that ends with its connection has sent all of it, for all that caches know.
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

/// An answer's head, from either protocol.
pub struct Head<'a> {
    pub status: u16,
    pub field: &'a dyn Fn(&str) -> Option<String>,
}

impl Head<'_> {
    fn number(&self, name: &str) -> Option<u64> {
        (self.field)(name)?.parse().ok()
    }
}

/// HTTP/2 that breaks the rules: a head with fields that are sound up to a point, frames cut
/// anywhere.
fn hostile_frames(dice: &mut Dice) -> Vec<u8> {
    let mut block = Vec::new();
    let fields: &[(&str, &str)] =
        &[(":method", "POST"), (":scheme", "http"), (":path", "/s/../secret"), (":authority", "h")];
    let fields = &fields[..dice.below(fields.len() + 1)];
    for (name, value) in fields.iter().chain(&[("x-ask", "0"), ("range", "bytes=1-2")]) {
        block.extend_from_slice(&[0, name.len() as u8]);
        block.extend_from_slice(name.as_bytes());
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    }
    // An index that is not in the table.
    block.push(0x80);
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec();
    out.extend_from_slice(&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1]);
    out.extend_from_slice(&block);
    if dice.one_in(3) {
        out.truncate(24 + dice.below(out.len() - 24));
    }
    out
}

/// A client with one connection.
pub struct Client {
    pub wire: Wire,
    later: VecDeque<Ask>,
    asked: VecDeque<Ask>,
    pipelines: bool,
    answer: Message,
    /// Decompresses a compressed answer. `plain` is the number of bytes after that.
    unzip: Option<GzDecoder<Vec<u8>>>,
    plain: u64,
    /// The client leaves after this many bytes of answers.
    leaves: Option<usize>,
    got: usize,
    /// The client sends no more, or has left by itself.
    leaving: bool,
    last_word: bool,
    /// The client has nothing left to ask.
    idle: bool,
    tainted: bool,
    /// When an answer was whole before what the client still sends.
    early: Option<u64>,
    /// When the client connected. `asked_at`: when its request was at the server as a whole, if no
    /// answer has begun since.
    pub came: u64,
    pub asked_at: Option<u64>,
    /// How long the client waited so while some loop slept.
    pub beside: u64,
    /// The number of answers so far.
    answers: u64,
    pub done: bool,
}

impl Client {
    pub fn new(
        wire: Wire,
        asks: Vec<Ask>,
        dice: &mut Dice,
        fate: &Fate,
        book: &mut Book,
    ) -> Client {
        let leaves = fate.broken_clients && dice.one_in(3);
        let mut client = Client {
            wire,
            later: asks.into(),
            asked: VecDeque::new(),
            pipelines: dice.one_in(3),
            answer: Message::default(),
            unzip: None,
            plain: 0,
            leaves: leaves.then(|| dice.below(dice.clone().pick(&[10, 1_000, 300_000]))),
            got: 0,
            leaving: false,
            last_word: false,
            idle: false,
            tainted: false,
            early: None,
            came: 0,
            asked_at: None,
            beside: 0,
            answers: 0,
            done: false,
        };
        client.ask(dice, book);
        if fate.broken_clients && dice.one_in(4) {
            client.break_off(dice, book);
        }
        client
    }

    /// The client leaves in the middle of what it sends.
    fn break_off(&mut self, dice: &mut Dice, book: &mut Book) {
        self.wire.out.truncate(dice.below(self.wire.out.len() + 1));
        if dice.one_in(3) {
            self.wire.tls = None;
        }
        match dice.below(6) {
            2 | 3 => self.wire.out = hostile_frames(dice),
            0 => self.wire.out.extend_from_slice(b"\x00\xff\r\n: \r\n\r\n"),
            1 => (0..3_000)
                .for_each(|i| self.wire.out.extend_from_slice(format!("a{i}: b\r\n").as_bytes())),
            _ => {}
        }
        self.wire.finish = dice.pick(&[Finish::Half, Finish::Close]);
        self.leaving = true;
        self.later.clear();
        for ask in &mut self.asked {
            ask.excused = true;
            book.spoiled.insert(ask.id);
        }
    }

    fn ask(&mut self, dice: &mut Dice, book: &mut Book) {
        while (self.pipelines || self.asked.is_empty())
            && let Some(ask) = self.later.pop_front()
        {
            ask.write(dice, &mut self.wire.out, book);
            book.begun.insert(ask.id, book.now);
            self.asked.push_back(ask);
        }
        if self.later.is_empty() && self.asked.is_empty() {
            self.done = true;
            self.idle = true;
        }
    }

    /// Takes bytes of answers.
    pub fn hear(&mut self, mut bytes: &[u8], dice: &mut Dice, book: &mut Book) {
        self.got += bytes.len();
        if self.leaves.is_some_and(|most| self.got >= most) {
            self.done = true;
            return;
        }
        while !bytes.is_empty() {
            let Some(ask) = self.asked.front() else {
                if !self.leaving {
                    book.find(format!("{} bytes that nobody asked for", bytes.len()));
                }
                self.done = true;
                return;
            };
            let had_head = self.answer.has_head();
            let at = self.plain;
            let side = Side::Answer { to_head: ask.head_only };
            let (used, body) = self.answer.feed(bytes, side);
            bytes = &bytes[used..];
            if let Some(why) = &self.answer.broken {
                ask.doubt(book, format!("request {} {}: {why}", ask.id, ask.path()));
                self.done = true;
                return;
            }
            let has_head = self.answer.has_head();
            let plain = match self.unzipped(body) {
                Some(Ok(plain)) => plain,
                Some(Err(why)) => {
                    if let Some(ask) = self.asked.front() {
                        let (id, path) = (ask.id, ask.path());
                        ask.doubt(book, format!("request {id} {path}: compressed, {why}"));
                    }
                    self.done = true;
                    return;
                }
                None => body.to_vec(),
            };
            self.plain += plain.len() as u64;
            if has_head && !had_head {
                self.judge_reuse(book);
            }
            if has_head && (!had_head || !plain.is_empty()) {
                self.judge(at, &plain, book);
            }
            if self.answer.done {
                self.answered(dice, book);
                if self.done {
                    return;
                }
            }
        }
    }

    /// The decompressed bytes, if the answer is compressed.
    fn unzipped(&mut self, body: &[u8]) -> Option<Result<Vec<u8>, String>> {
        if self.answer.field("content-encoding") != Some("gzip") || body.is_empty() {
            return (self.unzip.is_some() && body.is_empty()).then(|| Ok(Vec::new()));
        }
        let unzip = self.unzip.get_or_insert_with(|| GzDecoder::new(Vec::new()));
        let wrote = unzip.write_all(body).and_then(|()| match self.answer.done {
            true => unzip.try_finish(),
            false => unzip.flush(),
        });
        Some(wrote.map(|()| std::mem::take(unzip.get_mut())).map_err(|e| e.to_string()))
    }

    /// Checks that an answer that was made for another request may be sent for this one.
    fn judge_reuse(&self, book: &mut Book) {
        if let Some(ask) = self.asked.front().filter(|_| !self.leaving) {
            book.judge_object(ask, &self.answer);
        }
    }

    /// Checks that these bytes belong to the right answer.
    fn judge(&mut self, at: u64, body: &[u8], book: &mut Book) {
        let Some(ask) = self.asked.front() else { return };
        let answer = &self.answer;
        let field = |name: &str| answer.field(name).map(Into::into);
        let head = Head { status: answer.status(), field: &field };
        if let Some(mixed) = answer.field("x-site").filter(|site| !is_of_one_site(site)) {
            book.find(format!("request {} {} saw sites {mixed}", ask.id, ask.path()));
        }
        let text = match ask.owner(&head) {
            Err(_) if self.leaving => return,
            Err(why) => format!("request {} {} got {why}", ask.id, ask.path()),
            Ok(Some((owner, from, len))) => {
                book.verified += body.len() as u64;
                let wrong = pattern::first_wrong(owner, from + at, body);
                let whole = answer.done && !ask.head_only && self.plain != len;
                match wrong {
                    Some(at) => {
                        format!(
                            "request {} {} got wrong bytes at {at} of {len}: {:?}",
                            ask.id,
                            ask.path(),
                            answer.lines
                        )
                    }
                    None if self.plain > len || whole && !ask.excused => {
                        let (id, path, seen) = (ask.id, ask.path(), self.plain);
                        format!("request {id} {path} got {seen} bytes instead of {len}")
                    }
                    None => return,
                }
            }
            Ok(None) => return,
        };
        ask.doubt(book, text);
        self.done = true;
    }

    fn answered(&mut self, dice: &mut Dice, book: &mut Book) {
        self.judge(0, &[], book);
        let answer = std::mem::take(&mut self.answer);
        (self.unzip, self.plain) = (None, 0);
        // If the server broke off, the connection may be lost although the answer was whole, as one
        // to a HEAD is.
        let ask = self.asked.pop_front();
        self.tainted |= ask.as_ref().is_some_and(|ask| ask.excused);
        if let Some(ask) = ask.filter(|ask| ask.updates && answer.status() == 200) {
            book.knows_update(ask.id);
        }
        match answer.status() {
            200..300 => book.answered += 1,
            _ => book.failed += 1,
        }
        self.answers += 1;
        self.early = (self.wire.left() > 0).then_some(book.now);
        self.last_word = answer.field("connection") == Some("close");
        if self.last_word {
            self.done = true;
        } else if !self.leaving {
            self.ask(dice, book);
        }
    }

    /// The server has closed.
    pub fn end(&mut self, how: &str, book: &mut Book) {
        self.done = true;
        let Some(ask) = self.asked.front() else { return };
        let close = self.answer.ends_with_connection();
        if self.answer.end() && close {
            return self.judge(0, &[], book);
        }
        let begun = self.answer.begun();
        let lingered = self.early.is_some_and(|at| book.now >= at + LINGERING_TIME);
        let unanswered = self.tainted || lingered;
        if ask.excused || self.leaving || unanswered && !begun || ask.changes && begun {
            book.excused += 1;
            return;
        }
        let at = if begun {
            format!("broken off after {} bytes of its body", self.answer.seen)
        } else {
            "not answered".to_owned()
        };
        ask.doubt(book, format!("request {} {}: {at} ({how})", ask.id, ask.path()));
    }

    /// The worker that served it was killed.
    pub fn is_bereft(&mut self) {
        self.asked.iter_mut().chain(&mut self.later).for_each(|ask| ask.excused = true);
        self.tainted = true;
    }

    /// It has all its answers, and its connection is open: it may stay for a while. To be asked
    /// once.
    pub fn lingers(&mut self) -> bool {
        let stays = self.idle && !self.last_word && !self.leaving;
        self.idle = false;
        stays
    }

    /// Since when the server has had its next request as a whole without sending anything. Only an
    /// answer is owed to it.
    pub fn waits_at_boundary(&self) -> Option<u64> {
        let short = self.asked.front().is_some_and(|ask| ask.kind == Kind::Short);
        self.asked_at.filter(|_| self.answers > 0 && self.asked.len() == 1 && short)
    }

    /// What the client waits for, in words.
    pub fn waits_for(&self) -> String {
        let ask = self.asked.front();
        let what = ask.map_or("nothing".to_owned(), |ask| format!("{} {}", ask.id, ask.path()));
        format!("{what}, {} bytes of its body came", self.answer.seen)
    }
}

/// The site of a request's rewrite phase, if it came so far, and that of its header filters.
fn is_of_one_site(shown: &str) -> bool {
    shown.split_once('/').is_some_and(|(rewritten, sent)| rewritten.is_empty() || rewritten == sent)
}
