//! Clients over HTTP/1, and how they check the answers.

use std::collections::VecDeque;
use std::io::Write;

use flate2::write::GzDecoder;
use weir_testkit::Dice;

use crate::answer::{Message, Side};
use crate::client_request::{ClientRequest, Head, RequestKind};
use crate::pattern;
use crate::plan::CoursePlan;
use crate::records::Records;
use crate::wire::{Finish, Wire};

/// `lingering_time` of the server, in nanoseconds: how long it reads on after an early answer.
const LINGERING_TIME: u64 = 30_000_000_000;

/// HTTP/2 that violates the protocol: a head whose first fields are valid, and frames that are cut
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
    unsent: VecDeque<ClientRequest>,
    in_flight: VecDeque<ClientRequest>,
    pipelines: bool,
    answer: Message,
    /// Decompresses a compressed answer, and the number of decompressed bytes.
    unzip: Option<GzDecoder<Vec<u8>>>,
    plain: u64,
    /// The client leaves after this many bytes of answers.
    leaves: Option<usize>,
    got: usize,
    /// Whether the client sends no more, or has left.
    leaving: bool,
    close_announced: bool,
    /// Whether the client has no more requests.
    idle: bool,
    tainted: bool,
    /// When an answer was complete before the request was.
    early: Option<u64>,
    /// When the client connected, and when its request had completely arrived, if no answer has
    /// begun since.
    pub connected_at: u64,
    pub arrived_at: Option<u64>,
    /// How long the client waited like this while a loop slept.
    pub waited_beside: u64,
    /// The number of answers so far.
    answers: u64,
    pub done: bool,
}

impl Client {
    pub fn new(
        wire: Wire,
        requests: Vec<ClientRequest>,
        dice: &mut Dice,
        plan: &CoursePlan,
        records: &mut Records,
    ) -> Client {
        let leaves = plan.broken_clients && dice.one_in(3);
        let mut client = Client {
            wire,
            unsent: requests.into(),
            in_flight: VecDeque::new(),
            pipelines: dice.one_in(3),
            answer: Message::default(),
            unzip: None,
            plain: 0,
            leaves: leaves.then(|| dice.below(dice.clone().pick(&[10, 1_000, 300_000]))),
            got: 0,
            leaving: false,
            close_announced: false,
            idle: false,
            tainted: false,
            early: None,
            connected_at: 0,
            arrived_at: None,
            waited_beside: 0,
            answers: 0,
            done: false,
        };
        client.send_requests(dice, records);
        if plan.broken_clients && dice.one_in(4) {
            client.break_off(dice, records);
        }
        client
    }

    /// Leaves in the middle of what it sends.
    fn break_off(&mut self, dice: &mut Dice, records: &mut Records) {
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
        self.unsent.clear();
        for request in &mut self.in_flight {
            request.excused = true;
            records.broken_requests.insert(request.id);
        }
    }

    fn send_requests(&mut self, dice: &mut Dice, records: &mut Records) {
        while (self.pipelines || self.in_flight.is_empty())
            && let Some(request) = self.unsent.pop_front()
        {
            request.write(dice, &mut self.wire.out, records);
            records.begun.insert(request.id, records.now);
            self.in_flight.push_back(request);
        }
        if self.unsent.is_empty() && self.in_flight.is_empty() {
            self.done = true;
            self.idle = true;
        }
    }

