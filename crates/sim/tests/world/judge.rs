//! Checks of the server while a course runs.

use crate::course::Course;
use crate::peer::Peer;
use crate::plan::SERVERS;

/// How long a client may wait for a stalled loop while another loop of its process sleeps. It is
/// the sum of the longest interval between two looks, two looks that show that the loop computes,
/// and the requests that are stolen first.
const MAX_STALLED_WAIT: u64 = 15_000_000;

impl Course {
    pub fn judge_law(&mut self) {
        let (seen, accepted) = self.world.seen();
        let Some(law) = self.plan.accepts else { return };
        self.world.note("waited", seen.beside_sleeper, seen.nobody_armed);
        if self.plan.cpus >= self.plan.loops {
            law.judge(seen, self.plan.stops, &mut self.records);
        }
        if accepted.iter().sum::<u64>() != self.plan.clients as u64 {
            self.records.report(format!("{accepted:?} accepts of {} clients", self.plan.clients));
        }
    }

    /// Checks the limits of concurrent requests, in total and per server.
    pub fn judge_limits(&mut self, id: u64) {
        let Some(limits) = self.plan.limits else { return };
        if !matches!(self.peers.get(&id), Some(Peer::Http1Server(served)) if served.is_at_limited())
        {
            return;
        }
        let mut counts = [0; SERVERS];
        for peer in self.peers.values() {
            if let Peer::Http1Server(served) = peer
                && served.is_at_limited()
            {
                counts[served.accept_queue] += 1;
            }
        }
        let all: usize = counts.iter().sum();
        self.world.note("limited", all as u64, counts[0] as u64);
        if all > limits.all || counts.iter().any(|count| *count > limits.each) {
            self.records.report(format!("{counts:?} at once, of {limits:?}"));
        }
    }

    /// Checks the order of answers. With one loop, the server has answered all requests that
    /// arrived before this client connected.
    pub fn judge_order(&mut self, id: u64) {
        let Some(Peer::Client(client)) = self.peers.get_mut(&id) else { return };
        let (came, _) = (client.connected_at, client.arrived_at.take());
        client.waited_beside = 0;
        if self.plan.loops > 1 || self.plan.accepts.is_none() || self.plan.faults.excuse() {
            return;
        }
        let passed_over = |peer: &Peer| match peer {
            Peer::Client(other) => other.arrived_at.is_some_and(|asked| asked < came),
            _ => false,
        };
        if let Some((other, _)) = self.peers.iter().find(|(_, peer)| passed_over(peer)) {
            let text =
                format!("client {id} was served before {other}, which had asked before it came");
            self.records.report(text);
        }
    }

    /// Checks, while time passes, that a client does not wait long for a stalled loop while another
    /// loop sleeps.
    pub fn judge_relief(&mut self, to: u64) {
        let plan = &self.plan;
        let calm = plan.cpus >= plan.loops && !plan.stops && !plan.faults.excuse();
        if plan.accepts.is_none() || !plan.config.relieves || !calm {
            return;
        }
        let time = to.saturating_sub(self.world.now());
        for (id, peer) in &mut self.peers {
            if let Peer::Client(client) = peer
                && let Some(came) = client.waits_at_boundary()
                && self.world.could_relieve(came)
            {
                client.waited_beside += time;
                self.most_beside = self.most_beside.max(client.waited_beside);
                if client.waited_beside - time <= MAX_STALLED_WAIT
                    && client.waited_beside > MAX_STALLED_WAIT
                {
                    let what = "waits for a loop that is held up, and others sleep";
                    self.records.report(format!(
                        "client {id} {what} for {} us",
                        client.waited_beside / 1000
                    ));
                }
            }
        }
    }

    /// Whether this client comes alone: the first six clients come one after another to three idle
    /// loops, with a short request each.
    pub fn comes_alone(&mut self, came: usize) -> bool {
        let Some(law) = self.plan.accepts else { return false };
        let alone = self.plan.loops == 3
            && self.plan.cpus >= 3
            && !self.plan.stops
            && !self.plan.faults.excuse();
        if alone && came == 6 {
            let (_, accepted) = self.world.seen();
            law.judge_six(&accepted, &mut self.records);
        }
        alone && came < 6
    }
}
