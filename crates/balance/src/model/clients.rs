//! The clients of the model. They send one request after another, on new connections or on a kept
//! one.

use std::time::Duration;

/// The behaviour of a client.
#[derive(Clone, Copy, Debug)]
pub struct ModelClient {
    /// How many requests it sends, each after the previous answer.
    pub requests: u64,
    /// All requests use one connection.
    pub keep: bool,
    /// How long each request blocks its loop.
    pub work: Duration,
    /// The handler computes instead of sleeping.
    pub computes: bool,
    /// The time from an answer to the next request or connect.
    pub think: Duration,
    /// The time from the connect to the request.
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
    /// The request has arrived at the server.
    sent: bool,
    /// Requests answered on this connection.
    answered: u64,
    /// The client has not connected yet.
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

    /// The request arrives. Returns the loop that has the connection.
    pub(super) fn sent(&mut self, id: usize) -> Option<usize> {
        let running = &mut self.0[id];
        running.sent = true;
        match running.place {
            ClientState::Loop(i) => Some(i),
            ClientState::Queue | ClientState::Away => None,
        }
    }

    /// Loop `i` has accepted the connection. True if its request has already arrived.
    pub(super) fn admitted(&mut self, id: usize, i: usize) -> bool {
        self.0[id].place = ClientState::Loop(i);
        self.0[id].sent
    }

    /// The request is answered. Returns how long it took, and when the client continues.
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

    /// Whether the client has not connected yet.
    pub(super) fn is_new(&self, id: usize) -> bool {
        self.0[id].new
    }

    /// Whether an earlier request was answered on this connection.
    pub(super) fn is_another(&self, id: usize) -> bool {
        self.0[id].answered > 0
    }

    pub(super) fn work(&self, id: usize) -> Duration {
        self.0[id].client.work
    }

    pub(super) fn computes(&self, id: usize) -> bool {
        self.0[id].client.computes
    }

    /// A number that is different for each request and does not depend on the loop.
    pub(super) fn seed(&self, id: usize) -> u64 {
        id as u64 ^ self.0[id].client.requests << 20
    }

    pub(super) fn waiting(&self) -> usize {
        self.0.iter().filter(|r| r.place == ClientState::Queue).count()
    }
}
