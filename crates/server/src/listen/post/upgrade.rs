//! Passes QUIC state to the next program in a binary upgrade, so that connections outlive it. This
//! is the key from which connection ids are made, and the ends of the socket pairs over which loops
//! of both programs pass datagrams to each other. An environment variable has the descriptor
//! numbers.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvFlags, SendFlags};

use super::{Boxes, Post, PostBox};

/// The variable: `KEY;GENERATION;`, then `g:NUMBER,...;` for the loops of a generation and
/// `n:SEND.RECEIVE,...;` for those of the successor.
pub const VARIABLE: &str = "WEIR_QUIC";

/// The parsed variable.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Passed {
    key: i32,
    generation: u16,
    older: Vec<(u16, Vec<i32>)>,
    next: Vec<(i32, i32)>,
}

impl Passed {
    /// Parses the variable. None if it is invalid.
    pub fn read(text: &str) -> Option<Passed> {
        let mut words = text.split_terminator(';');
        let key = words.next()?.parse().ok()?;
        let generation = words.next()?.parse().ok()?;
        let mut passed = Passed { key, generation, ..Passed::default() };
        for word in words {
            let (kind, numbers) = word.split_once(':')?;
            let numbers = numbers.split_terminator(',');
            if kind == "n" {
                for pair in numbers {
                    let (send, receive) = pair.split_once('.')?;
                    passed.next.push((send.parse().ok()?, receive.parse().ok()?));
                }
            } else {
                let ends = numbers.map(|number| number.parse().ok()).collect::<Option<_>>()?;
                passed.older.push((kind.parse().ok()?, ends));
            }
        }
        Some(passed)
    }

    /// Formats the variable.
    fn write(&self) -> String {
        let mut text = format!("{};{};", self.key, self.generation);
        for (generation, ends) in &self.older {
            let _ = write!(text, "{generation}:");
            ends.iter().for_each(|end| _ = write!(text, "{end},"));
            text.push(';');
        }
        text.push_str("n:");
        self.next.iter().for_each(|(send, receive)| _ = write!(text, "{send}.{receive},"));
        text.push(';');
        text
    }

    /// All descriptor numbers.
    pub fn numbers(&self) -> BTreeSet<i32> {
        let older = self.older.iter().flat_map(|(_, ends)| ends).copied();
        let next = self.next.iter().flat_map(|(send, receive)| [*send, *receive]);
        older.chain(next).chain([self.key]).collect()
    }

    /// The [`Post`] that precedes the next configuration. It is empty if a descriptor is missing.
    pub fn post(&self, all: &[Arc<OwnedFd>]) -> Post {
        let find = |number: &i32| all.iter().find(|fd| fd.as_raw_fd() == *number).cloned();
        let pair = |(send, receive): &(i32, i32)| {
            Some(PostBox { send: find(send)?, receive: find(receive)? })
        };
        let older = self.older.iter().map(|(generation, ends)| {
            Some((*generation, ends.iter().map(find).collect::<Option<Vec<_>>>()?))
        });
        let (older, next) = (older.collect(), self.next.iter().map(pair).collect());
        let (Some(older), Some(next), Some(key)) = (older, next, find(&self.key)) else {
            return Post::default();
        };
        let mut bytes = [0; 32];
        #[allow(clippy::disallowed_methods, reason = "one datagram, which is there")]
        let read = rustix::net::recv(&key, &mut bytes, RecvFlags::DONTWAIT);
        if read.is_ok_and(|(n, _)| n == bytes.len()) {
            weir_http::take_host_key(bytes);
        }
        let next = Boxes { generation: self.generation.wrapping_add(1), all: next };
        Post { next, older, ..Post::default() }
    }
}

impl Post {
    /// Calls `start` with the value of [`VARIABLE`], while all descriptors stay open over `execve`.
    /// Without a value if no loop serves QUIC.
    pub fn leave<T>(&self, start: impl FnOnce(Option<String>) -> io::Result<T>) -> io::Result<T> {
        let Some(key) = weir_http::host_key().filter(|_| self.is_used()) else {
            return start(None);
        };
        let carrier = PostBox::new()?;
        #[allow(clippy::disallowed_methods, reason = "one short datagram, without waiting")]
        rustix::net::send(&carrier.send, &key, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        let others = self.own.ends().chain(self.aside.ends());
        let generations: Vec<_> = self.older.iter().cloned().chain(others).collect();
        let number = |fd: &Arc<OwnedFd>| fd.as_raw_fd();
        let ends =
            |(generation, ends): &(u16, Vec<_>)| (*generation, ends.iter().map(number).collect());
        let passed = Passed {
            key: number(&carrier.receive),
            // A successor continues with the number after this one.
            generation: self.next.generation.wrapping_sub(1),
            older: generations.iter().map(ends).collect(),
            next: self
                .next
                .all
                .iter()
                .map(|own| (number(&own.send), number(&own.receive)))
                .collect(),
        };
        let ends = generations.iter().flat_map(|(_, ends)| ends.iter());
        let next = self.next.all.iter().flat_map(|next| [&next.send, &next.receive]);
        let all: Vec<_> = ends.chain(next).chain([&carrier.receive]).collect();
        let keep = |flags| all.iter().try_for_each(|fd| fcntl_setfd(fd.as_fd(), flags));
        let started =
            keep(FdFlags::empty()).map_err(Into::into).and_then(|()| start(Some(passed.write())));
        keep(FdFlags::CLOEXEC)?;
        if started.is_ok() {
            self.left.store(true, Relaxed);
        }
        started
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_all_descriptors() {
        let passed = Passed::read("9;3;2:4,5,;3:6,;n:7.8,10.11,;").unwrap();
        let expected = Passed {
            key: 9,
            generation: 3,
            older: vec![(2, vec![4, 5]), (3, vec![6])],
            next: vec![(7, 8), (10, 11)],
        };
        assert_eq!(passed, expected);
        assert_eq!(passed.write(), "9;3;2:4,5,;3:6,;n:7.8,10.11,;");
        assert_eq!(passed.numbers(), [4, 5, 6, 7, 8, 9, 10, 11].into());
        for wrong in ["", "x;1;", "1;70000;", "1;1;2:x,;", "1;1;n:3,;", "1;1;3"] {
            assert_eq!(Passed::read(wrong), None, "{wrong}");
        }
    }
}
