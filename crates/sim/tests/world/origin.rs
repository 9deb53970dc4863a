//! Servers behind that speak HTTP/2: many requests at once on a connection, windows that both sides
//! must respect, and everything else that such a server may do.

mod rave;

use std::collections::{BTreeMap, VecDeque};

use weir_proto::http2::hpack::{Decoder, FieldLimits};
use weir_testkit::Dice;

use crate::book::{Book, Framing};
use crate::fate::Fate;
use crate::frames::{self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS};
use crate::frames::{PADDED, PING, PRIORITY, RESET, SETTINGS, WINDOW, frame};
use crate::pattern;
use crate::server::{Question, about};
use crate::wire::{Finish, Wire};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The window of a peer that has not announced one.
const USUAL: i64 = 65_535;
/// A stream that no client comes to.
const UNUSED: u32 = 0x7fff_ffff;
/// A server writes at most this much ahead of what has left.
const AHEAD: usize = 48_000;
const LIMITS: FieldLimits = FieldLimits { field: 1 << 20, block: 1 << 20 };

/// A connection to such a server.
pub struct Origin {
    pub wire: Wire,
    manner: Manner,
    greeted: bool,
    buf: Vec<u8>,
    decoder: Decoder,
    /// A head that is not complete: its stream, whether no body follows, and the bytes so far.
    block: Option<(u32, bool, Vec<u8>)>,
    streams: BTreeMap<u32, Asked>,
    newest: u32,
    /// The bytes of bodies that may be sent, on the connection and on a new stream.
    window: i64,
    initial: i64,
    /// The same for received bodies, and the settings that were announced and not confirmed yet.
    room: i64,
    owed: i64,
    granted: i64,
    told: VecDeque<i64>,
    /// The server ignores streams above this one.
    last: Option<u32>,
    /// The stream that sent last.
    sent: u32,
    dice: Dice,
    /// Streams with answers to give, and after how long.
    pub thinks: Vec<(u32, u64)>,
    pub done: bool,
}

/// How the server behaves.
struct Manner {
    window: i64,
    most: usize,
    piece: usize,
    pads: bool,
    splits: bool,
    chats: bool,
    /// It answers before it has read the whole request.
    early: bool,
    /// It reads nothing while it has much to send.
    deaf: bool,
}

/// A request, and its answer.
struct Asked {
    id: u64,
    post: bool,
    updates: bool,
    head_only: bool,
    path: String,
    condition: Option<String>,
    got: u64,
    ended: bool,
    room: i64,
    owed: i64,
    window: i64,
    answer: Option<Answer>,
}

impl Asked {
    fn question(&self) -> Question<'_> {
        let condition = self.condition.as_deref();
        Question {
            path: &self.path,
            id: self.id,
            got: self.got,
            range: None,
            condition,
            updates: self.updates,
        }
    }
}

struct Answer {
    body: Vec<u8>,
    at: usize,
    breaks: Option<usize>,
    trailers: bool,
    extra: bool,
    silent: bool,
}

fn field(block: &mut Vec<u8>, name: &str, value: &str) {
    block.extend_from_slice(&[0, name.len() as u8]);
    block.extend_from_slice(name.as_bytes());
    block.push(value.len() as u8);
    block.extend_from_slice(value.as_bytes());
}

impl Origin {
    /// Bodies of requests are up to `longest` bytes.
    pub fn new(wire: Wire, dice: &mut Dice, longest: u64) -> Origin {
        let mut dice = Dice::new(dice.any());
        let d = &mut dice;
        let manner = Manner {
            window: d.pick(&[1, 100, 10_000, USUAL, 1 << 20]).max(longest as i64 / 300),
            most: d.pick(&[1, 2, 10, 100]),
            piece: d.pick(&[1, 100, 5_000, 16_384]).max(longest as usize / 600).min(16_384),
            pads: d.one_in(4),
            splits: d.one_in(4),
            chats: d.one_in(3),
            early: d.one_in(4),
            deaf: d.one_in(4),
        };
        let mut origin = Origin {
            wire,
            greeted: false,
            buf: Vec::new(),
            decoder: Decoder::default(),
            block: None,
            streams: BTreeMap::new(),
            newest: 0,
            window: USUAL,
            initial: USUAL,
            room: USUAL,
            owed: 0,
            granted: USUAL,
            told: VecDeque::new(),
            last: None,
            sent: 0,
            thinks: Vec::new(),
            done: false,
            dice,
            manner,
        };
        origin.greet();
        origin
    }

