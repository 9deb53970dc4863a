//! Clients over HTTP/2, which send many requests at once on one connection. They parse frames but
//! not fields. If a request cannot fail, they check each byte of the answer and its length.

use std::collections::BTreeMap;

use weir_testkit::Dice;

use crate::client_request::{ClientRequest, RequestKind};
use crate::frames::{
    self, ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, RESET,
};
use crate::frames::{SETTINGS, WINDOW, frame};
use crate::pattern;
use crate::plan::file_len;
use crate::records::Records;
use crate::wire::{Finish, Wire};

/// A request of the connection.
struct Stream {
    request: ClientRequest,
    seen: u64,
    /// Whether the answer's head has arrived.
    begun: bool,
}

pub struct Multiplexed {
    pub wire: Wire,
    streams: BTreeMap<u32, Stream>,
    unsent: Vec<ClientRequest>,
    number: u32,
    at_once: usize,
    buf: Vec<u8>,
    /// Whether the client resets streams now and then.
    gives_up: bool,
    dice: Dice,
    /// Whether the server takes no more streams.
    last: bool,
    pub done: bool,
}

impl Multiplexed {
    /// `heaviest` is the length of the longest answer.
    pub fn new(
        wire: Wire,
        requests: Vec<ClientRequest>,
        heaviest: u64,
        dice: &mut Dice,
        breaks: bool,
        records: &mut Records,
    ) -> Multiplexed {
        let window = dice.pick(&[100, 10_000, 65_535, 1 << 24]).max(heaviest as u32 / 300);
        let mut client = Multiplexed {
            wire,
            streams: BTreeMap::new(),
            unsent: requests,
            number: 1,
            at_once: dice.pick(&[1, 3, 100]),
            buf: Vec::new(),
            gives_up: breaks && dice.one_in(3),
            dice: Dice::new(dice.any()),
            last: false,
            done: false,
        };
        let out = &mut client.wire.out;
        out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let [a, b, c, d] = window.to_be_bytes();
        frame(out, SETTINGS, 0, 0, &[0, 4, a, b, c, d, 0, 2, 0, 0, 0, 0]);
        client.send_requests(records);
        client
    }

    fn send_requests(&mut self, records: &mut Records) {
        while !self.last
            && self.streams.len() < self.at_once
            && let Some(request) = self.unsent.pop()
        {
            let mut block = Vec::new();
            let (path, id) = (request.path(), request.id.to_string());
            let fields: [(&str, &str); 5] = [
                (":method", request.method()),
                (":scheme", "http"),
                (":path", &path),
                (":authority", "h"),
                ("x-ask", &id),
            ];
            for (name, value) in fields {
                block.extend_from_slice(&[0, name.len() as u8]);
                block.extend_from_slice(name.as_bytes());
                block.push(value.len() as u8);
                block.extend_from_slice(value.as_bytes());
            }
            frame(&mut self.wire.out, HEADERS, END_HEADERS | END_STREAM, self.number, &block);
            records.begun.insert(request.id, records.now);
            self.streams.insert(self.number, Stream { request, seen: 0, begun: false });
            self.number += 2;
        }
        self.done |= self.streams.is_empty();
    }

    pub fn receive(&mut self, bytes: &[u8], records: &mut Records) {
        self.buf.extend_from_slice(bytes);
        while !self.done
            && let Some((head, payload)) = frames::take(&mut self.buf)
        {
            self.take(head.kind, head.flags, head.stream, &payload, records);
        }
        self.send_requests(records);
    }

    fn take(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8], records: &mut Records) {
        match kind {
            SETTINGS if flags & ACK == 0 => frame(&mut self.wire.out, SETTINGS, ACK, 0, b""),
            PING if flags & ACK == 0 => frame(&mut self.wire.out, PING, ACK, 0, payload),
            GOAWAY => {
                self.last = true;
                let last = payload.first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
                self.streams.retain(|id, _| *id <= last);
            }
            RESET => {
                let Some(stream) = self.streams.remove(&id) else { return };
                if stream.request.excused || stream.request.changes && stream.begun {
                    records.excused += 1;
                } else {
                    let (id, path, seen) = (stream.request.id, stream.request.path(), stream.seen);
                    let code = payload.last().copied().unwrap_or(0);
                    let text = format!("reset with {code} after {seen}");
                    stream
                        .request
                        .suspect(records, format!("request {id} {path} over HTTP/2: {text}"));
                }
            }
            DATA | HEADERS => self.answer(kind, flags, id, payload, records),
            _ => {}
        }
    }

    fn answer(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8], records: &mut Records) {
        if kind == DATA && !payload.is_empty() {
            let by = (payload.len() as u32).to_be_bytes();
            frame(&mut self.wire.out, WINDOW, 0, 0, &by);
            if flags & END_STREAM == 0 {
                frame(&mut self.wire.out, WINDOW, 0, id, &by);
            }
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.begun = true;
        let body = match kind {
            DATA if flags & PADDED != 0 => &payload[1..payload.len() - usize::from(payload[0])],
            DATA => payload,
            _ => &[],
        };
        let at = stream.seen;
        stream.seen += body.len() as u64;
        let ended = flags & END_STREAM != 0;
        let known = match stream.request.kind {
            RequestKind::File(name) => Some((pattern::file(name), file_len(name))),
            RequestKind::Proxied => Some((
                stream.request.id,
                records.scripts.get(&stream.request.id).map_or(0, |s| s.len),
            )),
            _ => None,
        };
        if let (Some((owner, len)), false) = (known, stream.request.excused) {
            let (id, path) = (stream.request.id, stream.request.path());
            records.verified += body.len() as u64;
            if let Some(wrong) = pattern::first_wrong(owner, at, body) {
                let text = format!("request {id} {path} over HTTP/2 got wrong bytes at {wrong}");
                stream.request.suspect(records, text);
            }
            let whole = if stream.request.head_only { 0 } else { len };
            if stream.seen > whole || ended && stream.seen != whole {
                let seen = stream.seen;
                let text = format!("request {id} {path} over HTTP/2 got {seen} bytes, not {whole}");
                stream.request.suspect(records, text);
            }
        }
        if ended {
            records.answered += 1;
            self.streams.remove(&id);
        } else if self.gives_up && self.dice.one_in(10) {
            frame(&mut self.wire.out, RESET, 0, id, &8u32.to_be_bytes());
            self.streams.remove(&id);
            if self.dice.one_in(3) {
                self.wire.finish = Finish::Close;
            }
        }
    }

    /// Handles the end of the connection.
    pub fn end(&mut self, how: &str, records: &mut Records) {
        self.done = true;
        for Stream { request, seen, .. } in self.streams.values().filter(|s| !s.request.excused) {
            let text = format!(
                "request {} {} over HTTP/2: {how} after {seen}",
                request.id,
                request.path()
            );
            request.suspect(records, text);
        }
    }

    /// Notes that the worker of the connection was killed.
    pub fn worker_killed(&mut self) {
        self.streams.values_mut().for_each(|stream| stream.request.excused = true);
        self.unsent.iter_mut().for_each(|request| request.excused = true);
    }

    /// Describes what the client waits for.
    pub fn waits_for(&self) -> String {
        let waits =
            |(_, s): (&u32, &Stream)| format!("{} after {} bytes", s.request.path(), s.seen);
        self.streams.iter().map(waits).collect::<Vec<_>>().join(", ")
    }
}
