//! Events of the panel, and their gzip, which all viewers of a loop share.
//!
//! Two events are nearly the same text. So a piece is compressed with the event before it as its dictionary: a sixth of the
//! text remains. A viewer whose stream has that event as its last can read the piece, whatever the stream began with. Others, as
//! one that has just come, get the event compressed alone. RFC 1951: blocks may refer to the 32 KiB before them.

use std::cell::OnceCell;
use std::io;

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress};

/// What is sent to viewers once a second.
pub struct Event {
    number: u64,
    text: Bytes,
    /// The text of the event before.
    before: Option<Bytes>,
    /// Its gzip for viewers that have the one before, and for others; made when the first of these needs it.
    following: OnceCell<Bytes>,
    alone: OnceCell<Bytes>,
}

impl Event {
    /// The event that comes after another.
    pub fn after(before: Option<&Event>, json: &str) -> Event {
        // An event's data may have no line ends in it; in JSON they mean nothing.
        let text = format!("data: {}\n\n", json.replace(['\n', '\r'], " "));
        Event {
            number: before.map_or(0, |event| event.number + 1),
            text: text.into(),
            before: before.map(Event::text),
            following: OnceCell::new(),
            alone: OnceCell::new(),
        }
    }

    /// As a client without gzip gets it.
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
    /// The event that it had last.
    had: Option<u64>,
    sum: Crc,
}

/// RFC 1952: no name, no time, an unknown system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

impl Gzip {
    /// An event as this stream goes on.
    pub fn next(&mut self, event: &Event) -> io::Result<Bytes> {
        let piece = event.piece(self.had.is_some_and(|had| had + 1 == event.number))?;
        let begins = self.had.replace(event.number).is_none();
        self.sum.update(&event.text);
        Ok(if begins { [&HEADER[..], &piece].concat().into() } else { piece })
    }

    /// The end of the stream: an empty last block, the checksum and the length.
    pub fn end(&self) -> Bytes {
        let (sum, length) = (self.sum.sum().to_le_bytes(), self.sum.amount().to_le_bytes());
        [&[3, 0][..], &sum, &length].concat().into()
    }
}

/// Blocks of deflate that end with a whole byte.
fn deflate(text: &[u8], dictionary: &[u8]) -> io::Result<Bytes> {
    let mut compress = Compress::new(Compression::default(), false);
    if !dictionary.is_empty() {
        compress.set_dictionary(dictionary)?;
    }
    let mut out = Vec::with_capacity(text.len() / 4 + 64);
    loop {
        let rest = text.get(compress.total_in() as usize..).unwrap_or_default();
        compress.compress_vec(rest, &mut out, FlushCompress::Sync)?;
        // With room left, all is out.
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

    /// A snapshot of loops that count; long enough to need several rounds of output.
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
    fn each_viewer_reads_the_same_whenever_it_came() {
        let mut events = vec![Event::after(None, &json(0))];
        for second in 1..10 {
            let next = Event::after(events.last(), &json(second));
            events.push(next);
        }
        // One that came first, one that came later, and one that missed some.
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
