//! Records of all requests: what clients requested, how servers are to answer, and what went wrong.

use std::collections::{BTreeMap, BTreeSet};

use weir_testkit::Dice;

use crate::reuse::Reuses;

/// How a server frames the body of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length,
    Chunked,
    Close,
}

/// How a server answers a request.
#[derive(Clone, Debug)]
pub struct Script {
    pub len: u64,
    pub framing: Framing,
    /// The server breaks off after this many bytes of its answer, head included.
    pub breaks: Option<u64>,
    /// The number of interim answers before the answer.
    pub interim: usize,
    /// The server sends further bytes after the answer that belong to none.
    pub extra: bool,
    pub keeps: bool,
    /// The server sends an endless chunk extension, as fast as it is read.
    pub floods: bool,
    /// The script of the client reads half of the body and leaves the rest.
    pub left: bool,
    /// The body has bytes between chunks that are no chunk.
    pub garbled: bool,
    /// The delay before the answer.
    pub delay: u64,
}

impl Script {
    /// A script with this delay and a short answer.
    pub fn plain(delay: u64) -> Script {
        Script {
            len: 10,
            framing: Framing::Length,
            breaks: None,
            interim: 0,
            extra: false,
            keeps: true,
            floods: false,
            left: false,
            garbled: false,
            delay,
        }
    }

    pub fn draw(dice: &mut Dice, longest: u64, broken: bool) -> Script {
        let len = match dice.below(4) {
            0 => dice.below(10) as u64,
            1 => dice.below(5_000) as u64,
            _ => dice.below(longest as usize) as u64,
        };
        let framing =
            dice.pick(&[Framing::Length, Framing::Length, Framing::Chunked, Framing::Close]);
        let breaks = broken && dice.one_in(4);
        let floods = framing == Framing::Chunked && !breaks && broken && dice.one_in(6);
        let garbled = framing == Framing::Chunked && !breaks && !floods && broken && dice.one_in(6);
        Script {
            len,
            framing,
            breaks: breaks.then(|| dice.below(len as usize + 200) as u64),
            interim: if dice.one_in(8) { 1 + dice.below(3) } else { 0 },
            extra: broken && dice.one_in(10) && framing != Framing::Close,
            keeps: framing != Framing::Close && !dice.one_in(4),
            floods,
            left: false,
            garbled,
            delay: dice.pick(&[0, 0, 1_000_000, 300_000_000, 3_000_000_000]),
        }
    }

    pub fn is_sound(&self) -> bool {
        self.breaks.is_none() && !self.floods && !self.garbled
    }
}

/// The seed of an object's answers.
pub fn object_salt(seed: u64, name: u64, generation: u64) -> u64 {
    seed ^ name << 32 ^ generation << 8
}

#[derive(Default)]
pub struct Records {
    /// The world's time.
    pub now: u64,
    /// The earliest time at which each request was sent.
    pub begun: BTreeMap<u64, u64>,
    /// Requests that change something and have completely arrived at a server.
    posts: BTreeSet<u64>,
    pub scripts: BTreeMap<u64, Script>,
    /// The first generation of cached objects.
    pub first: u64,
    /// The current generation of each cached object. Each answer begins a new one.
    generations: BTreeMap<u64, u64>,
    /// Records for objects that are cached by RFC 9111.
    pub reuses: Reuses,
    /// The number of requests for slices.
    pub slices: u64,
    /// Requests followed by stray bytes.
    pub broken_requests: BTreeSet<u64>,
    /// Requests that may have received stray bytes as their answers.
    pub maybe_stray: BTreeSet<u64>,
    /// Faults that are none if the answer consists of stray bytes: the request's id, whether it was
    /// for a cached object, and the text.
    suspected: Vec<(u64, bool, String)>,
    pub findings: Vec<String>,
    pub answered: u64,
    pub failed: u64,
    pub excused: u64,
    pub verified: u64,
    /// Answers over HTTP/3, and connections with accepted early data.
    pub over_quic: u64,
    pub early: u64,
    /// Connections to servers that resumed a session.
    pub resumed: BTreeSet<u64>,
}

impl Records {
    /// Whether the answer to a request, or an object in the cache, may consist of stray bytes.
    fn may_be_stray(&self, id: u64, cached: bool) -> bool {
        self.maybe_stray.contains(&id) || cached && !self.maybe_stray.is_empty()
    }

    /// Records that a request that changes something has arrived at a server. It must not arrive
    /// twice.
    pub fn post_arrived(&mut self, id: u64) {
        if !self.posts.insert(id) {
            self.report(format!("request {id} arrived twice, which changes something"));
        }
    }

    /// The generation of a cached object that a server sends now.
    pub fn generation(&mut self, name: u64) -> u64 {
        *self.generations.entry(name).or_insert(self.first)
    }

    /// Begins the next generation of an object.
    pub fn next_generation(&mut self, name: u64) {
        *self.generations.entry(name).or_insert(self.first) += 1;
    }

    /// Records a fault in the answer to a request. It counts unless the answer may consist of stray
    /// bytes.
    pub fn suspect(&mut self, id: u64, cached: bool, what: String) {
        self.suspected.push((id, cached, what));
    }

    /// Reports recorded faults. Only at the end it is known which answers may consist of stray
    /// bytes.
    pub fn report_suspected(&mut self) {
        for (id, cached, what) in std::mem::take(&mut self.suspected) {
            if !self.may_be_stray(id, cached) {
                self.report(what);
            }
        }
    }

    pub fn report(&mut self, what: String) {
        if self.findings.len() < 20 {
            self.findings.push(what);
        }
    }
}
