//! A discrete-event model of loops, connections and requests. Only handlers take time, so it shows
//! the effect of the rules alone.
//!
//! The rules of request stealing are the server's own: when a loop is stalled, how often a sleeping
//! loop looks, and how many events a loop fetches at once. Each loop has a processor, and each
//! handler blocks its loop.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use weir_engine::StealGroup;

use super::{CONNECTIONS, LONG, LONG_SHARE_PERCENT, LOOPS, SHORT};

/// Which loop serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestRouting {
    /// The loop that has the connection.
    Pinned,
    /// An idle loop, which steals the connection of a stalled one.
    TakenOver,
    /// The ideal: any free loop takes the next request.
    OneQueue,
}

impl RequestRouting {
    /// All ways, with their names in tables.
    pub(super) const ALL: [(RequestRouting, &'static str); 3] = [
        (RequestRouting::TakenOver, "the model, taken over"),
        (RequestRouting::Pinned, "the model, pinned"),
        (RequestRouting::OneQueue, "the model, one queue of requests"),
    ];
}

/// The results of a run of the model.
pub(super) struct ModelResult {
    /// The latencies of the requests in ms, in ascending order.
    times: Vec<f64>,
    /// The number of stolen connections.
    pub(super) taken: u64,
}

impl ModelResult {
    /// A percentile of the latency, in milliseconds.
    pub(super) fn percentile(&self, percent: f64) -> f64 {
        let at = (self.times.len() as f64 * percent / 100.0) as usize;
        self.times.get(at).or(self.times.last()).copied().unwrap_or(0.0)
    }
}

/// Runs the model with this number of requests at this rate per second.
pub(super) fn run(way: RequestRouting, rate: f64, requests: u64) -> ModelResult {
    let mut model = QueueModel::new(way);
    let apart = Duration::from_secs_f64(1.0 / rate);
    model.schedule(Duration::ZERO, ModelEvent::Arrival);
    while let Some(Reverse((at, _, event))) = model.events.pop() {
        model.now = at;
        match event {
            ModelEvent::Arrival => {
                model.waiting.push_back(at);
                model.admit();
                model.arrived += 1;
                if model.arrived < requests {
                    model.schedule(at + apart, ModelEvent::Arrival);
                }
            }
            ModelEvent::Done(i) => model.done(i),
            ModelEvent::Watch => model.timer_fired(),
        }
    }
    let mut times = model.times;
    times.sort_by(f64::total_cmp);
    ModelResult { times, taken: model.taken }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ModelEvent {
    Arrival,
    /// The handler of this loop ends.
    Done(usize),
    /// The timer fires that wakes a sleeper to look for stalled loops.
    Watch,
}

#[derive(Default)]
struct ModelLoop {
    /// Its ready list in the kernel.
    ready: VecDeque<usize>,
    /// Events that it has fetched and not handled.
    batch: VecDeque<usize>,
    /// Start of its turn. `None` while it sleeps.
    turn: Option<Duration>,
    serves: usize,
}

#[derive(Clone, Copy, Default)]
struct ModelConnection {
    owner: usize,
    /// When its request was due.
    began: Duration,
}

struct QueueModel {
    way: RequestRouting,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, u64, ModelEvent)>>,
    serial: u64,
    arrived: u64,
    random: u64,
    loops: Vec<ModelLoop>,
    connections: Vec<ModelConnection>,
    /// Connections without a request, and due times of requests without a connection.
    free: VecDeque<usize>,
    waiting: VecDeque<Duration>,
    /// The queue of all loops, with [`RequestRouting::OneQueue`].
    queue: VecDeque<usize>,
    watched: bool,
    after: Duration,
    times: Vec<f64>,
    taken: u64,
}

impl QueueModel {
    fn new(way: RequestRouting) -> QueueModel {
        let connection = |n| ModelConnection { owner: n % LOOPS, ..ModelConnection::default() };
        QueueModel {
            way,
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            serial: 0,
            arrived: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            loops: (0..LOOPS).map(|_| ModelLoop::default()).collect(),
            connections: (0..CONNECTIONS).map(connection).collect(),
            free: (0..CONNECTIONS).collect(),
            waiting: VecDeque::new(),
            queue: VecDeque::new(),
            watched: false,
            after: StealGroup::CHECK,
            times: Vec::new(),
            taken: 0,
        }
    }

    fn schedule(&mut self, at: Duration, event: ModelEvent) {
        self.serial += 1;
        self.events.push(Reverse((at, self.serial, event)));
    }

    /// Gives waiting requests to free connections.
    fn admit(&mut self) {
        while let (Some(_), Some(&began)) = (self.free.front(), self.waiting.front()) {
            let Some(connection) = self.free.pop_front() else { return };
            self.waiting.pop_front();
            self.connections[connection].began = began;
            self.arrive(connection);
        }
    }

