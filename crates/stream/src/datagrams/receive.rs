//! Receiving: each datagram finds its session, or begins one.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use weir_engine::{Answering, Datagram, Received};
use weir_log::{Cause, Level};
use weir_metrics::Metric;
use weir_values::Address;

use super::flow::{Delivered, Ends, Flow, Over};
use super::table::{FlowStart, FlowTable};
use super::{DatagramPort, FlowGuard, FlowKey, LONGEST, Leaving, REST};
use crate::event_loop::LoopState;
use crate::serve;

/// What a look at a socket came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// Nothing was there.
    Nothing,
    /// A datagram.
    Some,
    /// A datagram that waits for its session's server. The session's task has yet to run, and mostly knows the server at
    /// once. Until then the rest stays in the socket, where there is more room.
    Waits,
}

/// What the loop calls.
impl LoopState {
    /// Receives from the socket of this number, for at most `most` sessions of datagrams in the whole loop.
    pub fn receives(self: &Rc<Self>, fd: Arc<OwnedFd>, listen: usize, most: usize) {
        let sessions = &self.datagrams;
        if sessions.ports.borrow().is_empty() {
            sessions.table.replace(FlowTable::new(most));
        }
        let socket = match self.handle.datagram_shared(fd.clone()) {
            Ok(socket) => Rc::new(socket),
            Err(e) => {
                let text = format_args!("a socket could not be watched {}", Cause(&e));
                return self.site.main_log.write(Level::Alert, None, text);
            }
        };
        let port = Rc::new(DatagramPort {
            listen,
            fd,
            socket: RefCell::new(Some(socket)),
            waker: RefCell::default(),
        });
        sessions.ports.borrow_mut().push(port.clone());
        self.handle.spawn(receive(self.clone(), port));
    }

    /// Ends receiving from a socket.
    pub fn leaves(self: &Rc<Self>, listen: usize, how: Leaving) {
        let mut ports = self.datagrams.ports.borrow_mut();
        let Some(at) = ports.iter().position(|port| port.listen == listen) else { return };
        let port = ports.remove(at);
        drop(ports);
        let Some(socket) = port.socket.take() else { return };
        if let Some(waker) = port.waker.take() {
            waker.wake();
        }
        if how == Leaving::ForGood {
            self.take_rest(&port, &socket);
        }
        let now = self.handle.now();
        for flow in self.datagrams.table.borrow().iter().filter(|flow| flow.listen() == listen) {
            flow.leave(now, how);
        }
    }
}

/// The task of a socket.
async fn receive(event_loop: Rc<LoopState>, port: Rc<DatagramPort>) {
    loop {
        let readable = poll_fn(|cx| {
            let Some(socket) = port.socket.borrow().clone() else { return Poll::Ready(None) };
            let mut waker = port.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            socket.poll_readable(cx).map(|_| Some(socket))
        });
        let Some(socket) = readable.await else { return };
        if event_loop.take_some(&port, &socket) == Taken::Waits {
            drop(socket);
            weir_engine::yield_now().await;
        }
    }
}

impl LoopState {
    /// Receives until nothing is there, the task has done enough for this turn, or sessions that have begun are to run first.
    fn take_some(self: &Rc<Self>, port: &DatagramPort, socket: &Datagram) -> Taken {
        let mut taken = Taken::Some;
        while !weir_engine::is_spent() && taken == Taken::Some {
            taken = self.take_one(port, socket);
        }
        taken
    }

    /// Receives what is there, as far as that has an end.
    fn take_rest(self: &Rc<Self>, port: &DatagramPort, socket: &Datagram) {
        for _ in 0..REST {
            if self.take_one(port, socket) == Taken::Nothing {
                return;
            }
        }
    }

    /// Receives one datagram, and gives it to its session.
    fn take_one(self: &Rc<Self>, port: &DatagramPort, socket: &Datagram) -> Taken {
        let sessions = &self.datagrams;
        let mut scratch = sessions.scratch.borrow_mut();
        scratch.clear();
        scratch.reserve(LONGEST);
        match socket.try_recv_from(&mut scratch) {
            Ok(Some(received)) => self.came(port, received, &scratch),
            Ok(None) => Taken::Nothing,
            Err(e) => {
                let text = format_args!("recvmsg() failed {}", Cause(&e));
                self.site.main_log.write(Level::Alert, None, text);
                Taken::Some
            }
        }
    }

    fn came(self: &Rc<Self>, port: &DatagramPort, received: Received, bytes: &[u8]) -> Taken {
        let peer = Address::from_any(received.from.clone());
        let nameless = matches!(&peer, Address::Unix(path) if path.as_os_str().is_empty());
        let key = FlowKey { listen: port.listen, asked: received.to, peer };
        let table = &self.datagrams.table;
        let known = match nameless {
            true => None,
            false => table.borrow().find(&key).cloned(),
        };
        let Some(flow) = known else {
            self.begin(port, key, received, bytes);
            return Taken::Some;
        };
        if flow.is_assured_now() {
            table.borrow_mut().assure(flow.id);
        }
        match flow.deliver(&self.handle, bytes) {
            Delivered::Here => {}
            Delivered::Waits => return Taken::Waits,
            Delivered::Last => table.borrow_mut().let_go(flow.id),
            Delivered::Dropped => self.metrics.add(Metric::DroppedDatagrams, 1),
        }
        Taken::Some
    }

    /// The first datagram of a session.
    fn begin(self: &Rc<Self>, port: &DatagramPort, key: FlowKey, received: Received, bytes: &[u8]) {
        let (listen, peer) = (port.listen, key.peer.clone());
        self.metrics.add(Metric::Accepted, 1);
        let site = self.site;
        let bound = &site.listens()[listen].address;
        let local = match (received.to, bound.port()) {
            (Some(ip), Some(port)) => Address::Inet(SocketAddr::new(ip, port)),
            _ => bound.clone(),
        };
        let server = site.server(site.bound(listen).at(|| local.ip()).hosts.default);
        let ends = Ends {
            socket: Answering::new(port.fd.clone()),
            listen,
            peer: received.from,
            asked: received.to,
            local,
        };
        let first = bytes.len() as u64;
        let mut made = None;
        let begun = self
            .datagrams
            .table
            .borrow_mut()
            .begin(key, |id| made.insert(Rc::new(Flow::new(id, ends, first, server))).clone());
        if let FlowStart::Instead(gone) = begun {
            gone.end(Over::Evicted);
            self.say_full(true);
        }
        let Some(flow) = made else {
            self.metrics.add(Metric::DroppedDatagrams, 1);
            return self.say_full(false);
        };
        if flow.is_full() {
            self.datagrams.table.borrow_mut().let_go(flow.id);
        }
        self.metrics.add(Metric::Handled, 1);
        let place = FlowGuard { event_loop: self.clone(), flow };
        self.handle.spawn(serve::datagrams(place, bytes.to_vec(), peer));
    }

    fn say_full(&self, evicted: bool) {
        let sessions = &self.datagrams;
        if !sessions.said_full.lets_through(self.handle.now()) {
            return;
        }
        let n = sessions.table.borrow().len();
        let text = "sessions of datagrams are as many as worker_connections allow";
        let then = if evicted { ", the oldest make room" } else { "" };
        let level = if evicted { Level::Warn } else { Level::Alert };
        self.site.main_log.write(level, None, format_args!("{n} {text}{then}"));
    }
}
