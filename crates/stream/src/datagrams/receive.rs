//! Receives datagrams, and gives each to its session or begins a new one.

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

use super::flow::{Delivered, EndReason, Ends, Flow};
use super::table::{FlowStart, FlowTable};
use super::{DatagramPort, FlowGuard, FlowKey, Leaving, MAX_DATAGRAM, MAX_WAITING};
use crate::event_loop::LoopState;
use crate::serve;

/// The result of one receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// The socket was empty.
    Nothing,
    /// A datagram was received, or an error.
    Some,
    /// A datagram was queued until its session's task has found the server, which mostly happens at
    /// its first run. Until then the other datagrams stay in the socket, which has more room.
    Waits,
}

/// The interface for the loop.
impl LoopState {
    /// Receives from the listening socket number `listen`. `most` limits the sessions of the whole
    /// loop.
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

    /// Stops receiving from a listening socket.
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
            self.receive_waiting(&port, &socket);
        }
        let now = self.handle.now();
        for flow in self.datagrams.table.borrow().iter().filter(|flow| flow.listen() == listen) {
            flow.leave(now, how);
        }
    }
}

/// The task of a listening socket.
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
        if event_loop.receive_some(&port, &socket) == Taken::Waits {
            drop(socket);
            weir_engine::yield_now().await;
        }
    }
}

impl LoopState {
    /// Receives until the socket is empty, the task has used its turn, or a new session's task must
    /// run first.
    fn receive_some(self: &Rc<Self>, port: &DatagramPort, socket: &Datagram) -> Taken {
        let mut taken = Taken::Some;
        while !weir_engine::is_spent() && taken == Taken::Some {
            taken = self.receive_one(port, socket);
        }
        taken
    }

    /// Receives the waiting datagrams, up to a limit.
    fn receive_waiting(self: &Rc<Self>, port: &DatagramPort, socket: &Datagram) {
        for _ in 0..MAX_WAITING {
            if self.receive_one(port, socket) == Taken::Nothing {
                return;
            }
        }
    }

    /// Receives one datagram, and gives it to its session.
    fn receive_one(self: &Rc<Self>, port: &DatagramPort, socket: &Datagram) -> Taken {
        let sessions = &self.datagrams;
        let mut scratch = sessions.scratch.borrow_mut();
        scratch.clear();
        scratch.reserve(MAX_DATAGRAM);
        match socket.try_recv_from(&mut scratch) {
            Ok(Some(received)) => self.dispatch(port, received, &scratch),
            Ok(None) => Taken::Nothing,
            Err(e) => {
                let text = format_args!("recvmsg() failed {}", Cause(&e));
                self.site.main_log.write(Level::Alert, None, text);
                Taken::Some
            }
        }
    }

    fn dispatch(self: &Rc<Self>, port: &DatagramPort, received: Received, bytes: &[u8]) -> Taken {
        let peer = Address::from_any(received.from.clone());
        let nameless = matches!(&peer, Address::Unix(path) if path.as_os_str().is_empty());
        let key = FlowKey { listen: port.listen, local_ip: received.to, peer };
        let table = &self.datagrams.table;
        let known = match nameless {
            true => None,
            false => table.borrow().find(&key).cloned(),
        };
        let Some(flow) = known else {
            self.begin_session(port, key, received, bytes);
            return Taken::Some;
        };
        if flow.is_assured_now() {
            table.borrow_mut().assure(flow.id);
        }
        match flow.deliver(&self.handle, bytes) {
            Delivered::Accepted => {}
            Delivered::Waits => return Taken::Waits,
            Delivered::Last => table.borrow_mut().release_key(flow.id),
            Delivered::Dropped => self.metrics.add(Metric::DroppedDatagrams, 1),
        }
        Taken::Some
    }

    /// Begins a session with its first datagram.
    fn begin_session(
        self: &Rc<Self>,
        port: &DatagramPort,
        key: FlowKey,
        received: Received,
        bytes: &[u8],
    ) {
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
            local_ip: received.to,
            local,
        };
        let first = bytes.len() as u64;
        let mut flow = None;
        let added = self
            .datagrams
            .table
            .borrow_mut()
            .insert(key, |id| flow.insert(Rc::new(Flow::new(id, ends, first, server))).clone());
        if let FlowStart::Evicted(gone) = added {
            gone.end(EndReason::Evicted);
            self.log_full(true);
        }
        let Some(flow) = flow else {
            self.metrics.add(Metric::DroppedDatagrams, 1);
            return self.log_full(false);
        };
        if flow.is_full() {
            self.datagrams.table.borrow_mut().release_key(flow.id);
        }
        self.metrics.add(Metric::Handled, 1);
        let place = FlowGuard { event_loop: self.clone(), flow };
        self.handle.spawn(serve::datagrams(place, bytes.to_vec(), peer));
    }

    fn log_full(&self, evicted: bool) {
        let sessions = &self.datagrams;
        if !sessions.full_logged.lets_through(self.handle.now()) {
            return;
        }
        let n = sessions.table.borrow().len();
        let text = "sessions of datagrams are as many as worker_connections allow";
        let then = if evicted { ", the oldest make room" } else { "" };
        let level = if evicted { Level::Warn } else { Level::Alert };
        self.site.main_log.write(level, None, format_args!("{n} {text}{then}"));
    }
}
