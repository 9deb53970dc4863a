//! The accept policies by name, and the sockets that each needs.

use std::fmt;

use crate::{
    LoopSetup, Policy, blocking::Blocking, dispatch::Dispatch, exclusive::Exclusive, fair::Fair,
    herd::Herd, mutex::Mutex, reuseport::Reuseport, reuseport_load::ReuseportLoad, rotate::Rotate,
    shared_epoll::SharedEpoll, single::Single,
};

/// A policy by its name in `accept_balance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AcceptPolicy {
    /// `single`: one loop accepts all connections.
    Single,
    /// `blocking`: each loop has a thread that blocks in accept(2). The kernel serves the threads
    /// first come, first served.
    Blocking,
    /// `herd`: each connection wakes all sleeping loops.
    Herd,
    /// `shared_epoll`: one epoll instance for all loops.
    SharedEpoll,
    /// `exclusive`: EPOLLEXCLUSIVE, each loop registered once.
    Exclusive,
    /// `rotate`, `rotate=N`: EPOLLEXCLUSIVE, each loop registered again after N accepts (16, as in
    /// nginx).
    Rotate(u32),
    /// `mutex`: nginx's accept_mutex.
    Mutex,
    /// `reuseport`: a socket for each loop. The kernel chooses by its hash.
    Reuseport,
    /// `reuseport_load`: a socket for each loop. An eBPF program chooses by load.
    ReuseportLoad,
    /// `dispatch`: an acceptor hands each connection to the least loaded loop.
    Dispatch,
    /// `fair`: among the loops that are not above the mean load, the one that accepted longest ago.
    #[default]
    Fair,
}

/// The listening sockets that a policy needs, and how loops wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketLayout {
    /// One socket, registered in the backend of each armed loop.
    Shared {
        /// With EPOLLEXCLUSIVE a connection wakes one sleeping loop, otherwise all.
        exclusive: bool,
    },
    /// One socket in one epoll instance, which each armed loop watches.
    SharedEpoll,
    /// A socket for each loop, all bound to the same address.
    SocketEach,
    /// One socket. Each loop has a thread that blocks in accept(2) while the loop sleeps.
    AcceptorEach,
    /// One socket and one acceptor, which hands each connection to the loop that the policy
    /// chooses.
    AcceptorOne,
}

/// Why a name is no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownPolicy {
    /// No policy has this name.
    Name,
    /// `rotate=` needs a number of accepts, 1 or more.
    Rotation,
}

