//! What is known of cached objects that are kept by the rules of the standard: what was answered, for which request and when.

use std::collections::{BTreeMap, BTreeSet};

use crate::answer::Message;
use crate::book::Book;
use crate::client::Ask;
use crate::rfc::{self, Reuse, Said, Told};

/// An answer about an object, as a server sends it.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub name: u64,
    pub generation: u64,
    pub told: Told,
    /// 200; 304, which says that this generation stands; or an error.
    pub status: u16,
}

/// What a client got of an object.
struct Got {
    id: u64,
    name: u64,
    generation: u64,
    /// The number of the newest answer about it.
    told: u64,
    age: Option<u64>,
    cut_off: bool,
}

/// The answers about objects.
#[derive(Default)]
pub struct Reuses {
    /// By number: each answer, for which request it was made, and when.
    made: BTreeMap<u64, (Sent, u64, u64)>,
    /// The numbers of whole answers, by name and generation.
    whole: BTreeMap<(u64, u64), u64>,
    /// What requests say.
    pub said: BTreeMap<u64, Said>,
    /// Requests that a server has answered with an error.
    failed: BTreeSet<u64>,
    /// Requests that changed objects: which, and when a server said so.
    updates: BTreeMap<u64, (Vec<u64>, u64)>,
    /// When their clients knew.
    known: BTreeMap<u64, u64>,
    /// How often objects were sent a second time, and judged; how many of them a server had found unchanged.
    pub judged: (u64, u64),
}

impl Book {
    /// The number of the next answer about an object: none is that of a course before a crash.
    pub fn told_number(&self) -> u64 {
        self.first * 1_000_000 + self.reuses.made.len() as u64
    }

    /// A server answers a request for an object. After a whole answer the next one is the next generation.
    pub fn sends(&mut self, sent: Sent, id: u64) {
        let Sent { name, generation, status, .. } = sent;
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

    /// A server says that a request has changed objects.
    pub fn updates(&mut self, names: &[u64], id: u64) {
        if !names.is_empty() {
            self.reuses.updates.insert(id, (names.to_vec(), self.now));
        }
    }

    /// The client of such a request has its answer.
    pub fn knows_update(&mut self, id: u64) {
        self.reuses.known.insert(id, self.now);
    }

    /// Checks that this answer may be sent for a request for an object.
    pub fn judge_object(&mut self, ask: &Ask, answer: &Message) {
        if ask.standard.is_none() {
            return;
        }
        let (id, cut_off, status) = (ask.id, ask.excused, answer.status());
        let (name, generation) = (answer.number("x-name"), answer.number("x-gen"));
        if let (Some(name), Some(generation), Some(told)) =
            (name, generation, answer.number("x-told"))
        {
            let age = answer.number("age");
            self.judge_reuse(Got { id, name, generation, told, age, cut_off });
        } else if status >= 500 && !cut_off {
            self.judge_error(id, status);
        }
    }

    /// A request got an error: a server must have said so, or it wants no answer of a server.
    fn judge_error(&mut self, id: u64, status: u16) {
        let said = self.reuses.said.get(&id).copied().unwrap_or_default();
        let told = status == 503 && self.reuses.failed.contains(&id);
        if !(told || status == 504 && said.wants_stored()) {
            self.doubt(id, true, format!("request {id} ({said:?}) got {status} without a reason"));
        }
    }

    /// A request got an object, by the rules of the standard.
    fn judge_reuse(&mut self, got: Got) {
        let Got { id, name, generation, told, age, cut_off } = got;
        let reuses = &mut self.reuses;
        // What was made before a crash is not known.
        let Some(&(last, asked, at)) = reuses.made.get(&told) else { return };
        let whole = reuses.whole.get(&(name, generation)).and_then(|n| reuses.made.get(n));
        let Some(&(whole, first, _)) = whole else { return };
        if (last.name, last.generation) != (name, generation) {
            let text = format!("request {id} got the head of {last:?} for {name}, {generation}");
            return self.doubt(id, true, text);
        }
        if asked == id {
            return;
        }
        reuses.judged.0 += 1;
        reuses.judged.1 += u64::from(last.status == 304);
        let said = |id| reuses.said.get(&id).copied().unwrap_or_default();
        let begun = self.begun.get(&id).copied().unwrap_or(0);
        // A client that knows of a change must not get what was said before it.
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
        if let Err(why) = rfc::judge(&reuse) {
            let text =
                format!("request {id} got what was made for {first}, {asked}, {reuse:?}: {why}");
            self.doubt(id, true, text);
        }
    }
}
