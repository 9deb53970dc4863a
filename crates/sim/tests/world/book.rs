//! What is known of every request: what the client asked, what its server was told to do, what went
//! wrong.

use std::collections::{BTreeMap, BTreeSet};

use weir_testkit::Dice;

use crate::reuse::Reuses;

/// How a server frames its answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length,
    Chunked,
    Close,
}

/// What a server does with a request.
#[derive(Clone, Debug)]
pub struct Script {
    pub len: u64,
    pub framing: Framing,
    /// The server breaks off after this many bytes of its answer, head included.
    pub breaks: Option<u64>,
    /// The number of interim answers before the answer.
    pub interim: usize,
    /// After the answer the server sends bytes that belong to no answer.
    pub extra: bool,
    pub keeps: bool,
    /// The server sends an endless extension of a chunk, as fast as it is read.
    pub floods: bool,
    /// The client takes the first half of its body and leaves.
    pub left: bool,
    /// The body has bytes in its middle that are no chunk.
    pub garbled: bool,
    /// The time before the answer.
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

/// What draws an object's answers.
pub fn object_salt(seed: u64, name: u64, generation: u64) -> u64 {
    seed ^ name << 32 ^ generation << 8
}

#[derive(Default)]
pub struct Book {
    /// The time.
    pub now: u64,
    /// When the sending of each request began, at the earliest.
    pub begun: BTreeMap<u64, u64>,
    /// Requests that change something and have arrived at a server as a whole.
    posts: BTreeSet<u64>,
    pub scripts: BTreeMap<u64, Script>,
    /// The first generation of cached objects.
    pub first: u64,
    /// The current generation of each cached object: it grows with each answer.
    generations: BTreeMap<u64, u64>,
    /// What is known of objects that are kept by the rules of the standard.
    pub reuses: Reuses,
    /// How often servers were asked for slices.
    pub slices: u64,
    /// Requests with stray bytes after their bodies.
    pub spoiled: BTreeSet<u64>,
    /// Requests that may have got stray bytes as their answers.
    pub haunted: BTreeSet<u64>,
    /// What is wrong unless the answer was made of stray bytes: the request's id, and whether it
    /// asked for a cached object.
    doubts: Vec<(u64, bool, String)>,
    pub findings: Vec<String>,
    pub answered: u64,
    pub failed: u64,
    pub excused: u64,
    pub verified: u64,
    /// Answers over HTTP/3, and connections whose first packets had requests.
    pub over_quic: u64,
    pub early: u64,
    /// Connections to servers that resumed a session.
    pub resumed: BTreeSet<u64>,
}

impl Book {
    /// Whether the answer to a request, or an object in the cache, may be made of stray bytes.
    fn is_haunted(&self, id: u64, cached: bool) -> bool {
        self.haunted.contains(&id) || cached && !self.haunted.is_empty()
    }

    /// A request that changes something has arrived at a server. It must not arrive a second time.
    pub fn asked(&mut self, id: u64) {
        if !self.posts.insert(id) {
            self.find(format!("request {id} was made twice, and is none that may be"));
        }
    }

    /// The generation of a cached object that a server sends now.
    pub fn generation(&mut self, name: u64) -> u64 {
        *self.generations.entry(name).or_insert(self.first)
    }

    /// Its next answer is the next generation.
    pub fn next_generation(&mut self, name: u64) {
        *self.generations.entry(name).or_insert(self.first) += 1;
    }

    /// Notes a fault in the answer to a request.
    pub fn doubt(&mut self, id: u64, cached: bool, what: String) {
        self.doubts.push((id, cached, what));
    }

    /// Only at the end it is known which answers may have been made of stray bytes.
    pub fn settle(&mut self) {
        for (id, cached, what) in std::mem::take(&mut self.doubts) {
            if !self.is_haunted(id, cached) {
                self.find(what);
            }
        }
    }

    pub fn find(&mut self, what: String) {
        if self.findings.len() < 20 {
            self.findings.push(what);
        }
    }
}
