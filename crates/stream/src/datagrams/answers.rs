//! Answers to clients, which go out together: a call for many costs less than a call each.

use std::rc::Rc;

use weir_engine::{Datagram, MANY};

use super::LONGEST;
use super::flow::Flow;
use crate::event_loop::LoopState;

/// So many bytes wait at most, before another answer is received behind them.
const ROOM: usize = 32 * 1024;

/// What waits to be sent, until the tasks have run that are to run with the first of it.
#[derive(Default)]
pub struct Answers {
    bytes: Vec<u8>,
    /// Whose they are, all of whom have clients, and where they end.
    waiting: Vec<(Rc<Flow>, usize)>,
}

impl Answers {
    /// Receives one from a session's server, and keeps it in mind until [`LoopState::answer`]: its length.
    pub fn receive(&mut self, server: &Datagram) -> std::io::Result<Option<usize>> {
        let end = self.waiting.last().map_or(0, |(_, end)| *end);
        self.bytes.truncate(end);
        if self.bytes.capacity() == 0 {
            self.bytes.reserve(ROOM + LONGEST);
        }
        server.try_recv(&mut self.bytes)
    }

    fn is_full(&self) -> bool {
        self.waiting.len() == MANY || self.bytes.len() > ROOM
    }

    /// Sends all. What there is no room for is lost, as on any way.
    fn send(&mut self) {
        let mut start = 0;
        for row in self.waiting.chunk_by(|(a, _), (b, _)| a.socket().is(b.socket())) {
            if let [(flow, end)] = row {
                let bytes = self.bytes.get(start..*end).unwrap_or_default();
                if flow.answer(bytes) {
                    flow.passed.down_sent.add(bytes.len() as u64);
                }
                start = *end;
                continue;
            }
            let mut outgoing = Vec::with_capacity(row.len());
            for (flow, end) in row {
                let bytes = self.bytes.get(start..*end).unwrap_or_default();
                outgoing.extend(flow.outgoing(bytes));
                start = *end;
            }
            let Some((first, _)) = row.first() else { continue };
            first.socket().try_send_many(&outgoing, |at| {
                if let (Some((flow, _)), Some(sent)) = (row.get(at), outgoing.get(at)) {
                    flow.passed.down_sent.add(sent.bytes.len() as u64);
                }
            });
        }
        self.waiting.clear();
        self.bytes.clear();
    }
}

impl LoopState {
    /// Sends what was received last to this session's client: at once if it is to be the session's last, or if no other
    /// task is to run that may have more to send.
    pub fn answer(self: &Rc<Self>, flow: &Rc<Flow>, is_last: bool) {
        if !flow.has_client() {
            return;
        }
        let mut answers = self.datagrams.answers.borrow_mut();
        let is_first = answers.waiting.is_empty();
        let end = answers.bytes.len();
        answers.waiting.push((flow.clone(), end));
        if is_last || answers.is_full() || (is_first && !self.handle.others_run()) {
            answers.send();
        } else if is_first {
            let event_loop = self.clone();
            self.handle.spawn(async move { event_loop.send_answers() });
        }
    }

    /// Sends what waits.
    pub fn send_answers(&self) {
        self.datagrams.answers.borrow_mut().send();
    }
}