    fn say(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        frame(&mut self.wire.out, kind, flags, stream, payload);
    }

    fn greet(&mut self) {
        let [a, b, c, d] = (self.manner.window as u32).to_be_bytes();
        let most = self.manner.most as u8;
        self.say(SETTINGS, 0, 0, &[0, 4, a, b, c, d, 0, 3, 0, 0, 0, most]);
        self.told.push_back(self.manner.window);
        if self.dice.one_in(2) {
            self.say(WINDOW, 0, 0, &(1u32 << 20).to_be_bytes());
            self.room += 1 << 20;
        }
    }

    /// Whether it reads nothing until it has sent what it has.
    pub fn is_deaf(&self) -> bool {
        self.manner.deaf && self.wire.left() > 20_000
    }

    pub fn hear(&mut self, bytes: &[u8], fate: &Fate, book: &mut Book) {
        self.buf.extend_from_slice(bytes);
        if !self.greeted {
            let n = self.buf.len().min(PREFACE.len());
            if self.buf[..n] != PREFACE[..n] {
                book.find(format!("a server over HTTP/2 was sent {:?}", &self.buf[..n]));
                self.done = true;
            }
            if n < PREFACE.len() {
                return;
            }
            self.greeted = true;
            self.buf.drain(..n);
        }
        while !self.done
            && let Some((head, payload)) = frames::take(&mut self.buf)
        {
            self.take(head, &payload, fate, book);
        }
        if self.manner.chats && self.dice.one_in(4) {
            self.chat();
        }
        self.pump();
    }

    /// Frames that are valid and mean nothing.
    fn chat(&mut self) {
        match self.dice.below(4) {
            0 => self.say(PING, 0, 0, b"weirweir"),
            1 => self.say(0xbb, 3, self.newest, b"nobody knows"),
            2 if self.newest > 0 => self.say(PRIORITY, 0, self.newest, &[0, 0, 0, 0, 7]),
            // Changes windows, also of streams in progress.
            _ => {
                let window = (self.manner.window / 2).max(1) + self.dice.below(20_000) as i64;
                let [a, b, c, d] = (window as u32).to_be_bytes();
                self.say(SETTINGS, 0, 0, &[0, 4, a, b, c, d]);
                self.told.push_back(window);
            }
        }
    }

    fn take(&mut self, head: frames::Head, payload: &[u8], fate: &Fate, book: &mut Book) {
        let frames::Head { kind, flags, stream } = head;
        if let Some((id, ..)) = &self.block
            && (kind != CONTINUATION || *id != stream)
        {
            book.find(format!("a server was sent a frame {kind} within a head of {id}"));
        }
        match kind {
            SETTINGS if flags & ACK != 0 => self.confirmed(book),
            SETTINGS => {
                for setting in payload.chunks_exact(6) {
                    let value = i64::from(u32::from_be_bytes([
                        setting[2], setting[3], setting[4], setting[5],
                    ]));
                    if setting[..2] == [0, 4] {
                        let by = value - self.initial;
                        self.initial = value;
                        self.streams.values_mut().for_each(|asked| asked.window += by);
                    }
                }
                self.say(SETTINGS, ACK, 0, b"");
            }
            PING if flags & ACK == 0 => self.say(PING, ACK, 0, payload),
            WINDOW => {
                let by = frames::word(payload);
                match self.streams.get_mut(&stream) {
                    Some(asked) => asked.window += by,
                    None if stream == 0 => self.window += by,
                    None => {}
                }
            }
            HEADERS => {
                self.block = Some((stream, flags & END_STREAM != 0, payload.to_vec()));
                self.head(flags, fate, book);
            }
            CONTINUATION => {
                if let Some((_, _, block)) = &mut self.block {
                    block.extend_from_slice(payload);
                }
                self.head(flags, fate, book);
            }
            DATA => self.body(stream, flags, payload, fate, book),
            RESET => {
                self.streams.remove(&stream);
                self.leave();
            }
            GOAWAY => self.wire.finish = Finish::Close,
            _ => {}
        }
    }