impl AcceptPolicy {
    /// All names that can be chosen, in the order of the documentation.
    pub const NAMES: &'static [&'static str] = &[
        "single",
        "blocking",
        "herd",
        "shared_epoll",
        "exclusive",
        "rotate",
        "mutex",
        "reuseport",
        "reuseport_load",
        "dispatch",
        "fair",
    ];

    /// Reads the parameter of `accept_balance`.
    ///
    /// # Errors
    ///
    /// The text names no policy.
    pub fn parse(text: &str) -> Result<AcceptPolicy, UnknownPolicy> {
        Ok(match text {
            "single" => AcceptPolicy::Single,
            "blocking" => AcceptPolicy::Blocking,
            "herd" => AcceptPolicy::Herd,
            "shared_epoll" => AcceptPolicy::SharedEpoll,
            "exclusive" => AcceptPolicy::Exclusive,
            "rotate" => AcceptPolicy::Rotate(Rotate::NGINX),
            "mutex" => AcceptPolicy::Mutex,
            "reuseport" => AcceptPolicy::Reuseport,
            "reuseport_load" => AcceptPolicy::ReuseportLoad,
            "dispatch" => AcceptPolicy::Dispatch,
            "fair" => AcceptPolicy::Fair,
            _ => return rotation(text),
        })
    }

    /// The name, without parameters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AcceptPolicy::Single => "single",
            AcceptPolicy::Blocking => "blocking",
            AcceptPolicy::Herd => "herd",
            AcceptPolicy::SharedEpoll => "shared_epoll",
            AcceptPolicy::Exclusive => "exclusive",
            AcceptPolicy::Rotate(_) => "rotate",
            AcceptPolicy::Mutex => "mutex",
            AcceptPolicy::Reuseport => "reuseport",
            AcceptPolicy::ReuseportLoad => "reuseport_load",
            AcceptPolicy::Dispatch => "dispatch",
            AcceptPolicy::Fair => "fair",
        }
    }

    /// The sockets that the policy needs.
    #[must_use]
    pub fn shape(self) -> SocketLayout {
        match self {
            AcceptPolicy::Herd | AcceptPolicy::Mutex | AcceptPolicy::Single => {
                SocketLayout::Shared { exclusive: false }
            }
            AcceptPolicy::Exclusive | AcceptPolicy::Rotate(_) | AcceptPolicy::Fair => {
                SocketLayout::Shared { exclusive: true }
            }
            AcceptPolicy::SharedEpoll => SocketLayout::SharedEpoll,
            AcceptPolicy::Reuseport | AcceptPolicy::ReuseportLoad => SocketLayout::SocketEach,
            AcceptPolicy::Blocking => SocketLayout::AcceptorEach,
            AcceptPolicy::Dispatch => SocketLayout::AcceptorOne,
        }
    }

    /// Makes the policy of one loop.
    #[must_use]
    pub fn policy(self, setup: LoopSetup) -> Box<dyn Policy> {
        match self {
            AcceptPolicy::Single => Box::new(Single::new(setup)),
            AcceptPolicy::Blocking => Box::new(Blocking),
            AcceptPolicy::Herd => Box::new(Herd),
            AcceptPolicy::SharedEpoll => Box::new(SharedEpoll),
            AcceptPolicy::Exclusive => Box::new(Exclusive),
            AcceptPolicy::Rotate(every) => Box::new(Rotate::new(setup, every)),
            AcceptPolicy::Mutex => Box::new(Mutex::new(setup)),
            AcceptPolicy::Reuseport => Box::new(Reuseport),
            AcceptPolicy::ReuseportLoad => Box::new(ReuseportLoad::new(setup.me)),
            AcceptPolicy::Dispatch => Box::new(Dispatch::new(setup)),
            AcceptPolicy::Fair => Box::new(Fair::new(setup)),
        }
    }
}

impl fmt::Display for AcceptPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcceptPolicy::Rotate(n) if *n != Rotate::NGINX => write!(f, "rotate={n}"),
            kind => f.write_str(kind.name()),
        }
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnknownPolicy::Name => {
                write!(f, "it must be one of {}", AcceptPolicy::NAMES.join(", "))
            }
            UnknownPolicy::Rotation => f.write_str("\"rotate=\" takes a number of accepts from 1"),
        }
    }
}

impl std::error::Error for UnknownPolicy {}

fn rotation(text: &str) -> Result<AcceptPolicy, UnknownPolicy> {
    let number = text.strip_prefix("rotate=").ok_or(UnknownPolicy::Name)?;
    match number.parse() {
        Ok(n) if n > 0 && number.starts_with(|c: char| c.is_ascii_digit()) => {
            Ok(AcceptPolicy::Rotate(n))
        }
        _ => Err(UnknownPolicy::Rotation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for name in AcceptPolicy::NAMES {
            assert_eq!(AcceptPolicy::parse(name).unwrap().to_string(), *name);
        }
        assert_eq!(AcceptPolicy::parse("rotate=1").unwrap().to_string(), "rotate=1");
        assert_eq!(AcceptPolicy::parse("rotate=16"), Ok(AcceptPolicy::Rotate(16)));
        assert_eq!(AcceptPolicy::default(), AcceptPolicy::Fair);
    }

    #[test]
    fn what_is_no_policy_says_why() {
        for bad in ["rotate=0", "rotate=", "rotate=x", "rotate=+1", "rotate=-1"] {
            assert_eq!(AcceptPolicy::parse(bad), Err(UnknownPolicy::Rotation), "{bad}");
        }
        assert_eq!(AcceptPolicy::parse("Fair"), Err(UnknownPolicy::Name));
    }
}
