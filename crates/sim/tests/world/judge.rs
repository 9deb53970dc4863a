//! What is checked of the server while a course runs.

use crate::course::Course;
use crate::fate::SERVERS;
use crate::peer::Peer;

/// No client waits for a stalled loop for longer than this while another loop of its process
/// sleeps. It is the sum of the longest interval between two looks, two looks to be sure that the
/// loop computes, and the requests that are taken before.
const RELIEF: u64 = 15_000_000;

impl Course {
    pub fn judge_law(&mut self) {
        let (seen, accepted) = self.world.seen();
        let Some(law) = self.fate.accepts else { return };
        self.world.note("waited", seen.beside_sleeper, seen.nobody_armed);
        if self.fate.cpus >= self.fate.loops {
            law.judge(seen, self.fate.stops, &mut self.book);
        }
        if accepted.iter().sum::<u64>() != self.fate.clients as u64 {
            self.book.find(format!("{accepted:?} accepts of {} clients", self.fate.clients));
        }
    }

    /// Checks the limits of requests, over all and for each server.
    pub fn judge_limits(&mut self, id: u64) {
        let Some(limits) = self.fate.limits else { return };
        if !matches!(self.peers.get(&id), Some(Peer::Server(served)) if served.is_at_limited()) {
            return;
        }
        let mut counts = [0; SERVERS];
        for peer in self.peers.values() {
            if let Peer::Server(served) = peer
                && served.is_at_limited()
            {
                counts[served.accept_queue] += 1;
            }
        }
        let all: usize = counts.iter().sum();
        self.world.note("limited", all as u64, counts[0] as u64);
        if all > limits.all || counts.iter().any(|count| *count > limits.each) {
            self.book.find(format!("{counts:?} at once, of {limits:?}"));
        }
    }

    /// The server has said something to this client. With one loop, it has by then answered all
    /// that had asked before this client came.
    pub fn judge_order(&mut self, id: u64) {
        let Some(Peer::Client(client)) = self.peers.get_mut(&id) else { return };
        let (came, _) = (client.came, client.asked_at.take());
        client.beside = 0;
        if self.fate.loops > 1 || self.fate.accepts.is_none() || self.fate.faults.excuse() {
            return;
        }
        let passed_over = |peer: &Peer| match peer {
            Peer::Client(other) => other.asked_at.is_some_and(|asked| asked < came),
            _ => false,
        };
        if let Some((other, _)) = self.peers.iter().find(|(_, peer)| passed_over(peer)) {
            let text =
                format!("client {id} was served before {other}, which had asked before it came");
            self.book.find(text);
        }
    }

    /// Time passes: a client of a stalled loop does not wait for long while another loop sleeps.
    pub fn judge_relief(&mut self, to: u64) {
        let fate = &self.fate;
        let calm = fate.cpus >= fate.loops && !fate.stops && !fate.faults.excuse();
        if fate.accepts.is_none() || !fate.config.relieves || !calm {
            return;
        }
        let time = to.saturating_sub(self.world.now());
        for (id, peer) in &mut self.peers {
            if let Peer::Client(client) = peer
                && let Some(came) = client.waits_at_boundary()
                && self.world.could_relieve(came)
            {
                client.beside += time;
                self.most_beside = self.most_beside.max(client.beside);
                if client.beside - time <= RELIEF && client.beside > RELIEF {
                    let what = "waits for a loop that is held up, and others sleep";
                    self.book.find(format!("client {id} {what} for {} us", client.beside / 1000));
                }
            }
        }
    }
}