    /// The client has confirmed the settings, and must respect them from now on.
    fn confirmed(&mut self, book: &mut Book) {
        let Some(window) = self.told.pop_front() else {
            return book.find("settings were confirmed that nobody had said".to_owned());
        };
        let by = window - self.granted;
        self.granted = window;
        self.streams.values_mut().for_each(|asked| asked.room += by);
        // Streams that wait hear how much they may send.
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        ids.into_iter().for_each(|id| self.grant(id));
    }

    fn head(&mut self, flags: u8, fate: &Fate, book: &mut Book) {
        if flags & END_HEADERS == 0 {
            return;
        }
        let Some((stream, ended, block)) = self.block.take() else { return };
        let (mut id, mut path, mut method) = (0, String::new(), String::new());
        let mut condition = None;
        let read = self.decoder.decode(&block, LIMITS, |name, value| {
            let text = String::from_utf8_lossy(value).into_owned();
            match name {
                b"x-ask" => id = text.parse().unwrap_or(0),
                b":path" => path = text,
                b":method" => method = text,
                b"if-none-match" => condition = Some(text),
                _ => {}
            }
        });
        if read.is_err() || stream % 2 == 0 || stream <= self.newest {
            book.find(format!("a server was sent a head of {stream} after {}", self.newest));
            self.done = true;
            return;
        }
        self.newest = stream;
        if self.last.is_some_and(|last| stream > last) {
            return;
        }
        if fate.broken_servers && self.dice.one_in(20) {
            // The server is too busy, and has not looked at the request.
            return self.say(RESET, 0, stream, &[0, 0, 0, 7]);
        }
        let asked = Asked {
            id,
            post: method == "POST",
            updates: method == "PUT",
            head_only: method == "HEAD",
            path,
            condition,
            got: 0,
            ended,
            room: self.granted,
            owed: 0,
            window: self.initial,
            answer: None,
        };
        self.streams.insert(stream, asked);
        let most = self.manner.most;
        // Settings that are not confirmed may not be known to the client yet.
        if self.streams.len() > most && self.told.is_empty() {
            book.find(format!("{} requests at once, of {most}", self.streams.len()));
        }
        if ended {
            self.whole(stream, fate, book);
        } else if self.manner.early && self.dice.one_in(3) {
            self.think(stream, fate, book);
        }
    }

    fn body(&mut self, stream: u32, flags: u8, payload: &[u8], fate: &Fate, book: &mut Book) {
        let len = payload.len() as i64;
        (self.room, self.owed) = (self.room - len, self.owed + len);
        let spoiled = |id| book.spoiled.contains(&id);
        let mut wrong = (self.room < 0).then_some("on the connection");
        if let Some(asked) = self.streams.get_mut(&stream) {
            (asked.room, asked.owed) = (asked.room - len, asked.owed + len);
            if asked.room < 0 && len > 0 {
                wrong = Some("on its stream");
            }
            if !spoiled(asked.id) && pattern::first_wrong(asked.id, asked.got, payload).is_some() {
                wrong = Some("of another");
            }
            asked.got += payload.len() as u64;
            asked.ended |= flags & END_STREAM != 0;
        }
        if let Some(what) = wrong {
            book.find(format!("a server was sent {len} bytes too many, {what}"));
        }
        self.grant(stream);
        if flags & END_STREAM != 0 && self.streams.contains_key(&stream) {
            self.whole(stream, fate, book);
        }
    }

    /// Gives room for more, on a stream and on the connection.
    fn grant(&mut self, stream: u32) {
        if self.owed > 0 && (self.room <= 0 || self.owed > USUAL / 2 || self.dice.one_in(4)) {
            let by = std::mem::take(&mut self.owed);
            self.room += by;
            self.say(WINDOW, 0, 0, &(by as u32).to_be_bytes());
        }
        let now = self.dice.one_in(4);
        let Some(asked) = self.streams.get_mut(&stream) else { return };
        let stuck = asked.room <= 0;
        if !asked.ended && (asked.owed > self.manner.window / 2 || now || stuck) {
            // A stream's window that has shrunk below nothing gets room again.
            let by = std::mem::take(&mut asked.owed).max(if stuck { 1 - asked.room } else { 0 });
            if by > 0 {
                asked.room += by;
                self.say(WINDOW, 0, stream, &(by as u32).to_be_bytes());
            }
        }
    }

