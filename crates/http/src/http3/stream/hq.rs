//! HTTP/0.9 over QUIC: a line asks, and bytes answer. nginx: `http3_hq`, for tests of QUIC.

use std::rc::Rc;

use super::Stream;

impl Stream {
    /// Takes what came of the line. What follows it means nothing.
    pub(super) fn read_line(self: &Rc<Self>, bytes: &[u8]) {
        self.link.counts(0, bytes.len());
        if self.begun.get() {
            return;
        }
        let most = self.link.server().conf.head_limits.line;
        let mut line = self.section.borrow_mut();
        line.extend_from_slice(bytes);
        match memchr::memchr(b'\n', &line) {
            Some(end) if end < most => line.truncate(end + 1),
            None if line.len() < most => return,
            _ => {
                drop(line);
                return self.link.too_large(self);
            }
        }
        drop(line);
        let line = self.section.take();
        self.link.line(self, &line);
    }
}
