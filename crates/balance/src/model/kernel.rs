//! The kernel's part when a client connects, and the system calls of loops.

use super::queue::Visit;
use super::{AcceptPolicy, LoadTable, ModelEvent, Note, SocketLayout, Stance, What, World, mixed};
use crate::reuseport_load;

impl World {
    pub(super) fn connect(&mut self, client: usize) {
        let gap = self.clients.connected(client, self.now);
        self.go_on_after(gap, ModelEvent::Request(client));
        match self.kind.shape() {
            SocketLayout::AcceptorOne => return self.hand_over(client),
            SocketLayout::AcceptorEach => return self.end_blocked_accept(client),
            _ => {}
        }
        let socket = self.socket(client);
        let loops = &self.loops;
        let walk = self.sockets[socket].arrive(client, self.now, |i| loops[i].is_sleeping());
        for visit in walk.iter().filter(|visit| visit.asleep) {
            self.wake(visit.who);
        }
        self.note_arrival(client, socket, walk);
    }

    /// The acceptor hands a connection over. If no loop can take one, it stays in the queue.
    pub(super) fn hand_over(&mut self, client: usize) {
        let (now, table) = (self.base + self.now, LoadTable::over(&self.words, self.base));
        let setup = self.setup(0);
        match self.kind.policy(setup).place(now, &table) {
            Some(i) => {
                self.loops[i].handed.push_back(client);
                table.end_handover(i, true);
                self.wake(i);
            }
            None => {
                self.sockets[0].arrive(client, self.now, |_| false);
            }
        }
    }

    /// The thread that has blocked longest in accept(2) gets the connection and posts it to its
    /// loop.
    pub(super) fn end_blocked_accept(&mut self, client: usize) {
        let loops = &self.loops;
        let walk = self.sockets[0].arrive(client, self.now, |i| !loops[i].stopped);
        let first = walk.iter().find(|visit| visit.asleep).map(|visit| visit.who);
        self.note_arrival(client, 0, walk);
        if let Some(i) = first {
            self.sockets[0].remove(i);
            self.take_over(i);
            self.wake(i);
        }
    }

    pub(super) fn take_over(&mut self, i: usize) {
        let taken = self.sockets[0].accept();
        self.loops[i].handed.extend(taken);
    }

    pub(super) fn request(&mut self, client: usize) {
        if let Some(i) = self.clients.sent(client) {
            self.loops[i].ready.push_back(client);
            self.wake(i);
        }
    }

    /// The socket in whose queue the connection waits.
    fn socket(&self, client: usize) -> usize {
        let hash = self.hash(client);
        if self.kind != AcceptPolicy::ReuseportLoad {
            return hash;
        }
        let (now, table) = (self.base + self.now, LoadTable::over(&self.words, self.base));
        reuseport_load::choose(now, &table, hash).unwrap_or(hash)
    }

    pub(super) fn hash(&self, client: usize) -> usize {
        (mixed(self.seed ^ client as u64 ^ self.serial << 20) % self.sockets.len() as u64) as usize
    }

    pub(super) fn arm(&mut self, i: usize, stance: Stance) {
        let (socket, exclusive) = self.registration(i);
        match (stance, self.loops[i].armed && self.sockets[socket].is_added(i)) {
            (Stance::Disarmed, true) => {
                self.sockets[socket].remove(i);
                self.note_order(i, false);
            }
            (Stance::Disarmed, false) => self.sockets[socket].remove(i),
            (Stance::ArmedLast, true) if self.loops[i].accepted_since_added => self.readd(i),
            (_, true) => {}
            (_, false) => {
                self.sockets[socket].add(i, exclusive);
                self.loops[i].accepted_since_added = false;
                self.note_order(i, true);
            }
        }
        self.loops[i].armed = stance != Stance::Disarmed;
    }

    pub(super) fn readd(&mut self, i: usize) {
        let (socket, exclusive) = self.registration(i);
        self.sockets[socket].remove(i);
        self.sockets[socket].add(i, exclusive);
        self.loops[i].accepted_since_added = false;
        self.note_order(i, true);
    }

    pub(super) fn registration(&self, i: usize) -> (usize, bool) {
        match self.kind.shape() {
            SocketLayout::Shared { exclusive } => (0, exclusive),
            SocketLayout::SharedEpoll => (0, false),
            SocketLayout::SocketEach => (i, false),
            SocketLayout::AcceptorEach | SocketLayout::AcceptorOne => (0, true),
        }
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> What) {
        let at = self.now;
        if let Some(notes) = &mut self.notes {
            notes.push(Note { at, what: what() });
        }
    }

    pub(super) fn note_arrival(&mut self, connection: usize, socket: usize, walk: Vec<Visit>) {
        if self.notes.is_some() {
            let order = self.waiters(socket);
            self.note(|| What::Arrived { connection, order, walk });
        }
    }

    pub(super) fn note_order(&mut self, who: usize, armed: bool) {
        if self.notes.is_some() {
            let order = self.waiters(self.registration(who).0);
            self.note(|| What::Registered { who, armed, order });
        }
    }
}
