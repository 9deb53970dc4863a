//! FastCGI 1.0 as a web server speaks it: one request a connection at a time, with the id 1. nginx:
//! ngx_http_fastcgi_module.c.

use std::fmt;
use std::ops::Range;

use crate::pairs::{Pairs, PendingValue};

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;

/// Bytes of a record's head.
pub const HEAD: usize = 8;
/// The most that a record holds.
pub const LONGEST: usize = 65535;
/// The most that is put into a record of a body: it needs no padding.
pub const PIECE: usize = 65528;

fn head(kind: u8, length: usize, padding: usize) -> [u8; HEAD] {
    let [high, low] = u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
    [1, kind, 0, 1, high, low, padding as u8, 0]
}

/// How many bytes follow `length` so that the next record is aligned.
pub fn padding(length: usize) -> usize {
    length.wrapping_neg() % HEAD
}

/// Begins a request to a responder, which keeps the connection afterwards if `keep`.
pub fn begin(keep: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(&head(BEGIN_REQUEST, 8, 0));
    out.extend_from_slice(&[0, 1, u8::from(keep), 0, 0, 0, 0, 0]);
}

/// Names and values, as they stand in the records of parameters.
#[derive(Debug)]
pub enum Params {}

impl Pairs for Params {
    fn name(name: &[u8], out: &mut Vec<u8>) -> PendingValue {
        match u8::try_from(name.len()) {
            Ok(short @ ..=SHORT) => out.push(short),
            _ => out.extend_from_slice(&long(name.len())),
        }
        let length = out.len();
        out.push(0);
        out.extend_from_slice(name);
        PendingValue { length, start: out.len() }
    }

    fn end(value: PendingValue, out: &mut Vec<u8>) {
        let length = out.len().saturating_sub(value.start);
        match (u8::try_from(length), out.get_mut(value.length)) {
            (Ok(short @ ..=SHORT), Some(place)) => *place = short,
            _ => drop(out.splice(value.length..=value.length, long(length))),
        }
    }
}

/// The longest name or value with a length of one byte.
const SHORT: u8 = 127;

/// How a longer one says it.
fn long(length: usize) -> [u8; 4] {
    (length as u32 | 1 << 31).to_be_bytes()
}

/// Makes a record of the parameters from `start` on. Its head fills the room before them. Ends
/// their stream. The error is their length, if it is more than a record holds.
pub fn end_params(start: usize, out: &mut Vec<u8>) -> Result<(), usize> {
    let length = out.len().saturating_sub(start);
    if length > LONGEST {
        return Err(length);
    }
    let padding = padding(length);
    if length > 0
        && let Some(room) = out.get_mut(start.saturating_sub(HEAD)..start)
    {
        room.copy_from_slice(&head(PARAMS, length, padding));
        out.resize(out.len() + padding, 0);
        out.extend_from_slice(&head(PARAMS, 0, 0));
    } else if let Some(room) = out.get_mut(start.saturating_sub(HEAD)..start) {
        room.copy_from_slice(&head(PARAMS, 0, 0));
    }
    Ok(())
}

/// The head of a piece of the body, which has at most [`LONGEST`] bytes and [`padding`] behind it.
pub fn stdin(length: usize) -> [u8; HEAD] {
    head(STDIN, length, padding(length))
}

/// Ends the body.
pub const STDIN_END: [u8; HEAD] = [1, STDIN, 0, 1, 0, 0, 0, 0];

/// Why records are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// Another version than 1.
    Version(u8),
    /// A type that no responder sends.
    Type(u8),
    /// A byte of the request's id, and whether it is the high one.
    Id(u8, bool),
    /// Output behind its end.
    AfterEnd,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Version(byte) => {
                write!(f, "upstream sent unsupported FastCGI protocol version: {byte}")
            }
            RecordError::Type(byte) => {
                write!(f, "upstream sent invalid FastCGI record type: {byte}")
            }
            RecordError::Id(byte, high) => {
                let which = if *high { "high" } else { "low" };
                write!(f, "upstream sent unexpected FastCGI request id {which} byte: {byte}")
            }
            RecordError::AfterEnd => f.write_str("upstream sent FastCGI stdout after its end"),
        }
    }
}

