//! The steps of connections in a turn of the loop: timeouts, events, transmits.

use std::rc::Rc;
use std::time::Instant;

use quinn_proto::{ConnectionError, EndpointEvent};
use weir_engine::{is_spent, spend};

use super::Endpoint;
use super::settings::SEND_WINDOW;
use crate::connection::Connection;

/// Points of the task's budget for each step of a connection.
const LOOK: u32 = 1;

impl Endpoint {
    /// Handles the timeouts that are due.
    pub(super) fn handle_timeouts(&self) {
        let now = self.now();
        loop {
            let first = self.deadlines.borrow().first().copied();
            let Some((_, handle)) = first.filter(|(at, _)| *at <= now) else { return };
            self.deadlines.borrow_mut().pop_first();
            let Some(connection) = self.connections.borrow().get(&handle).cloned() else {
                continue;
            };
            connection.queued_deadline.set(None);
            match connection.deadline.get() {
                Some(at) if at <= now => {
                    connection.deadline.set(None);
                    self.guard(&connection, || {
                        connection.handle_timeout(now);
                        self.mark(&connection);
                    });
                }
                // The deadline was moved to a later time.
                later => self.queue_deadline(&connection, later),
            }
        }
    }

    /// Queues the connection's deadline. A deadline that moves to a later time keeps its entry until that fires: most deadlines
    /// move with each packet.
    fn queue_deadline(&self, connection: &Connection, deadline: Option<Instant>) {
        let queued = connection.queued_deadline.get();
        let Some(next) = deadline.filter(|next| queued.is_none_or(|queued| *next < queued)) else {
            return;
        };
        connection.queued_deadline.set(Some(next));
        let mut deadlines = self.deadlines.borrow_mut();
        if let Some(before) = queued {
            deadlines.remove(&(before, connection.handle));
        }
        deadlines.insert((next, connection.handle));
    }

    /// Dispatches the events of connections that have received packets. True if there were any: then tasks should run before
    /// the connections are driven, so that their data and the acknowledgements share packets.
    pub(super) fn dispatch_events(&self) -> bool {
        let mut any = false;
        while !is_spent() {
            let Some(connection) = self.marked.borrow().get(self.dispatched.get()).cloned() else {
                // A connection that is marked from now on has data to send.
                self.dispatched.set(usize::MAX);
                break;
            };
            self.dispatched.update(|n| n + 1);
            if connection.undispatched.replace(false) && !connection.forgotten.get() {
                any |= self.guard(&connection, || connection.dispatch_events()).unwrap_or_default();
            }
        }
        any
    }

    /// Drives marked connections whose events were dispatched, while the budget lasts and the socket is writable.
    pub(super) fn drive_marked(self: &Rc<Self>) {
        self.has_backlog.set(false);
        if !self.send_waiting() {
            return;
        }
        while !is_spent()
            && let Some(left) = self.dispatched.get().checked_sub(1)
        {
            let Some(connection) = self.marked.borrow_mut().pop_front() else { return };
            self.dispatched.set(left);
            connection.marked.set(false);
            if connection.forgotten.get() {
                continue;
            }
            let sent = self.guard(&connection, || self.drive(&connection));
            if sent == Some(false) {
                self.mark(&connection);
                return;
            }
        }
        self.has_backlog.set(!self.marked.borrow().is_empty());
    }

    /// Marks the connections whose paused streams were resumed. True if there were any: then tasks should run first.
    pub(super) fn mark_resumed(&self) -> bool {
        let resumed = self.resumed.take();
        resumed.iter().for_each(|connection| self.mark(connection));
        !resumed.is_empty()
    }

    /// Dispatches a connection's events, sends its datagrams and queues its deadline. False if the socket's send buffer is full.
    pub(super) fn drive(&self, connection: &Rc<Connection>) -> bool {
        // The loop's clock stands still in a turn. A pacing deadline may be due again and again, so each step costs budget.
        spend(LOOK);
        let handle = connection.handle;
        connection.dispatch_events();
        if connection.is_unvalidated() && connection.check_validated() {
            self.unvalidated.update(|n| n.saturating_sub(1));
        }
        let mut sent = self.transmit(connection);
        connection.adjust_send_window(SEND_WINDOW);
        while sent && connection.resume_paused() && !is_spent() {
            sent = self.transmit(connection);
        }
        // quinn's endpoint may answer an event of the connection. The last event says that the connection is drained.
        loop {
            let Some(event) = connection.inner.borrow_mut().poll_endpoint_events() else { break };
            let drained = event.is_drained();
            let answer = self.inner.borrow_mut().handle_event(handle, event);
            if let Some(answer) = answer {
                connection.inner.borrow_mut().handle_event(answer);
                self.mark(connection);
            }
            if drained {
                connection.dispatch_events();
                self.forget(connection);
                return sent;
            }
        }
        connection.dispatch_events();
        let next = connection.inner.borrow_mut().poll_timeout();
        connection.deadline.set(next);
        self.queue_deadline(connection, next);
        sent
    }

    /// Takes a step of a connection. A panic removes this connection only, without a CONNECTION_CLOSE: its state may be
    /// inconsistent. The client's next packet gets a stateless reset (RFC 9000, section 10.3).
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

    /// Removes a connection from all tables.
    pub(super) fn forget(&self, connection: &Connection) {
        connection.forgotten.set(true);
        if connection.is_unvalidated() {
            self.unvalidated.update(|n| n.saturating_sub(1));
        }
        if connection.makes_room.get() {
            self.making_room.update(|n| n.saturating_sub(1));
        }
        if let Some(before) = connection.queued_deadline.take() {
            self.deadlines.borrow_mut().remove(&(before, connection.handle));
        }
        self.connections.borrow_mut().remove(&connection.handle);
        // Breaks the reference cycle with the application protocol.
        drop(connection.events.take());
        if self.ending.get() {
            self.wake();
        }
    }
}