    /// Parses received bytes of answers.
    pub fn receive(&mut self, mut bytes: &[u8], dice: &mut Dice, records: &mut Records) {
        self.got += bytes.len();
        if self.leaves.is_some_and(|most| self.got >= most) {
            self.done = true;
            return;
        }
        while !bytes.is_empty() {
            let Some(request) = self.in_flight.front() else {
                if !self.leaving {
                    records.report(format!("{} bytes without a request", bytes.len()));
                }
                self.done = true;
                return;
            };
            let had_head = self.answer.has_head();
            let at = self.plain;
            let side = Side::Answer { to_head: request.head_only };
            let (used, body) = self.answer.feed(bytes, side);
            bytes = &bytes[used..];
            if let Some(why) = &self.answer.broken {
                request
                    .suspect(records, format!("request {} {}: {why}", request.id, request.path()));
                self.done = true;
                return;
            }
            let has_head = self.answer.has_head();
            let plain = match self.unzipped(body) {
                Some(Ok(plain)) => plain,
                Some(Err(why)) => {
                    if let Some(request) = self.in_flight.front() {
                        let (id, path) = (request.id, request.path());
                        request.suspect(records, format!("request {id} {path}: compressed, {why}"));
                    }
                    self.done = true;
                    return;
                }
                None => body.to_vec(),
            };
            self.plain += plain.len() as u64;
            if has_head && !had_head {
                self.judge_reuse(records);
            }
            if has_head && (!had_head || !plain.is_empty()) {
                self.judge(at, &plain, records);
            }
            if self.answer.done {
                self.answered(dice, records);
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

    /// Checks that an answer to another request may be reused for this one.
    fn judge_reuse(&self, records: &mut Records) {
        if let Some(request) = self.in_flight.front().filter(|_| !self.leaving) {
            records.judge_object(request, &self.answer);
        }
    }

    /// Checks that these bytes belong to the right answer.
    fn judge(&mut self, at: u64, body: &[u8], records: &mut Records) {
        let Some(request) = self.in_flight.front() else { return };
        let answer = &self.answer;
        let field = |name: &str| answer.field(name).map(Into::into);
        let head = Head { status: answer.status(), field: &field };
        if let Some(mixed) = answer.field("x-site").filter(|site| !is_of_one_site(site)) {
            records.report(format!("request {} {} saw sites {mixed}", request.id, request.path()));
        }
        let text = match request.expected_body(&head) {
            Err(_) if self.leaving => return,
            Err(why) => format!("request {} {} got {why}", request.id, request.path()),
            Ok(Some((owner, from, len))) => {
                records.verified += body.len() as u64;
                let wrong = pattern::first_wrong(owner, from + at, body);
                let whole = answer.done && !request.head_only && self.plain != len;
                match wrong {
                    Some(at) => {
                        format!(
                            "request {} {} got wrong bytes at {at} of {len}: {:?}",
                            request.id,
                            request.path(),
                            answer.lines
                        )
                    }
                    None if self.plain > len || whole && !request.excused => {
                        let (id, path, seen) = (request.id, request.path(), self.plain);
                        format!("request {id} {path} got {seen} bytes instead of {len}")
                    }
                    None => return,
                }
            }
            Ok(None) => return,
        };
        request.suspect(records, text);
        self.done = true;
    }

    fn answered(&mut self, dice: &mut Dice, records: &mut Records) {
        self.judge(0, &[], records);
        let answer = std::mem::take(&mut self.answer);
        (self.unzip, self.plain) = (None, 0);
        // If the server broke off, the connection may be lost although this answer was complete,
        // for example one to HEAD.
        let request = self.in_flight.pop_front();
        self.tainted |= request.as_ref().is_some_and(|request| request.excused);
        if let Some(request) = request.filter(|request| request.updates && answer.status() == 200) {
            records.knows_update(request.id);
        }
        match answer.status() {
            200..300 => records.answered += 1,
            _ => records.failed += 1,
        }
        self.answers += 1;
        self.early = (self.wire.left() > 0).then_some(records.now);
        self.close_announced = answer.field("connection") == Some("close");
        if self.close_announced {
            self.done = true;
        } else if !self.leaving {
            self.send_requests(dice, records);
        }
    }

    /// Handles the end of the connection.
    pub fn end(&mut self, how: &str, records: &mut Records) {
        self.done = true;
        let Some(request) = self.in_flight.front() else { return };
        let close = self.answer.ends_with_connection();
        if self.answer.end() && close {
            return self.judge(0, &[], records);
        }
        let begun = self.answer.begun();
        let lingered = self.early.is_some_and(|at| records.now >= at + LINGERING_TIME);
        let unanswered = self.tainted || lingered;
        if request.excused || self.leaving || unanswered && !begun || request.changes && begun {
            records.excused += 1;
            return;
        }
        let at = if begun {
            format!("broken off after {} bytes of its body", self.answer.seen)
        } else {
            "not answered".to_owned()
        };
        request
            .suspect(records, format!("request {} {}: {at} ({how})", request.id, request.path()));
    }

    /// Notes that the worker of the connection was killed.
    pub fn worker_killed(&mut self) {
        self.in_flight
            .iter_mut()
            .chain(&mut self.unsent)
            .for_each(|request| request.excused = true);
        self.tainted = true;
    }

    /// Whether the client has all its answers on an open connection, so that it may stay for a
    /// while. True once.
    pub fn lingers(&mut self) -> bool {
        let stays = self.idle && !self.close_announced && !self.leaving;
        self.idle = false;
        stays
    }

    /// When the client's next request had completely arrived, if the server has not answered yet.
    /// Only for a client at a request boundary.
    pub fn waits_at_boundary(&self) -> Option<u64> {
        let short =
            self.in_flight.front().is_some_and(|request| request.kind == RequestKind::Short);
        self.arrived_at.filter(|_| self.answers > 0 && self.in_flight.len() == 1 && short)
    }

    /// Describes what the client waits for.
    pub fn waits_for(&self) -> String {
        let request = self.in_flight.front();
        let what = request
            .map_or("nothing".to_owned(), |request| format!("{} {}", request.id, request.path()));
        format!("{what}, {} bytes of its body came", self.answer.seen)
    }
}

/// The site of a request's rewrite phase, if it came so far, and that of its header filters.
fn is_of_one_site(shown: &str) -> bool {
    shown.split_once('/').is_some_and(|(rewritten, sent)| rewritten.is_empty() || rewritten == sent)
}