    fn arrive(&mut self, connection: usize) {
        let i = match self.way {
            RequestRouting::OneQueue => {
                self.queue.push_back(connection);
                self.loops.iter().position(|l| l.turn.is_none())
            }
            RequestRouting::Pinned | RequestRouting::TakenOver => {
                let owner = self.connections[connection].owner;
                self.loops[owner].ready.push_back(connection);
                Some(owner)
            }
        };
        if let Some(i) = i.filter(|i| self.loops[*i].turn.is_none()) {
            self.turn(i);
        }
    }

    /// The loop fetches its events. It sleeps if there are none.
    fn turn(&mut self, i: usize) {
        let fetched = match self.way {
            RequestRouting::OneQueue => self.queue.pop_front().into_iter().collect(),
            RequestRouting::Pinned | RequestRouting::TakenOver => {
                let ready = &mut self.loops[i].ready;
                ready.drain(..ready.len().min(StealGroup::MIN_EVENTS)).collect()
            }
        };
        self.loops[i].batch = fetched;
        if self.loops[i].batch.is_empty() && self.way == RequestRouting::TakenOver {
            let taken = self.look(i);
            self.loops[i].batch.extend(taken);
        }
        self.loops[i].turn = (!self.loops[i].batch.is_empty()).then_some(self.now);
        if self.loops[i].turn.is_some() {
            self.watch();
            self.serve(i);
        }
    }

    /// Steals a connection from the ready list of a stalled loop.
    fn look(&mut self, i: usize) -> Option<usize> {
        let now = self.now;
        let mut others = (1..LOOPS).map(|further| (i + further) % LOOPS);
        let from = others.find(|&other| {
            let l = &self.loops[other];
            l.is_stalled(now) && !l.ready.is_empty()
        })?;
        self.after = StealGroup::CHECK;
        let connection = self.loops[from].ready.pop_front()?;
        self.connections[connection].owner = i;
        self.taken += 1;
        Some(connection)
    }

    fn serve(&mut self, i: usize) {
        let Some(connection) = self.loops[i].batch.pop_front() else { return self.turn(i) };
        self.loops[i].serves = connection;
        let work = if self.draw() < LONG_SHARE_PERCENT / 100.0 { LONG } else { SHORT };
        self.schedule(self.now + work, ModelEvent::Done(i));
    }

    fn done(&mut self, i: usize) {
        let connection = self.loops[i].serves;
        let took = self.now - self.connections[connection].began;
        self.times.push(took.as_secs_f64() * 1e3);
        self.free.push_back(connection);
        self.serve(i);
        self.admit();
    }

    /// Starts the watch timer. While a loop works, it must run.
    fn watch(&mut self) {
        if self.way == RequestRouting::TakenOver && !self.watched {
            self.watched = true;
            self.schedule(self.now + self.after, ModelEvent::Watch);
        }
    }

    /// Wakes one sleeper to look for stalled loops. If none sleeps, each loop looks before it
    /// sleeps.
    fn timer_fired(&mut self) {
        self.watched = false;
        let stalled = self.loops.iter().any(|l| l.is_stalled(self.now));
        self.after =
            if stalled { StealGroup::CHECK } else { StealGroup::RARE_CHECK.min(2 * self.after) };
        if let Some(i) = self.loops.iter().position(|l| l.turn.is_none()) {
            self.turn(i);
        }
        if self.loops.iter().any(|l| l.turn.is_some()) {
            self.watch();
        }
    }

    /// A pseudo-random number from 0 to 1.
    fn draw(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl ModelLoop {
    fn is_stalled(&self, now: Duration) -> bool {
        self.turn.is_some_and(|since| now - since > StealGroup::STALLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published sketch reports these latencies at 60 % load: 68, 7.5 and 4.4 ms at p90; 152,
    /// 50.6 and 50.4 ms at p99.
    #[test]
    fn the_model_knows_the_sketch() {
        let rate = 0.6 * LOOPS as f64 / 1.49e-3;
        let seen = |way| run(way, rate, 60_000);
        let (pinned, taken, one) = (
            seen(RequestRouting::Pinned),
            seen(RequestRouting::TakenOver),
            seen(RequestRouting::OneQueue),
        );
        let all =
            [&pinned, &taken, &one].map(|seen| [50.0, 90.0, 99.0].map(|p| seen.percentile(p)));
        let [[_, pinned90, pinned99], [_, taken90, taken99], [_, one90, one99]] = all;
        assert!(pinned90 > 4.0 * taken90 && pinned99 > 1.3 * taken99, "{all:?}");
        assert!(one90 <= taken90 && taken99 < 1.2 * one99, "{all:?}");
        assert!(taken.taken > 0 && pinned.taken + one.taken == 0);
        assert!(one.times.len() == 60_000 && one.times[0] >= 1.0);
    }
}
