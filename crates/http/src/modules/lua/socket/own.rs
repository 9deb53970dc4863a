//! What ends with the request or the session of the script that has opened it.

use std::rc::Weak;

/// One such thing.
pub trait CloseWithRequest {
    /// The request or the session has ended.
    fn close_with_request(&self);
}

/// All that a request's or a session's scripts have opened.
#[derive(Default)]
pub struct OwnSockets(Vec<Weak<dyn CloseWithRequest>>);

impl OwnSockets {
    /// One more.
    pub fn add(&mut self, socket: Weak<dyn CloseWithRequest>) {
        let all = &mut self.0;
        if all.len() == all.capacity() {
            // A script that opens one after the other does not pile them up.
            all.retain(|socket| socket.strong_count() > 0);
            all.reserve(all.len() + 1);
        }
        all.push(socket);
    }
}

impl Drop for OwnSockets {
    fn drop(&mut self) {
        // Scripts forget to close what they have opened, and their values may still hold it.
        for socket in self.0.iter().filter_map(Weak::upgrade) {
            socket.close_with_request();
        }
    }
}
