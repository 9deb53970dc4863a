//! Upstream servers over HTTP/2: concurrent requests on a connection, flow control that both sides
//! must respect, and valid behaviour of all kinds.

mod violations;

use std::collections::{BTreeMap, VecDeque};

use weir_proto::http2::hpack::{Decoder, FieldLimits};
use weir_testkit::Dice;

use crate::frames::{self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS};
use crate::frames::{PADDED, PING, PRIORITY, RESET, SETTINGS, WINDOW, frame};
use crate::http1_server::{ServerRequest, answer_plan};
use crate::pattern;
use crate::plan::CoursePlan;
use crate::records::{Framing, Records};
use crate::wire::{Finish, Wire};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The initial window of RFC 9113.
const DEFAULT_WINDOW: i64 = 65_535;
/// A stream that no client opens.
const UNUSED: u32 = 0x7fff_ffff;
/// The most unsent bytes of a server.
const MAX_UNSENT: usize = 48_000;
const LIMITS: FieldLimits = FieldLimits { field: 1 << 20, block: 1 << 20 };

/// A connection to such a server.
pub struct Http2Server {
    pub wire: Wire,
    behaviour: Behaviour,
    preface_done: bool,
    buf: Vec<u8>,
    decoder: Decoder,
    /// A head that is not complete: its stream, whether it ends the stream, and the bytes so far.
    block: Option<(u32, bool, Vec<u8>)>,
    streams: BTreeMap<u32, Asked>,
    newest: u32,
    /// The flow-control windows for sending: of the connection, and the initial one of a stream.
    window: i64,
    initial: i64,
    /// The flow-control window for receiving, received bytes without credit yet, the initial window
    /// that the client has acknowledged, and those that it has not.
    receive_window: i64,
    uncredited: i64,
    acknowledged_window: i64,
    unacknowledged: VecDeque<i64>,
    /// The server ignores streams above this one.
    last: Option<u32>,
    /// The stream that sent last.
    sent: u32,
    dice: Dice,
    /// Streams to answer, each with its delay.
    pub due_answers: Vec<(u32, u64)>,
    pub done: bool,
}

/// The behaviour of a server.
struct Behaviour {
    window: i64,
    most: usize,
    piece: usize,
    pads: bool,
    splits: bool,
    idle_frames: bool,
    /// Whether it may answer before it has read the whole request.
    early: bool,
    /// Whether it reads nothing while it has much to send.
    slow_reader: bool,
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
    request_ended: bool,
    receive_window: i64,
    uncredited: i64,
    window: i64,
    answer: Option<Answer>,
}

