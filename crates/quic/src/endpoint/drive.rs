//! What connections do in a turn: deadlines, events, and what they send.

use std::rc::Rc;
use std::time::Instant;

use quinn_proto::{ConnectionError, EndpointEvent};
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
            connection.listed.set(None);
            match connection.deadline.get() {
                Some(at) if at <= now => {
                    connection.deadline.set(None);
                    self.guard(&connection, || {
                        connection.expire(now);
                        self.mark(&connection);
                    });
                }
                // It was put off since.
                later => self.list(&connection, later),
            }
        }
    }

    /// Sees to it that the connection's deadline is not missed. One that is put off stands where it was until then: most are put
    /// off with each packet.
    fn list(&self, connection: &Connection, deadline: Option<Instant>) {
        let listed = connection.listed.get();
        let Some(next) = deadline.filter(|next| listed.is_none_or(|listed| *next < listed)) else {
            return;
        };
        connection.listed.set(Some(next));
        let mut deadlines = self.deadlines.borrow_mut();
        if let Some(before) = listed {
            deadlines.remove(&(before, connection.handle));
        }
        deadlines.insert((next, connection.handle));
    }

    /// Tells the protocol above of what has come. True if it has heard something: what it answers at once leaves together with
    /// the acknowledgement of what has come.
    pub(super) fn hear(&self) -> bool {
        let mut told = false;
        while !is_spent() {
            let Some(connection) = self.marked.borrow().get(self.heard.get()).cloned() else {
                // What is marked from now on has something to say itself.
                self.heard.set(usize::MAX);
                break;
            };
            self.heard.update(|heard| heard + 1);
            if connection.came.replace(false) && !connection.over.get() {
                told |= self.guard(&connection, || connection.dispatch()).unwrap_or_default();
            }
        }
        told
    }

    /// Lets connections that were touched say what they have to say. Those that the protocol above has not heard of yet come later.
    pub(super) fn work(self: &Rc<Self>) {
        self.behind.set(false);
        if !self.send_waiting() {
            return;
        }
        while !is_spent()
            && let Some(heard) = self.heard.get().checked_sub(1)
        {
            let Some(connection) = self.marked.borrow_mut().pop_front() else { return };
            self.heard.set(heard);
            connection.marked.set(false);
            if connection.over.get() {
                continue;
            }
            let sent = self.guard(&connection, || self.drive(&connection));
            if sent == Some(false) {
                self.mark(&connection);
                return;
            }
        }
        self.behind.set(!self.marked.borrow().is_empty());
    }

    /// Marks connections again whose streams were to write more first. True if there are any.
    pub(super) fn resume(&self) -> bool {
        let later = self.later.take();
        later.iter().for_each(|connection| self.mark(connection));
        !later.is_empty()
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
        connection.deadline.set(next);
        self.list(connection, next);
        sent
    }

    /// Takes a step of a connection. A panic ends the connection, and no other: what quinn or the protocol above has of it may be
    /// anything then. To its client it is unknown from then on (RFC 9000 section 10.3).
    pub(super) fn guard<T>(
        &self,
        connection: &Rc<Connection>,
        step: impl FnOnce() -> T,
    ) -> Option<T> {
        let mut done = None;
        self.handle.guard(|| done = Some(step()));
        if done.is_none() {
            let events = connection.events.borrow().clone();
            self.handle
                .guard(|| events.iter().for_each(|e| e.lost(&ConnectionError::LocallyClosed)));
            let drained = EndpointEvent::drained();
            self.handle.guard(|| {
                self.inner.borrow_mut().handle_event(connection.handle, drained);
            });
            self.forget(connection);
        }
        done
    }

    pub(super) fn forget(&self, connection: &Connection) {
        connection.over.set(true);
        if connection.is_unshown() {
            self.unshown.update(|n| n.saturating_sub(1));
        }
        if connection.makes_room.get() {
            self.making_room.update(|n| n.saturating_sub(1));
        }
        if let Some(before) = connection.listed.take() {
            self.deadlines.borrow_mut().remove(&(before, connection.handle));
        }
        self.connections.borrow_mut().remove(&connection.handle);
        // The protocol above has the connection, and the connection has it.
        drop(connection.events.take());
        if self.over.get() {
            self.wake();
        }
    }
}
