//! Events of the dashboard, and their gzip, which all viewers of a loop share.
//!
//! Consecutive events have nearly the same text. So each is compressed with the previous event as
//! the dictionary, which leaves a sixth of the text. A viewer that received the previous event can
//! decode the piece, whichever event its stream began with. All other viewers, such as a new one,
//! get the event compressed without a dictionary. RFC 1951: blocks may refer to the 32 KiB before
//! them.

use std::cell::OnceCell;
use std::io;

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress};

/// An event that is sent to all viewers, once a second.
pub struct Event {
    number: u64,
    text: Bytes,
    /// The text of the previous event.
    before: Option<Bytes>,
    /// The gzip for viewers that received the previous event, and for all others. Each is made when
    /// a viewer first needs it.
    following: OnceCell<Bytes>,
    alone: OnceCell<Bytes>,
}

impl Event {
    /// The event that follows `before`.
    pub fn after(before: Option<&Event>, json: &str) -> Event {
        // Line ends would split the data of an event. In JSON they are white space.
        let text = format!("data: {}\n\n", json.replace(['\n', '\r'], " "));
        Event {
            number: before.map_or(0, |event| event.number + 1),
            text: text.into(),
            before: before.map(Event::text),
            following: OnceCell::new(),
            alone: OnceCell::new(),
        }
    }

    /// The event for a client without gzip.
    pub fn text(&self) -> Bytes {
        self.text.clone()
    }

    fn piece(&self, has_before: bool) -> io::Result<Bytes> {
        let (cell, dictionary) = match &self.before {
            Some(before) if has_before => (&self.following, &before[..]),
            _ => (&self.alone, &[][..]),
        };
        if let Some(piece) = cell.get() {
            return Ok(piece.clone());
        }
        let piece = deflate(&self.text, dictionary)?;
        Ok(cell.get_or_init(|| piece).clone())
    }
}

/// The gzip stream of one viewer.
#[derive(Default)]
pub struct Gzip {
    /// The number of the last event that was sent.
    last_sent: Option<u64>,
    sum: Crc,
}

/// A gzip header (RFC 1952) without name and time, with an unknown operating system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

impl Gzip {
    /// The bytes that continue this stream with `event`.
    pub fn next(&mut self, event: &Event) -> io::Result<Bytes> {
        let piece = event.piece(self.last_sent.is_some_and(|last| last + 1 == event.number))?;
        let begins = self.last_sent.replace(event.number).is_none();
        self.sum.update(&event.text);
        Ok(if begins { [&HEADER[..], &piece].concat().into() } else { piece })
    }

    /// The end of the stream: an empty last block, the checksum and the length.
    pub fn end(&self) -> Bytes {
        let (sum, length) = (self.sum.sum().to_le_bytes(), self.sum.amount().to_le_bytes());
        [&[3, 0][..], &sum, &length].concat().into()
    }
}

/// Compresses to deflate blocks that end at a byte boundary.
fn deflate(text: &[u8], dictionary: &[u8]) -> io::Result<Bytes> {
    let mut compress = Compress::new(Compression::default(), false);
    if !dictionary.is_empty() {
        compress.set_dictionary(dictionary)?;
    }
    let mut out = Vec::with_capacity(text.len() / 4 + 64);
    loop {
        let rest = text.get(compress.total_in() as usize..).unwrap_or_default();
        compress.compress_vec(rest, &mut out, FlushCompress::Sync)?;
        // The compressor has no more output if it left room in the buffer.
        if out.len() < out.capacity() {
            return Ok(out.into());
        }
        out.reserve(text.len() / 4 + 64);
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::io::Read;

    use super::*;

    /// A snapshot with counting loops. It is long enough for several rounds of output.
    fn json(second: u64) -> String {
        let mut text = "{\n\"loops\":[".to_owned();
        for n in 0..200 {
            let noise = (second * 7919 + n * 104_729) % 99_991;
            let _ =
                write!(text, "{{\"loop\":{n},\r\n\"requests\":{},\"sent\":{noise}}},", second * n);
        }
        text + "]}"
    }

    fn read(stream: &[u8]) -> String {
        let mut text = String::new();
        flate2::read::GzDecoder::new(stream).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn an_event_is_one_line() {
        assert_eq!(&Event::after(None, "{\n\"a\":1\r\n}").text()[..], b"data: { \"a\":1  }\n\n");
    }

    #[test]
    fn viewers_read_the_same_events_whenever_they_join() {
        let mut events = vec![Event::after(None, &json(0))];
        for second in 1..10 {
            let next = Event::after(events.last(), &json(second));
            events.push(next);
        }
        // A viewer from the beginning, a later one, and one that missed events.
        for seen in [(0..10).collect::<Vec<_>>(), vec![4, 5, 6], vec![0, 1, 5, 6, 9]] {
            let mut gzip = Gzip::default();
            let (mut stream, mut text) = (Vec::new(), String::new());
            for at in &seen {
                stream.extend_from_slice(&gzip.next(&events[*at]).unwrap());
                text += std::str::from_utf8(&events[*at].text()).unwrap();
            }
            stream.extend_from_slice(&gzip.end());
            assert_eq!(read(&stream), text, "{seen:?}");
        }
    }

    #[test]
    fn a_piece_behind_another_is_small_and_made_once() {
        let first = Event::after(None, &json(1));
        let second = Event::after(Some(&first), &json(1));
        let mut viewers = [Gzip::default(), Gzip::default()];
        let begun = viewers.each_mut().map(|viewer| viewer.next(&first).unwrap());
        assert_eq!(begun[0], begun[1]);
        let pieces = viewers.each_mut().map(|viewer| viewer.next(&second).unwrap());
        assert_eq!(pieces[0].as_ptr(), pieces[1].as_ptr());
        assert!(pieces[0].len() * 10 < begun[0].len(), "{} {}", pieces[0].len(), begun[0].len());
    }
}
