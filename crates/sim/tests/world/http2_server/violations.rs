//! Servers that violate HTTP/2.

use super::{Http2Server, UNUSED};
use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, PING, PUSH, RESET, SETTINGS, WINDOW,
};
use crate::wire::Finish;
use weir_testkit::Dice;

impl Http2Server {
    /// Sends frames that are invalid, or too many of them.
    pub(super) fn violate(&mut self, stream: u32) {
        let often = |n: usize, d: &mut Dice| d.below(n);
        match self.dice.below(12) {
            0 => self.write_frame(DATA, 0, 0, b"nobody's"),
            1 => self.write_frame(WINDOW, 0, stream, &[0; 4]),
            2 => self.write_frame(WINDOW, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
            3 => self.write_frame(HEADERS, END_HEADERS, stream, &[0xff, 0xff, 0xff]),
            4 => self.write_frame(CONTINUATION, END_HEADERS, stream, b""),
            5 => self.write_frame(PUSH, END_HEADERS, stream, &[0, 0, 0, 2]),
            6 => self.write_frame(SETTINGS, 0, 0, b"abcde"),
            // On a stream without a request: a client would take it for the answer to one.
            7 => self.write_frame(HEADERS, END_HEADERS, UNUSED, &[0x88]),
            8 => self.wire.out.extend_from_slice(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]),
            9 => (0..often(3_000, &mut self.dice.clone()))
                .for_each(|_| self.write_frame(PING, 0, 0, b"weirweir")),
            10 => {
                self.write_frame(HEADERS, 0, stream, b"");
                let n = often(20_000, &mut self.dice.clone());
                (0..n).for_each(|_| self.write_frame(CONTINUATION, 0, stream, b""));
                self.write_frame(CONTINUATION, END_HEADERS, stream, b"");
            }
            _ => (0..often(20_000, &mut self.dice.clone()))
                .for_each(|_| self.write_frame(DATA, 0, stream, b"")),
        }
    }

    /// Breaks an answer off in one of several ways.
    pub(super) fn break_off(&mut self, stream: u32) {
        let code = self.dice.pick(&[0, 1, 2, 7, 8, 11, 13]);
        match self.dice.below(5) {
            0 | 1 => {
                self.write_frame(RESET, 0, stream, &[0, 0, 0, code]);
                self.streams.remove(&stream);
                return self.close_if_done();
            }
            2 => {
                // The server has processed all requests that it has received.
                let [a, b, c, d] = self.newest.to_be_bytes();
                self.write_frame(GOAWAY, 0, 0, &[a, b, c, d, 0, 0, 0, code]);
                self.last = Some(0);
                self.wire.finish = Finish::Close;
            }
            3 => {
                self.write_frame(HEADERS, END_HEADERS, stream, &[0; 100]);
                let len = self.wire.out.len() - 1 - self.dice.below(108);
                self.wire.out.truncate(len);
                self.wire.finish = Finish::Close;
            }
            // The server sends nothing more and keeps the stream open.
            _ => {}
        }
        if let Some(answer) = self.streams.get_mut(&stream).and_then(|a| a.answer.as_mut()) {
            answer.silent = true;
        }
    }
}
