//! What each accept policy promises. The model and the simulated world use the same table.

use std::time::Duration;

use crate::AcceptPolicy;

/// How six connections that arrive one after another spread over three idle loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// One loop takes all.
    One,
    /// Each loop takes two.
    Even,
    /// Any spread.
    Any,
}

/// A bound on a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// No promise.
    Unbounded,
    /// The time of a wake-up, an accept, and the work of a turn before it.
    Prompt,
    /// Milliseconds; 0 means never.
    Millis(u64),
}

/// What a policy promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The policy.
    pub policy: AcceptPolicy,
    /// How six connections that arrive one after another spread over three idle loops.
    pub six: Spread,
    /// The longest wait of a connection beside a sleeping loop, whatever happens to other loops.
    pub wait: Bound,
    /// The same while no loop is stopped or killed.
    pub calm_wait: Bound,
    /// The longest time in which no living loop listens.
    pub unarmed: Bound,
}

use Bound::{Millis, Prompt, Unbounded};
use Spread::{Any, Even, One};

const fn row(
    policy: AcceptPolicy,
    six: Spread,
    wait: Bound,
    calm_wait: Bound,
    unarmed: Bound,
) -> Promise {
    Promise { policy, six, wait, calm_wait, unarmed }
}

/// The promises that hold in the model, where a policy decides alone.
#[rustfmt::skip]
pub const PROMISES: &[Promise] = &[
    //  policy                       six   wait       calm wait    unarmed
    // When the one loop is stopped, no loop accepts.
    row(AcceptPolicy::Single,        One,  Unbounded, Unbounded,   Unbounded),
    row(AcceptPolicy::Herd,          One,  Prompt,    Prompt,      Millis(0)),
    row(AcceptPolicy::SharedEpoll,   One,  Prompt,    Prompt,      Millis(0)),
    // A loop that is woken, and stopped or killed before it accepts, takes the wake-up with it.
    row(AcceptPolicy::Exclusive,     One,  Unbounded, Prompt,      Millis(0)),
    row(AcceptPolicy::Rotate(16),    Any,  Unbounded, Prompt,      Millis(0)),
    row(AcceptPolicy::Rotate(1),     Even, Unbounded, Prompt,      Millis(0)),
    // No loop listens while the holder works and the others wait for their delay.
    row(AcceptPolicy::Mutex,         Any,  Unbounded, Millis(501), Millis(501)),
    row(AcceptPolicy::Blocking,      Even, Prompt,    Prompt,      Millis(0)),
    // With a queue per loop, a sleeping loop cannot help.
    row(AcceptPolicy::Reuseport,     Any,  Unbounded, Unbounded,   Millis(0)),
    row(AcceptPolicy::ReuseportLoad, Even, Unbounded, Unbounded,   Millis(0)),
    row(AcceptPolicy::Dispatch,      Even, Unbounded, Prompt,      Unbounded),
    // A loop above the mean backs off for 5 ms at most, and defers to sleepers for two rounds of 20 ms.
    row(AcceptPolicy::Fair,          Even, Millis(45), Millis(6),  Millis(6)),
];

impl Promise {
    /// The promise of a policy in the model.
    #[must_use]
    pub fn of(policy: AcceptPolicy) -> Option<Promise> {
        PROMISES.iter().copied().find(|promise| promise.policy == policy)
    }

    /// The promise in the simulated world, where loops have other work and every system call takes its time. None if the
    /// world has no such policy: it runs no eBPF programs.
    #[must_use]
    pub fn in_the_world(self) -> Option<Promise> {
        Some(match self.policy {
            AcceptPolicy::ReuseportLoad => return None,
            // A loop that works leaves connections to the others.
            AcceptPolicy::Herd | AcceptPolicy::SharedEpoll => Promise { six: Any, ..self },
            // A thread stays in the wait list when other work wakes its loop. One connection may
            // wait for that loop.
            AcceptPolicy::Blocking => Promise { wait: Unbounded, unarmed: Unbounded, ..self },
            // The simulated world measures each queue beside its own loop.
            AcceptPolicy::Reuseport => Promise { calm_wait: Prompt, unarmed: Unbounded, ..self },
            // The acceptor pauses while no loop can take a connection.
            AcceptPolicy::Dispatch => Promise { six: Any, calm_wait: Millis(6), ..self },
            _ => self,
        })
    }
}

impl Spread {
    /// Whether the accepts of three loops, in ascending order, are a spread of this kind.
    #[must_use]
    pub fn fits(self, ascending: &[u64]) -> bool {
        match self {
            One => ascending == [0, 0, 6],
            Even => ascending == [2, 2, 2],
            Any => ascending.iter().sum::<u64>() == 6,
        }
    }
}

impl Bound {
    /// The bound as a duration, where `prompt` is the time of a prompt accept. None if unbounded.
    #[must_use]
    pub fn limit(self, prompt: Duration) -> Option<Duration> {
        match self {
            Unbounded => None,
            Prompt => Some(prompt),
            Millis(millis) => Some(Duration::from_millis(millis)),
        }
    }
}
