//! Sets TCP_DEFER_ACCEPT while short connections arrive fast: the kernel then holds each connection
//! back until its first bytes arrive.
//!
//! A client that opens many connections opens them all before it sends requests. Without the
//! option, each handshake wakes the loop, which finds no request and sleeps again. With it, the
//! first wake-up finds a queue of requests. But the option hides a silent connection from the loop
//! for a second. So it is set only if clients are not silent.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weir_values::Address;
use weir_values::listen::{Deferred, Listen};

/// The option is set once a loop accepts this many connections
const RUSH: u32 = 64;
/// within this time.
const SOON: Duration = Duration::from_millis(64);
/// It is removed once the loop accepts fewer than `RUSH` connections in this time.
const CALM: Duration = Duration::from_secs(1);
/// In both cases fewer than one in this many clients may be silent at first.
const SILENT: u64 = 16;

/// What a loop knows about the clients of one socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deferral {
    /// The socket's address. None if the socket has no handshakes or the configuration sets the
    /// option itself.
    address: Option<SocketAddr>,
    /// Whether this loop has set the option.
    on: bool,
    /// When the counts began.
    since: Option<Instant>,
    accepted: u32,
    /// How many clients had sent bytes soon, when the counts began and at the last connection.
    spoke: (u64, u64),
}

impl Deferral {
    /// For a listening socket. Sessions are excluded, since their servers may speak first.
    pub(super) fn new(listen: &Listen, is_http: bool) -> Deferral {
        let address = match listen.address {
            Address::Inet(address) if listen.deferred == Deferred::Adaptive && is_http => {
                Some(address)
            }
            _ => None,
        };
        Deferral { address, on: false, since: None, accepted: 0, spoke: (0, 0) }
    }

    /// Counts a connection. `spoke` is how many clients have sent bytes soon so far. True if the
    /// option is to be set now.
    pub(super) fn accepted(&mut self, spoke: u64, now: Instant) -> bool {
        if self.address.is_none() {
            return false;
        }
        self.accepted += 1;
        self.spoke.1 = spoke;
        if self.on || self.accepted < RUSH {
            self.since.get_or_insert(now);
            return false;
        }
        let (since, spoke) = (self.since, self.clients_speak());
        self.count_anew(now);
        self.on = spoke && since.is_some_and(|since| now.saturating_duration_since(since) < SOON);
        self.on
    }

    /// When to check whether the rush is over.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.since.filter(|_| self.on).map(|since| since + CALM)
    }

    /// Whether the rush is over, so that the option is to be removed now.
    pub(super) fn ends(&mut self, now: Instant) -> bool {
        if self.next_check().is_none_or(|at| now < at) {
            return false;
        }
        self.on = self.accepted >= RUSH && self.clients_speak();
        self.count_anew(now);
        !self.on
    }

    /// The loop accepts no more. Returns the address if the option is to be removed now.
    pub(super) fn leave(&mut self) -> Option<SocketAddr> {
        let address = self.address.take();
        address.filter(|_| std::mem::take(&mut self.on))
    }

    /// A client may send its bytes only after the next connection is accepted. In a rush these
    /// errors at both ends of the period cancel out.
    fn clients_speak(&self) -> bool {
        let spoke = self.spoke.1.saturating_sub(self.spoke.0);
        u64::from(self.accepted).saturating_sub(spoke) * SILENT < u64::from(self.accepted)
    }

    fn count_anew(&mut self, now: Instant) {
        (self.since, self.accepted, self.spoke.0) = (Some(now), 0, self.spoke.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn listen(deferred: Deferred) -> Listen {
        let address = Address::Inet("127.0.0.1:80".parse().unwrap());
        Listen { deferred, ..Listen::new(address) }
    }

    fn deferral() -> Deferral {
        Deferral::new(&listen(Deferred::Adaptive), true)
    }

    /// Whether one of `n` connections, `apart` from each other, sets the option.
    fn sets(
        deferral: &mut Deferral,
        n: u32,
        apart: Duration,
        speaks: impl Fn(u32) -> bool,
    ) -> bool {
        let (begin, mut spoke) = (Instant::now(), 0);
        (0..n).any(|i| {
            spoke += u64::from(speaks(i));
            deferral.accepted(spoke, begin + apart * i)
        })
    }

    #[test]
    fn a_rush_of_clients_that_speak_at_once_sets_it() {
        assert!(sets(&mut deferral(), RUSH, MS / 2, |_| true));
        assert!(sets(&mut deferral(), 4 * RUSH, MS / 2, |i| i > 2 * RUSH), "once they speak");
    }

    #[test]
    fn few_or_silent_clients_do_not() {
        assert!(!sets(&mut deferral(), RUSH - 1, MS / 10, |_| true));
        assert!(!sets(&mut deferral(), 1_000, 2 * MS, |_| true));
        assert!(!sets(&mut deferral(), 1_000, MS / 10, |i| i % 8 > 0));
    }

    #[test]
    fn sockets_of_others_keep_what_they_have() {
        for (listen, is_http) in [
            (listen(Deferred::On), true),
            (listen(Deferred::Off), true),
            (listen(Deferred::Adaptive), false),
            (Listen::new(Address::Unix("socket".into())), true),
        ] {
            let mut deferral = Deferral::new(&listen, is_http);
            assert!(!sets(&mut deferral, 1_000, MS / 10, |_| true));
            assert_eq!(deferral.leave(), None);
        }
    }

    #[test]
    fn it_ends_with_the_rush_or_once_clients_are_silent() {
        let rush = || {
            let mut deferral = deferral();
            assert!(sets(&mut deferral, RUSH, MS / 10, |_| true));
            let check = deferral.next_check().unwrap();
            assert!(!deferral.ends(check - MS));
            (deferral, check)
        };
        let (mut deferral, check) = rush();
        assert!(deferral.ends(check) && deferral.next_check().is_none());

        let (mut deferral, check) = rush();
        let spoke = u64::from(RUSH);
        for i in 0..RUSH {
            assert!(!deferral.accepted(spoke + u64::from(i - i / 8), check - MS));
        }
        assert!(deferral.ends(check), "one in eight is silent");

        let (mut deferral, check) = rush();
        for i in 1..=RUSH {
            assert!(!deferral.accepted(spoke + u64::from(i), check - MS));
        }
        assert!(!deferral.ends(check) && deferral.next_check() == Some(check + CALM));
        assert!(deferral.leave().is_some() && deferral.leave().is_none());
    }
}
