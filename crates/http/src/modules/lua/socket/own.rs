//! The owners of sockets. A socket belongs to the request, session or timer whose script opened it:
//! no other may use it, and it closes when its owner ends.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

/// A socket that has an owner.
pub trait OwnedSocket {
    /// Its owner.
    fn owner(&self) -> &SocketOwner;

    /// The owner has ended.
    fn close_with_owner(&self);
}

type Sockets = RefCell<Vec<Weak<dyn OwnedSocket>>>;

/// The owner of a socket. Without one, any may take the socket.
#[derive(Default)]
pub struct SocketOwner(RefCell<Weak<Sockets>>);

/// The sockets of a request, a session or a timer. They close when this is dropped.
#[derive(Default)]
pub struct OwnSockets(Rc<Sockets>);

impl OwnSockets {
    /// Takes a socket whose owner has ended, or that had none. False if it belongs to another.
    pub fn own<S: OwnedSocket + 'static>(&self, socket: &Rc<S>) -> bool {
        let owner = &socket.owner().0;
        if let Some(known) = owner.borrow().upgrade() {
            return Rc::ptr_eq(&known, &self.0);
        }
        owner.replace(Rc::downgrade(&self.0));
        let weak: Weak<S> = Rc::downgrade(socket);
        self.add(weak);
        true
    }

    fn add(&self, socket: Weak<dyn OwnedSocket>) {
        let mut all = self.0.borrow_mut();
        if all.len() == all.capacity() {
            // Removes sockets that are gone, so that a script that opens many in turn does not fill
            // the list.
            all.retain(|socket| socket.strong_count() > 0);
            let more = all.len() + 1;
            all.reserve(more);
        }
        all.push(socket);
    }
}

impl Drop for OwnSockets {
    fn drop(&mut self) {
        // Scripts may not close their sockets, and Lua values may still hold them.
        for socket in self.0.take().iter().filter_map(Weak::upgrade) {
            socket.close_with_owner();
        }
    }
}
