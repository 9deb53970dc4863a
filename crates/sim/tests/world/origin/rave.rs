//! Servers that break the rules of HTTP/2.

use super::{Origin, UNUSED};
use crate::frames::{CONTINUATION, DATA, END_HEADERS, HEADERS, PING, PUSH, SETTINGS, WINDOW};
use weir_testkit::Dice;

impl Origin {
    /// Frames that are forbidden, or not allowed so often.
    pub(super) fn rave(&mut self, stream: u32) {
        let often = |n: usize, d: &mut Dice| d.below(n);
        match self.dice.below(12) {
            0 => self.say(DATA, 0, 0, b"nobody's"),
            1 => self.say(WINDOW, 0, stream, &[0; 4]),
            2 => self.say(WINDOW, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
            3 => self.say(HEADERS, END_HEADERS, stream, &[0xff, 0xff, 0xff]),
            4 => self.say(CONTINUATION, END_HEADERS, stream, b""),
            5 => self.say(PUSH, END_HEADERS, stream, &[0, 0, 0, 2]),
            6 => self.say(SETTINGS, 0, 0, b"abcde"),
            // On a stream that no request has: one that has would take it for its answer.
            7 => self.say(HEADERS, END_HEADERS, UNUSED, &[0x88]),
            8 => self.wire.out.extend_from_slice(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]),
            9 => (0..often(3_000, &mut self.dice.clone()))
                .for_each(|_| self.say(PING, 0, 0, b"weirweir")),
            10 => {
                self.say(HEADERS, 0, stream, b"");
                let n = often(20_000, &mut self.dice.clone());
                (0..n).for_each(|_| self.say(CONTINUATION, 0, stream, b""));
                self.say(CONTINUATION, END_HEADERS, stream, b"");
            }
            _ => (0..often(20_000, &mut self.dice.clone()))
                .for_each(|_| self.say(DATA, 0, stream, b"")),
        }
    }
}