    /// A request has arrived as a whole.
    fn whole(&mut self, stream: u32, fate: &Fate, book: &mut Book) {
        let Some(asked) = self.streams.get(&stream) else { return };
        if asked.post && !book.spoiled.contains(&asked.id) {
            book.asked(asked.id);
        }
        match &asked.answer {
            None => self.think(stream, fate, book),
            Some(_) => self.settle(stream),
        }
    }

    fn think(&mut self, stream: u32, fate: &Fate, book: &mut Book) {
        if self.thinks.iter().any(|(other, _)| *other == stream) {
            return;
        }
        let Some(asked) = self.streams.get(&stream) else { return };
        let delay = about(&asked.question(), fate, book).script.delay;
        self.thinks.push((stream, delay));
    }

    /// Gives the answer to a request.
    pub fn answer(&mut self, stream: u32, fate: &Fate, book: &mut Book) {
        let Some(asked) = self.streams.get(&stream) else { return };
        if asked.answer.is_some() {
            return;
        }
        let (head_only, id) = (asked.head_only, asked.id);
        let about = about(&asked.question(), fate, book);
        book.updates(&about.updated, id);
        if let Some(sent) = about.sent {
            book.sends(sent, id);
        }
        let unchanged = about.status == 304;
        let script = about.script;
        for _ in 0..script.interim {
            let mut block = Vec::new();
            field(&mut block, ":status", "103");
            field(&mut block, "link", "</x>");
            self.fields(stream, &block, false);
        }
        let (mut block, len) = (Vec::new(), script.len.to_string());
        field(&mut block, ":status", &about.status.to_string());
        if !unchanged {
            field(&mut block, "x-len", &len);
        }
        for line in about.fields.lines() {
            let (name, value) = line.split_once(": ").expect("a field");
            field(&mut block, &name.to_ascii_lowercase(), value);
        }
        if script.framing == Framing::Length && !unchanged {
            field(&mut block, "content-length", &len);
        }
        let mut body = Vec::new();
        if !head_only {
            pattern::fill(&mut body, about.owner, 0, script.len);
        }
        let breaks = script.breaks.map(|at| (at as usize).min(body.len()));
        let ends = body.is_empty() && breaks.is_none() && self.dice.one_in(2);
        self.fields(stream, &block, ends);
        if let Some(asked) = self.streams.get_mut(&stream) {
            let trailers = script.framing == Framing::Chunked && !head_only;
            let (extra, silent) = (script.extra, ends);
            asked.answer = Some(Answer { body, at: 0, breaks, trailers, extra, silent });
        }
        if script.floods || script.garbled {
            self.rave(stream);
        }
        if ends {
            self.ended(stream);
        }
        if !script.keeps && self.last.is_none() {
            // Requests that came after this one are not served.
            self.last = Some(self.newest);
            let [a, b, c, d] = self.newest.to_be_bytes();
            self.say(GOAWAY, 0, 0, &[a, b, c, d, 0, 0, 0, 0]);
        }
        self.pump();
        self.leave();
    }

    /// Writes fields, in one frame or in several.
    fn fields(&mut self, stream: u32, block: &[u8], ends: bool) {
        let flags = if ends { END_STREAM } else { 0 };
        let at = if self.manner.splits { self.dice.below(block.len()) } else { block.len() };
        let last = at == block.len();
        let whole = if last { END_HEADERS } else { 0 };
        self.say(HEADERS, flags | whole, stream, &block[..at]);
        if !last {
            self.say(CONTINUATION, END_HEADERS, stream, &block[at..]);
        }
    }

    /// Sends what fits into the windows, a piece of each stream in turn.
    pub fn pump(&mut self) {
        while self.wire.left() < AHEAD && self.wire.finish == Finish::Stay {
            let wants = |asked: &Asked, window: i64| {
                asked.answer.as_ref().is_some_and(|a| {
                    let most = a.breaks.unwrap_or(a.body.len());
                    !a.silent && (a.at == most || asked.window > 0 && window > 0)
                })
            };
            let window = self.window;
            let after = self.streams.range(self.sent + 1..).chain(self.streams.range(..=self.sent));
            let mut willing = after.filter(|(_, asked)| wants(asked, window)).map(|(id, _)| *id);
            let Some(stream) = willing.next() else { return };
            self.sent = stream;
            self.piece(stream);
        }
    }