impl Asked {
    fn question(&self) -> ServerRequest<'_> {
        let condition = self.condition.as_deref();
        ServerRequest {
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

impl Http2Server {
    /// Bodies of requests have up to `longest` bytes.
    pub fn new(wire: Wire, dice: &mut Dice, longest: u64) -> Http2Server {
        let mut dice = Dice::new(dice.any());
        let d = &mut dice;
        let behaviour = Behaviour {
            window: d.pick(&[1, 100, 10_000, DEFAULT_WINDOW, 1 << 20]).max(longest as i64 / 300),
            most: d.pick(&[1, 2, 10, 100]),
            piece: d.pick(&[1, 100, 5_000, 16_384]).max(longest as usize / 600).min(16_384),
            pads: d.one_in(4),
            splits: d.one_in(4),
            idle_frames: d.one_in(3),
            early: d.one_in(4),
            slow_reader: d.one_in(4),
        };
        let mut origin = Http2Server {
            wire,
            preface_done: false,
            buf: Vec::new(),
            decoder: Decoder::default(),
            block: None,
            streams: BTreeMap::new(),
            newest: 0,
            window: DEFAULT_WINDOW,
            initial: DEFAULT_WINDOW,
            receive_window: DEFAULT_WINDOW,
            uncredited: 0,
            acknowledged_window: DEFAULT_WINDOW,
            unacknowledged: VecDeque::new(),
            last: None,
            sent: 0,
            due_answers: Vec::new(),
            done: false,
            dice,
            behaviour,
        };
        origin.greet();
        origin
    }

    fn write_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        frame(&mut self.wire.out, kind, flags, stream, payload);
    }

    fn greet(&mut self) {
        let [a, b, c, d] = (self.behaviour.window as u32).to_be_bytes();
        let most = self.behaviour.most as u8;
        self.write_frame(SETTINGS, 0, 0, &[0, 4, a, b, c, d, 0, 3, 0, 0, 0, most]);
        self.unacknowledged.push_back(self.behaviour.window);
        if self.dice.one_in(2) {
            self.write_frame(WINDOW, 0, 0, &(1u32 << 20).to_be_bytes());
            self.receive_window += 1 << 20;
        }
    }

    /// Whether it reads nothing now, since it has much to send.
    pub fn is_not_reading(&self) -> bool {
        self.behaviour.slow_reader && self.wire.left() > 20_000
    }

    pub fn receive(&mut self, bytes: &[u8], plan: &CoursePlan, records: &mut Records) {
        self.buf.extend_from_slice(bytes);
        if !self.preface_done {
            let n = self.buf.len().min(PREFACE.len());
            if self.buf[..n] != PREFACE[..n] {
                records.report(format!("a server over HTTP/2 was sent {:?}", &self.buf[..n]));
                self.done = true;
            }
            if n < PREFACE.len() {
                return;
            }
            self.preface_done = true;
            self.buf.drain(..n);
        }
        while !self.done
            && let Some((head, payload)) = frames::take(&mut self.buf)
        {
            self.take(head, &payload, plan, records);
        }
        if self.behaviour.idle_frames && self.dice.one_in(4) {
            self.send_idle_frame();
        }
        self.send_ready();
    }

    /// Sends a valid frame that changes no answer.
    fn send_idle_frame(&mut self) {
        match self.dice.below(4) {
            0 => self.write_frame(PING, 0, 0, b"weirweir"),
            1 => self.write_frame(0xbb, 3, self.newest, b"nobody knows"),
            2 if self.newest > 0 => self.write_frame(PRIORITY, 0, self.newest, &[0, 0, 0, 0, 7]),
            // The settings change windows, also those of open streams.
            _ => {
                let window = (self.behaviour.window / 2).max(1) + self.dice.below(20_000) as i64;
                let [a, b, c, d] = (window as u32).to_be_bytes();
                self.write_frame(SETTINGS, 0, 0, &[0, 4, a, b, c, d]);
                self.unacknowledged.push_back(window);
            }
        }
    }

    fn take(
        &mut self,
        head: frames::Head,
        payload: &[u8],
        plan: &CoursePlan,
        records: &mut Records,
    ) {
        let frames::Head { kind, flags, stream } = head;
        if let Some((id, ..)) = &self.block
            && (kind != CONTINUATION || *id != stream)
        {
            records.report(format!("a server was sent a frame {kind} within a head of {id}"));
        }
        match kind {
            SETTINGS if flags & ACK != 0 => self.settings_acknowledged(records),
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
                self.write_frame(SETTINGS, ACK, 0, b"");
            }
            PING if flags & ACK == 0 => self.write_frame(PING, ACK, 0, payload),
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
                self.head(flags, plan, records);
            }
            CONTINUATION => {
                if let Some((_, _, block)) = &mut self.block {
                    block.extend_from_slice(payload);
                }
                self.head(flags, plan, records);
            }
            DATA => self.body(stream, flags, payload, plan, records),
            RESET => {
                self.streams.remove(&stream);
                self.close_if_done();
            }
            GOAWAY => self.wire.finish = Finish::Close,
            _ => {}
        }
    }

    /// Handles the acknowledgement of settings. The client must respect them from now on.
    fn settings_acknowledged(&mut self, records: &mut Records) {
        let Some(window) = self.unacknowledged.pop_front() else {
            return records.report("settings were acknowledged that were not sent".to_owned());
        };
        let by = window - self.acknowledged_window;
        self.acknowledged_window = window;
        self.streams.values_mut().for_each(|asked| asked.receive_window += by);
        // Streams without credit get some.
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        ids.into_iter().for_each(|id| self.grant(id));
    }

    fn head(&mut self, flags: u8, plan: &CoursePlan, records: &mut Records) {
        if flags & END_HEADERS == 0 {
            return;
        }
        let Some((stream, request_ended, block)) = self.block.take() else { return };
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
            records.report(format!("a server was sent a head of {stream} after {}", self.newest));
            self.done = true;
            return;
        }
        self.newest = stream;
        if self.last.is_some_and(|last| stream > last) {
            return;
        }
        if plan.broken_servers && self.dice.one_in(20) {
            // The server refuses the request without having processed it.
            return self.write_frame(RESET, 0, stream, &[0, 0, 0, 7]);
        }
        let asked = Asked {
            id,
            post: method == "POST",
            updates: method == "PUT",
            head_only: method == "HEAD",
            path,
            condition,
            got: 0,
            request_ended,
            receive_window: self.acknowledged_window,
            uncredited: 0,
            window: self.initial,
            answer: None,
        };
        self.streams.insert(stream, asked);
        let most = self.behaviour.most;
        // Without an acknowledgement the client may not know the settings yet.
        if self.streams.len() > most && self.unacknowledged.is_empty() {
            records.report(format!("{} requests at once, of {most}", self.streams.len()));
        }
        if request_ended {
            self.request_complete(stream, plan, records);
        } else if self.behaviour.early && self.dice.one_in(3) {
            self.schedule_answer(stream, plan, records);
        }
    }

    fn body(
        &mut self,
        stream: u32,
        flags: u8,
        payload: &[u8],
        plan: &CoursePlan,
        records: &mut Records,
    ) {
        let len = payload.len() as i64;
        (self.receive_window, self.uncredited) = (self.receive_window - len, self.uncredited + len);
        let broken_requests = |id| records.broken_requests.contains(&id);
        let mut wrong = (self.receive_window < 0).then_some("on the connection");
        if let Some(asked) = self.streams.get_mut(&stream) {
            (asked.receive_window, asked.uncredited) =
                (asked.receive_window - len, asked.uncredited + len);
            if asked.receive_window < 0 && len > 0 {
                wrong = Some("on its stream");
            }
            if !broken_requests(asked.id)
                && pattern::first_wrong(asked.id, asked.got, payload).is_some()
            {
                wrong = Some("of another");
            }
            asked.got += payload.len() as u64;
            asked.request_ended |= flags & END_STREAM != 0;
        }
        if let Some(what) = wrong {
            records.report(format!("a server was sent {len} bytes too many, {what}"));
        }
        self.grant(stream);
        if flags & END_STREAM != 0 && self.streams.contains_key(&stream) {
            self.request_complete(stream, plan, records);
        }
    }

    /// Gives credit to a stream and to the connection.
    fn grant(&mut self, stream: u32) {
        if self.uncredited > 0
            && (self.receive_window <= 0
                || self.uncredited > DEFAULT_WINDOW / 2
                || self.dice.one_in(4))
        {
            let by = std::mem::take(&mut self.uncredited);
            self.receive_window += by;
            self.write_frame(WINDOW, 0, 0, &(by as u32).to_be_bytes());
        }
        let now = self.dice.one_in(4);
        let Some(asked) = self.streams.get_mut(&stream) else { return };
        let stuck = asked.receive_window <= 0;
        if !asked.request_ended && (asked.uncredited > self.behaviour.window / 2 || now || stuck) {
            // A stream whose window has become negative gets credit again.
            let by = std::mem::take(&mut asked.uncredited).max(if stuck {
                1 - asked.receive_window
            } else {
                0
            });
            if by > 0 {
                asked.receive_window += by;
                self.write_frame(WINDOW, 0, stream, &(by as u32).to_be_bytes());
            }
        }
    }

    /// Handles a complete request.
    fn request_complete(&mut self, stream: u32, plan: &CoursePlan, records: &mut Records) {
        let Some(asked) = self.streams.get(&stream) else { return };
        if asked.post && !records.broken_requests.contains(&asked.id) {
            records.post_arrived(asked.id);
        }
        match &asked.answer {
            None => self.schedule_answer(stream, plan, records),
            Some(_) => self.settle(stream),
        }
    }

    fn schedule_answer(&mut self, stream: u32, plan: &CoursePlan, records: &mut Records) {
        if self.due_answers.iter().any(|(other, _)| *other == stream) {
            return;
        }
        let Some(asked) = self.streams.get(&stream) else { return };
        let delay = answer_plan(&asked.question(), plan, records).script.delay;
        self.due_answers.push((stream, delay));
    }

    /// Answers a request.
    pub fn answer(&mut self, stream: u32, plan: &CoursePlan, records: &mut Records) {
        let Some(asked) = self.streams.get(&stream) else { return };
        if asked.answer.is_some() {
            return;
        }
        let (head_only, id) = (asked.head_only, asked.id);
        let answer_plan = answer_plan(&asked.question(), plan, records);
        records.updates(&answer_plan.updated, id);
        if let Some(sent) = answer_plan.sent {
            records.sends(sent, id);
        }
        let unchanged = answer_plan.status == 304;
        let script = answer_plan.script;
        for _ in 0..script.interim {
            let mut block = Vec::new();
            field(&mut block, ":status", "103");
            field(&mut block, "link", "</x>");
            self.fields(stream, &block, false);
        }
        let (mut block, len) = (Vec::new(), script.len.to_string());
        field(&mut block, ":status", &answer_plan.status.to_string());
        if !unchanged {
            field(&mut block, "x-len", &len);
        }
        for line in answer_plan.fields.lines() {
            let (name, value) = line.split_once(": ").expect("a field");
            field(&mut block, &name.to_ascii_lowercase(), value);
        }
        if script.framing == Framing::Length && !unchanged {
            field(&mut block, "content-length", &len);
        }
        let mut body = Vec::new();
        if !head_only {
            pattern::fill(&mut body, answer_plan.owner, 0, script.len);
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
            self.violate(stream);
        }
        if ends {
            self.answer_ended(stream);
        }
        if !script.keeps && self.last.is_none() {
            // Requests after this one are not served.
            self.last = Some(self.newest);
            let [a, b, c, d] = self.newest.to_be_bytes();
            self.write_frame(GOAWAY, 0, 0, &[a, b, c, d, 0, 0, 0, 0]);
        }
        self.send_ready();
        self.close_if_done();
    }

    /// Sends fields in one frame or in two.
    fn fields(&mut self, stream: u32, block: &[u8], ends: bool) {
        let flags = if ends { END_STREAM } else { 0 };
        let at = if self.behaviour.splits { self.dice.below(block.len()) } else { block.len() };
        let last = at == block.len();
        let request_complete = if last { END_HEADERS } else { 0 };
        self.write_frame(HEADERS, flags | request_complete, stream, &block[..at]);
        if !last {
            self.write_frame(CONTINUATION, END_HEADERS, stream, &block[at..]);
        }
    }

    /// Sends what the windows allow, one piece of each stream in turn.
    pub fn send_ready(&mut self) {
        while self.wire.left() < MAX_UNSENT && self.wire.finish == Finish::Stay {
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
        let most = 1 + self.dice.below(self.behaviour.piece);
        let pad = if self.behaviour.pads { self.dice.below(100) } else { 0 };
        let Some(asked) = self.streams.get_mut(&stream) else { return };
        let Some(answer) = &mut asked.answer else { return };
        let end = answer.breaks.unwrap_or(answer.body.len());
        let credit = asked.window.min(self.window).max(0) as usize;
        let pad = if self.behaviour.pads && credit > pad + 1 { pad + 1 } else { 0 };
        let n = most.min(end - answer.at).min(credit - pad.min(credit)).min(16_384 - pad);
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
            self.write_frame(DATA, flags | if pad > 0 { PADDED } else { 0 }, stream, &payload);
            if ends {
                self.answer_ended(stream);
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
            _ => self.write_frame(DATA, END_STREAM, stream, b""),
        }
        self.answer_ended(stream);
    }

    /// Handles the end of an answer.
    fn answer_ended(&mut self, stream: u32) {
        let Some(asked) = self.streams.get_mut(&stream) else { return };
        let Some(answer) = &mut asked.answer else { return };
        answer.silent = true;
        let (extra, request_ended) = (answer.extra, asked.request_ended);
        if extra {
            self.write_frame(DATA, END_STREAM, stream, b"evil");
        }
        if request_ended {
            self.settle(stream);
        } else if self.dice.one_in(2) {
            // The rest of the request is not needed.
            self.write_frame(RESET, 0, stream, &[0; 4]);
            self.streams.remove(&stream);
            self.close_if_done();
        }
    }

    /// Removes a stream that both sides have ended.
    fn settle(&mut self, stream: u32) {
        let over =
            |asked: &Asked| asked.request_ended && asked.answer.as_ref().is_some_and(|a| a.silent);
        if self.streams.get(&stream).is_some_and(over) {
            self.streams.remove(&stream);
        }
        self.close_if_done();
    }

    /// Closes after GOAWAY, once all streams have ended.
    fn close_if_done(&mut self) {
        if self.last.is_some() && self.streams.is_empty() {
            self.wire.finish = Finish::Close;
        }
    }
}
