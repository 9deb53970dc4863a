//! Clients of the world: one request after another, each on its own connection or on a kept one.

use std::time::Duration;

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub struct ModelClient {
    /// Requests, one after the other's answer.
    pub requests: u64,
    /// All on one connection.
    pub keep: bool,
    /// For how long each request blocks its loop.
    pub work: Duration,
    /// It does so computing, not sleeping.
    pub computes: bool,
    /// From an answer to the next request or connect.
    pub think: Duration,
    /// From the connect to the request.
    pub gap: Duration,
}

impl ModelClient {
    /// One request on its own connection.
    #[must_use]
    pub fn once(work: Duration) -> ModelClient {
        ModelClient {
            requests: 1,
            keep: false,
            work,
            computes: false,
            think: Duration::from_micros(30),
            gap: Duration::from_micros(30),
        }
    }

    /// Requests without end, each on its own connection.
    #[must_use]
    pub fn closing(work: Duration) -> ModelClient {
        ModelClient { requests: u64::MAX, ..ModelClient::once(work) }
    }

    /// Requests without end on one connection.
    #[must_use]
    pub fn keeping(work: Duration) -> ModelClient {
        ModelClient { keep: true, ..ModelClient::closing(work) }
    }
}

#[derive(Default)]
pub(super) struct Clients(Vec<ModelRequest>);

struct ModelRequest {
    client: ModelClient,
    place: ClientState,
    /// The request's bytes are at the server.
    sent: bool,
    /// Requests answered on this connection.
    answered: u64,
    /// It never connected.
    new: bool,
    since: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientState {
    Away,
    Queue,
    Loop(usize),
}

impl Clients {
    pub(super) fn add(&mut self, client: ModelClient) -> usize {
        let since = Duration::ZERO;
        self.0.push(ModelRequest {
            client,
            place: ClientState::Away,
            sent: false,
            answered: 0,
            new: true,
            since,
        });
        self.0.len() - 1
    }

    pub(super) fn connected(&mut self, id: usize, now: Duration) -> Duration {
        let running = &mut self.0[id];
        (running.place, running.sent, running.since) = (ClientState::Queue, false, now);
        (running.answered, running.new) = (0, false);
        running.client.gap
    }

    /// The request arrives; returns the loop that has the connection.
    pub(super) fn sent(&mut self, id: usize) -> Option<usize> {
        let running = &mut self.0[id];
        running.sent = true;
        match running.place {
            ClientState::Loop(i) => Some(i),
            ClientState::Queue | ClientState::Away => None,
        }
    }

    /// A loop took the connection; true when its request is there already.
    pub(super) fn admitted(&mut self, id: usize, i: usize) -> bool {
        self.0[id].place = ClientState::Loop(i);
        self.0[id].sent
    }

    /// Returns how long it took, and when the client goes on.
    pub(super) fn answered(&mut self, id: usize, now: Duration) -> (Duration, Option<Duration>) {
        let running = &mut self.0[id];
        let latency = now - running.since;
        running.client.requests -= 1;
        running.sent = false;
        running.answered += 1;
        let next = (running.client.requests > 0).then_some(now + running.client.think);
        if running.client.keep {
            running.since = now + running.client.think;
        } else {
            running.place = ClientState::Away;
        }
        (latency, next)
    }

    pub(super) fn lost(&mut self, id: usize) {
        self.0[id].place = ClientState::Away;
    }

    pub(super) fn is_kept(&self, id: usize) -> bool {
        self.0[id].client.keep
    }

    /// Whether it never connected.
    pub(super) fn is_new(&self, id: usize) -> bool {
        self.0[id].new
    }

    /// Whether its request is not the connection's first one.
    pub(super) fn is_another(&self, id: usize) -> bool {
        self.0[id].answered > 0
    }

    pub(super) fn work(&self, id: usize) -> Duration {
        self.0[id].client.work
    }

    pub(super) fn computes(&self, id: usize) -> bool {
        self.0[id].client.computes
    }

    /// A number that no other request has, and that does not depend on the loop.
    pub(super) fn seed(&self, id: usize) -> u64 {
        id as u64 ^ self.0[id].client.requests << 20
    }

    pub(super) fn waiting(&self) -> usize {
        self.0.iter().filter(|r| r.place == ClientState::Queue).count()
    }
}