/// What some of the bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordPart {
    /// Of no interest, or not complete.
    Nothing,
    /// Output.
    Out(Range<usize>),
    /// Messages for the log.
    Err(Range<usize>),
    /// The output is complete.
    OutEnd,
    /// The request is over: what follows is not its own.
    End,
}

/// Takes records apart, at any pace.
#[derive(Clone, Debug, Default)]
pub struct Records {
    head: [u8; HEAD],
    /// Bytes of the head that have come.
    had: usize,
    /// Bytes left of the record's content, and of what stands behind it.
    left: usize,
    padding: usize,
    out_ended: bool,
    ended: bool,
}

impl Records {
    /// No byte of a record has come yet, of which more would have to follow.
    pub fn is_between(&self) -> bool {
        self.had == 0
    }

    /// The content of the last record is complete.
    pub fn is_whole(&self) -> bool {
        self.left == 0
    }

    /// Reads on: how many of the bytes were taken, and what they are. With no bytes left nothing is.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<(usize, RecordPart), RecordError> {
        if self.ended {
            return Ok((0, RecordPart::End));
        }
        if self.had < HEAD {
            return self.read_head(bytes);
        }
        if self.left > 0 {
            let taken = self.left.min(bytes.len());
            self.left -= taken;
            let part = match self.head[1] {
                _ if taken == 0 => RecordPart::Nothing,
                STDOUT => RecordPart::Out(0..taken),
                STDERR => RecordPart::Err(0..taken),
                _ => RecordPart::Nothing,
            };
            return Ok((taken, self.after(part)));
        }
        let taken = self.padding.min(bytes.len());
        self.padding -= taken;
        Ok((taken, self.after(RecordPart::Nothing)))
    }

    fn read_head(&mut self, bytes: &[u8]) -> Result<(usize, RecordPart), RecordError> {
        let taken = (HEAD - self.had).min(bytes.len());
        match bytes.first_chunk::<HEAD>() {
            // Nearly always: the head is there whole, and as it should be.
            Some(head @ [1, END_REQUEST | STDOUT | STDERR, 0, 1, ..]) if self.had == 0 => {
                (self.head, self.had) = (*head, HEAD);
            }
            _ => {
                for byte in bytes.iter().take(taken) {
                    self.check(*byte)?;
                    self.head[self.had] = *byte;
                    self.had += 1;
                }
            }
        }
        if self.had < HEAD {
            return Ok((taken, RecordPart::Nothing));
        }
        let [_, kind, _, _, high, low, padding, _] = self.head;
        self.left = usize::from(u16::from_be_bytes([high, low]));
        self.padding = usize::from(padding);
        let part = match kind {
            STDOUT if self.left == 0 && !self.out_ended => {
                self.out_ended = true;
                RecordPart::OutEnd
            }
            STDOUT if self.left > 0 && self.out_ended => return Err(RecordError::AfterEnd),
            _ => RecordPart::Nothing,
        };
        Ok((taken, self.after(part)))
    }

    /// Each byte of a head is judged when it comes: a peer that speaks something else is told from one that is slow.
    fn check(&self, byte: u8) -> Result<(), RecordError> {
        match (self.had, byte) {
            (0, 1) | (1, END_REQUEST | STDOUT | STDERR) | (2, 0) | (3, 1) => Ok(()),
            (0, _) => Err(RecordError::Version(byte)),
            (1, _) => Err(RecordError::Type(byte)),
            (2, _) => Err(RecordError::Id(byte, true)),
            (3, _) => Err(RecordError::Id(byte, false)),
            _ => Ok(()),
        }
    }

    /// Where the record is complete, the next one begins.
    fn after(&mut self, part: RecordPart) -> RecordPart {
        if self.left > 0 || self.padding > 0 {
            return part;
        }
        self.had = 0;
        if self.head[1] == END_REQUEST {
            self.ended = true;
            return RecordPart::End;
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a responder sends: records of these types and contents.
    fn records(list: &[(u8, Vec<u8>, u8)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, content, padding) in list {
            out.extend_from_slice(&head(*kind, content.len(), usize::from(*padding)));
            out.extend_from_slice(content);
            out.resize(out.len() + usize::from(*padding), b'x');
        }
        out
    }

    /// Output, messages, whether it is over, and how many bytes were taken.
    fn read(bytes: &[u8], piece: usize) -> Result<(Vec<u8>, Vec<u8>, bool, usize), RecordError> {
        let (mut decoder, mut at, mut received) = (Records::default(), 0, 0);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            let seen = &bytes[at..received];
            let (taken, part) = decoder.decode(seen)?;
            match part {
                RecordPart::Out(range) => out.extend_from_slice(&seen[range]),
                RecordPart::Err(range) => err.extend_from_slice(&seen[range]),
                RecordPart::End => return Ok((out, err, true, at + taken)),
                RecordPart::OutEnd | RecordPart::Nothing => {}
            }
            at += taken;
            if taken == 0 && received == bytes.len() {
                return Ok((out, err, false, at));
            }
            if taken == 0 {
                received = bytes.len().min(received + piece);
            }
        }
    }

    #[test]
    fn a_request_is_as_the_specification_says() {
        let mut out = Vec::new();
        begin(true, &mut out);
        assert_eq!(out, [1, 1, 0, 1, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]);
        out.clear();
        out.resize(HEAD, 0);
        Params::pair(b"A", b"bc", &mut out);
        Params::pair(b"D", &[b'x'; 128], &mut out);
        assert_eq!(&out[HEAD..HEAD + 11], [1, 2, b'A', b'b', b'c', 1, 0x80, 0, 0, 128, b'D']);
        assert_eq!(end_params(HEAD, &mut out), Ok(()));
        assert_eq!(&out[..HEAD], [1, 4, 0, 1, 0, 139, 5, 0]);
        assert_eq!(out.len(), HEAD + 139 + 5 + HEAD);
        assert_eq!(stdin(5), [1, 5, 0, 1, 0, 5, 3, 0]);
    }

    #[test]
    fn parameters_of_more_than_a_record_are_refused() {
        let mut out = vec![0; HEAD];
        Params::pair(b"A", &[0; LONGEST], &mut out);
        assert_eq!(end_params(HEAD, &mut out), Err(1 + 4 + 1 + LONGEST));
    }

    #[test]
    fn no_parameters_are_an_empty_stream() {
        let mut out = vec![0; HEAD];
        assert_eq!(end_params(HEAD, &mut out), Ok(()));
        assert_eq!(out, [1, 4, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let cases: [(&[u8], RecordError); 5] = [
            (b"HTTP/1.1", RecordError::Version(b'H')),
            (&[1, 9], RecordError::Type(9)),
            (&[1, 6, 1], RecordError::Id(1, true)),
            (&[1, 6, 0, 2], RecordError::Id(2, false)),
            (&[1, 6, 0, 1, 0, 0, 0, 0, 1, 6, 0, 1, 0, 1, 0, 0], RecordError::AfterEnd),
        ];
        for (bytes, error) in cases {
            assert_eq!(read(bytes, 1), Err(error));
        }
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            list in proptest::collection::vec(
                (prop_oneof![Just(STDOUT), Just(STDERR)],
                 proptest::collection::vec(any::<u8>(), 1..300),
                 any::<u8>()),
                0..8,
            ),
            piece in 1usize..400,
        ) {
            let mut all = list.clone();
            all.push((STDOUT, Vec::new(), 3));
            all.push((END_REQUEST, vec![0; 8], 5));
            let bytes = records(&all);
            let of = |kind| list.iter().filter(|r| r.0 == kind).flat_map(|r| r.1.clone()).collect();
            let (out, err): (Vec<u8>, Vec<u8>) = (of(STDOUT), of(STDERR));
            prop_assert_eq!(read(&bytes, piece), Ok((out.clone(), err.clone(), true, bytes.len())));
            let more = [bytes.as_slice(), b"more"].concat();
            prop_assert_eq!(read(&more, piece), Ok((out, err, true, bytes.len())));
        }
    }
}
