//! Records for objects that are cached by RFC 9111: each answer, with its request and its time.

use std::collections::{BTreeMap, BTreeSet};

use crate::answer::Message;
use crate::client_request::ClientRequest;
use crate::records::Records;
use crate::rfc9111::{self, AnswerFields, RequestFields, Reuse};

/// An answer with an object, as a server sends it.
#[derive(Clone, Copy, Debug)]
pub struct SentObject {
    pub name: u64,
    pub generation: u64,
    pub told: AnswerFields,
    /// 200, 304 for an unchanged object, or an error.
    pub status: u16,
}

/// An object as a client received it.
struct ReceivedObject {
    id: u64,
    name: u64,
    generation: u64,
    /// The number of the newest answer for it.
    told: u64,
    age: Option<u64>,
    cut_off: bool,
}

/// The records of all objects.
#[derive(Default)]
pub struct Reuses {
    /// Each answer by number, with its request and its time.
    made: BTreeMap<u64, (SentObject, u64, u64)>,
    /// The numbers of complete answers, by name and generation.
    whole: BTreeMap<(u64, u64), u64>,
    /// The cache directives of requests.
    pub said: BTreeMap<u64, RequestFields>,
    /// Requests that a server has answered with an error.
    failed: BTreeSet<u64>,
    /// Requests that changed objects: the objects, and the time of the server's answer.
    updates: BTreeMap<u64, (Vec<u64>, u64)>,
    /// When the clients of these requests received the answer.
    known: BTreeMap<u64, u64>,
    /// The number of reused answers that were checked, and how many of them had been revalidated.
    pub judged: (u64, u64),
}

impl Records {
    /// The number of the next answer with an object. It differs from those of a course before a
    /// crash.
    pub fn told_number(&self) -> u64 {
        self.first * 1_000_000 + self.reuses.made.len() as u64
    }

    /// Records a server's answer with an object. A complete answer ends the generation.
    pub fn sends(&mut self, sent: SentObject, id: u64) {
        let SentObject { name, generation, status, .. } = sent;
        if !matches!(status, 200 | 304) {
            self.reuses.failed.insert(id);
            return;
        }
        let number = self.told_number();
        self.reuses.made.insert(number, (sent, id, self.now));
        if status == 200 {
            self.reuses.whole.insert((name, generation), number);
            self.next_generation(name);
        }
    }

    /// Records a server's answer to a request that changed objects.
    pub fn updates(&mut self, names: &[u64], id: u64) {
        if !names.is_empty() {
            self.reuses.updates.insert(id, (names.to_vec(), self.now));
        }
    }

    /// Records that the client of such a request has its answer.
    pub fn knows_update(&mut self, id: u64) {
        self.reuses.known.insert(id, self.now);
    }

    /// Checks that an answer with an object may be sent for this request.
    pub fn judge_object(&mut self, request: &ClientRequest, answer: &Message) {
        if request.standard.is_none() {
            return;
        }
        let (id, cut_off, status) = (request.id, request.excused, answer.status());
        let (name, generation) = (answer.number("x-name"), answer.number("x-gen"));
        if let (Some(name), Some(generation), Some(told)) =
            (name, generation, answer.number("x-told"))
        {
            let age = answer.number("age");
            self.judge_reuse(ReceivedObject { id, name, generation, told, age, cut_off });
        } else if status >= 500 && !cut_off {
            self.judge_error(id, status);
        }
    }

    /// Checks an error: a server must have sent it, or the request must accept stored answers only.
    fn judge_error(&mut self, id: u64, status: u16) {
        let said = self.reuses.said.get(&id).copied().unwrap_or_default();
        let told = status == 503 && self.reuses.failed.contains(&id);
        if !(told || status == 504 && said.wants_stored()) {
            self.suspect(
                id,
                true,
                format!("request {id} ({said:?}) got {status} without a reason"),
            );
        }
    }

    /// Checks an object that may be a reused one.
    fn judge_reuse(&mut self, got: ReceivedObject) {
        let ReceivedObject { id, name, generation, told, age, cut_off } = got;
        let reuses = &mut self.reuses;
        // Answers from before a crash are not recorded.
        let Some(&(last, asked, at)) = reuses.made.get(&told) else { return };
        let whole = reuses.whole.get(&(name, generation)).and_then(|n| reuses.made.get(n));
        let Some(&(whole, first, _)) = whole else { return };
        if (last.name, last.generation) != (name, generation) {
            let text = format!("request {id} got the head of {last:?} for {name}, {generation}");
            return self.suspect(id, true, text);
        }
        if asked == id {
            return;
        }
        reuses.judged.0 += 1;
        reuses.judged.1 += u64::from(last.status == 304);
        let said = |id| reuses.said.get(&id).copied().unwrap_or_default();
        let begun = self.begun.get(&id).copied().unwrap_or(0);
        // A client that knows of a change must not receive an older answer.
        let outlived = reuses.updates.iter().find(|(update, (names, when))| {
            let known = reuses.known.get(update).is_some_and(|known| *known < begun);
            names.contains(&name) && at < *when && known
        });
        let outlived = outlived.map(|(update, _)| *update);
        let reuse = Reuse {
            whole: (whole.told, said(first)),
            last: (last.told, said(asked)),
            second: said(id),
            since: begun.saturating_sub(at) / 1_000_000_000,
            age,
            failed: reuses.failed.contains(&id),
            cut_off,
            outlived,
        };
        if let Err(why) = rfc9111::judge(&reuse) {
            let text =
                format!("request {id} got what was made for {first}, {asked}, {reuse:?}: {why}");
            self.suspect(id, true, text);
        }
    }
}
