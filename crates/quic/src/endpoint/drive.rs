//! What connections do in a turn: deadlines, events, and what they send.

use std::rc::Rc;

use weir_engine::{is_spent, spend};

use super::Endpoint;
use super::settings::SEND_WINDOW;
use crate::connection::Connection;

/// What a look at a connection costs.
const LOOK: u32 = 1;

impl Endpoint {
    /// Tells connections whose time has come.
    pub(super) fn expire(&self) {
        let now = self.now();
        loop {
            let first = self.deadlines.borrow().first().copied();
            let Some((_, handle)) = first.filter(|(at, _)| *at <= now) else { return };
            self.deadlines.borrow_mut().pop_first();
            let Some(connection) = self.connections.borrow().get(&handle).cloned() else {
                continue;
            };
            connection.deadline.set(None);
            connection.expire(now);
            self.mark(&connection);
        }
    }

    /// Lets connections that were touched say what they have to say.
    pub(super) fn work(self: &Rc<Self>) {
        if !self.send_waiting() {
            return;
        }
        while !is_spent() {
            let Some(connection) = self.marked.borrow_mut().pop_front() else { return };
            connection.marked.set(false);
            if !self.drive(&connection) {
                self.mark(&connection);
                return;
            }
        }
    }

    /// False if the socket is full.
    pub(super) fn drive(&self, connection: &Rc<Connection>) -> bool {
        // The clock stands still in a turn, and a deadline of pacing may be this very moment again and again.
        spend(LOOK);
        let handle = connection.handle;
        connection.dispatch();
        if connection.is_unshown() && connection.has_shown() {
            self.unshown.update(|n| n.saturating_sub(1));
        }
        let mut sent = self.transmit(connection);
        connection.grow_window(SEND_WINDOW);
        while sent && connection.go_on() && !is_spent() {
            sent = self.transmit(connection);
        }
        // What it tells the endpoint may have an answer, and what it has sent may be the last.
        loop {
            let Some(event) = connection.inner.borrow_mut().poll_endpoint_events() else { break };
            let drained = event.is_drained();
            let answer = self.inner.borrow_mut().handle_event(handle, event);
            if let Some(answer) = answer {
                connection.inner.borrow_mut().handle_event(answer);
                self.mark(connection);
            }
            if drained {
                connection.dispatch();
                self.forget(connection);
                return sent;
            }
        }
        connection.dispatch();
        let next = connection.inner.borrow_mut().poll_timeout();
        let before = connection.deadline.replace(next);
        if before != next {
            let mut deadlines = self.deadlines.borrow_mut();
            if let Some(before) = before {
                deadlines.remove(&(before, handle));
            }
            if let Some(next) = next {
                deadlines.insert((next, handle));
            }
        }
        sent
    }

    pub(super) fn forget(&self, connection: &Connection) {
        if connection.is_unshown() {
            self.unshown.update(|n| n.saturating_sub(1));
        }
        if let Some(before) = connection.deadline.take() {
            self.deadlines.borrow_mut().remove(&(before, connection.handle));
        }
        self.connections.borrow_mut().remove(&connection.handle);
        if self.over.get() {
            self.wake();
        }
    }
}
