//! HTTP/0.9 over QUIC, for interoperability tests: a request line, and the body of the answer. nginx: `http3_hq`.

use std::rc::Rc;

use super::Stream;

impl Stream {
    /// Reads bytes of the request line. All bytes behind it are ignored.
    pub(super) fn read_line(self: &Rc<Self>, bytes: &[u8]) {
        self.link.count_received(0, bytes.len());
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
