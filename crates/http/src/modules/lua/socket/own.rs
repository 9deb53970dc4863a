//! Sockets that close with the request or session of the script that opened them.

use std::rc::Weak;

/// A socket that closes with its request or session.
pub trait CloseWithRequest {
    /// The request or session has ended.
    fn close_with_request(&self);
}

/// The sockets that the scripts of a request or session have opened.
#[derive(Default)]
pub struct OwnSockets(Vec<Weak<dyn CloseWithRequest>>);

impl OwnSockets {
    /// Adds a socket.
    pub fn add(&mut self, socket: Weak<dyn CloseWithRequest>) {
        let all = &mut self.0;
        if all.len() == all.capacity() {
            // Removes sockets that are gone, so that a script that opens many in turn does not fill
            // the list.
            all.retain(|socket| socket.strong_count() > 0);
            all.reserve(all.len() + 1);
        }
        all.push(socket);
    }
}

impl Drop for OwnSockets {
    fn drop(&mut self) {
        // Scripts may not close their sockets, and Lua values may still hold them.
        for socket in self.0.iter().filter_map(Weak::upgrade) {
            socket.close_with_request();
        }
    }
}