    fn piece(&mut self, stream: u32) {
        let most = 1 + self.dice.below(self.manner.piece);
        let pad = if self.manner.pads { self.dice.below(100) } else { 0 };
        let Some(asked) = self.streams.get_mut(&stream) else { return };
        let Some(answer) = &mut asked.answer else { return };
        let end = answer.breaks.unwrap_or(answer.body.len());
        let room = asked.window.min(self.window).max(0) as usize;
        let pad = if self.manner.pads && room > pad + 1 { pad + 1 } else { 0 };
        let n = most.min(end - answer.at).min(room - pad.min(room)).min(16_384 - pad);
        if n > 0 {
            let mut payload = if pad > 0 { vec![(pad - 1) as u8] } else { Vec::new() };
            payload.extend_from_slice(&answer.body[answer.at..answer.at + n]);
            payload.resize(n + pad, 0);
            answer.at += n;
            asked.window -= (n + pad) as i64;
            self.window -= (n + pad) as i64;
            let all = answer.at == end && answer.breaks.is_none() && !answer.trailers;
            let ends = all && self.dice.one_in(2);
            let flags = if ends { END_STREAM } else { 0 };
            self.say(DATA, flags | if pad > 0 { PADDED } else { 0 }, stream, &payload);
            if ends {
                self.ended(stream);
            }
            return;
        }
        let (breaks, trailers) = (answer.breaks.is_some(), answer.trailers);
        match (breaks, trailers) {
            (true, _) => return self.break_off(stream),
            (_, true) => {
                let mut block = Vec::new();
                field(&mut block, "x-trailer", "t");
                self.fields(stream, &block, true);
            }
            _ => self.say(DATA, END_STREAM, stream, b""),
        }
        self.ended(stream);
    }

    /// An answer was sent as a whole.
    fn ended(&mut self, stream: u32) {
        let Some(asked) = self.streams.get_mut(&stream) else { return };
        let Some(answer) = &mut asked.answer else { return };
        answer.silent = true;
        let (extra, ended) = (answer.extra, asked.ended);
        if extra {
            self.say(DATA, END_STREAM, stream, b"evil");
        }
        if ended {
            self.settle(stream);
        } else if self.dice.one_in(2) {
            // The rest of the request is not wanted.
            self.say(RESET, 0, stream, &[0; 4]);
            self.streams.remove(&stream);
            self.leave();
        }
    }

    /// Forgets a stream if both sides have ended it.
    fn settle(&mut self, stream: u32) {
        let over = |asked: &Asked| asked.ended && asked.answer.as_ref().is_some_and(|a| a.silent);
        if self.streams.get(&stream).is_some_and(over) {
            self.streams.remove(&stream);
        }
        self.leave();
    }

    /// A server that has announced its end closes when all is said.
    fn leave(&mut self) {
        if self.last.is_some() && self.streams.is_empty() {
            self.wire.finish = Finish::Close;
        }
    }

    fn break_off(&mut self, stream: u32) {
        let code = self.dice.pick(&[0, 1, 2, 7, 8, 11, 13]);
        match self.dice.below(5) {
            0 | 1 => {
                self.say(RESET, 0, stream, &[0, 0, 0, code]);
                self.streams.remove(&stream);
                return self.leave();
            }
            2 => {
                // The server has looked at all requests that it has received.
                let [a, b, c, d] = self.newest.to_be_bytes();
                self.say(GOAWAY, 0, 0, &[a, b, c, d, 0, 0, 0, code]);
                self.last = Some(0);
                self.wire.finish = Finish::Close;
            }
            3 => {
                self.say(HEADERS, END_HEADERS, stream, &[0; 100]);
                let len = self.wire.out.len() - 1 - self.dice.below(108);
                self.wire.out.truncate(len);
                self.wire.finish = Finish::Close;
            }
            // The server says nothing more, and waits.
            _ => {}
        }
        if let Some(answer) = self.streams.get_mut(&stream).and_then(|a| a.answer.as_mut()) {
            answer.silent = true;
        }
    }
}
