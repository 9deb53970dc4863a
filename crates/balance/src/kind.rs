//! The policies by name, and what each needs of the sockets.

use std::fmt;

use crate::{
    Policy, Setup, blocking::Blocking, dispatch::Dispatch, exclusive::Exclusive, fair::Fair,
    herd::Herd, mutex::Mutex, reuseport::Reuseport, reuseport_load::ReuseportLoad, rotate::Rotate,
    shared_epoll::SharedEpoll, single::Single,
};

/// A policy, as `accept_balance` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// `single`: one loop takes all.
    Single,
    /// `blocking`: a thread per loop blocks in accept(2); the kernel serves them first come, first
    /// served.
    Blocking,
    /// `herd`: every sleeping loop wakes for every connection.
    Herd,
    /// `shared_epoll`: one epoll instance for all loops.
    SharedEpoll,
    /// `exclusive`: EPOLLEXCLUSIVE, registered once.
    Exclusive,
    /// `rotate`, `rotate=N`: EPOLLEXCLUSIVE, registered anew every N accepts (16, as in nginx).
    Rotate(u32),
    /// `mutex`: nginx's accept_mutex.
    Mutex,
    /// `reuseport`: a socket per loop, chosen by the kernel's hash.
    Reuseport,
    /// `reuseport_load`: a socket per loop, chosen by the kernel by what the loops carry.
    ReuseportLoad,
    /// `dispatch`: an acceptor hands each connection to the least loaded loop.
    Dispatch,
    /// `fair`: whoever was served longest ago and carries no more than the others.
    #[default]
    Fair,
}

/// What a policy needs of the sockets and of the loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One socket, registered in every armed loop's own backend.
    Shared {
        /// With EPOLLEXCLUSIVE: a connection wakes one sleeping loop. Otherwise it wakes them all.
        exclusive: bool,
    },
    /// One socket in one epoll instance, which every armed loop watches.
    SharedEpoll,
    /// A socket per loop, all of them bound to the same address.
    SocketEach,
    /// One socket; a thread per loop blocks in accept(2) while its loop sleeps.
    AcceptorEach,
    /// One socket and one acceptor, which hands over to the loop that the policy places.
    AcceptorOne,
}

/// Why a name is not a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownPolicy {
    /// Nothing has this name.
    Name,
    /// `rotate=` wants a number of accepts from 1.
    Rotation,
}

impl Kind {
    /// Every name that can be chosen, in the order of the documentation.
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
    /// Says why the text names no policy.
    pub fn parse(text: &str) -> Result<Kind, UnknownPolicy> {
        Ok(match text {
            "single" => Kind::Single,
            "blocking" => Kind::Blocking,
            "herd" => Kind::Herd,
            "shared_epoll" => Kind::SharedEpoll,
            "exclusive" => Kind::Exclusive,
            "rotate" => Kind::Rotate(Rotate::NGINX),
            "mutex" => Kind::Mutex,
            "reuseport" => Kind::Reuseport,
            "reuseport_load" => Kind::ReuseportLoad,
            "dispatch" => Kind::Dispatch,
            "fair" => Kind::Fair,
            _ => return rotation(text),
        })
    }

    /// The name, without parameters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Single => "single",
            Kind::Blocking => "blocking",
            Kind::Herd => "herd",
            Kind::SharedEpoll => "shared_epoll",
            Kind::Exclusive => "exclusive",
            Kind::Rotate(_) => "rotate",
            Kind::Mutex => "mutex",
            Kind::Reuseport => "reuseport",
            Kind::ReuseportLoad => "reuseport_load",
            Kind::Dispatch => "dispatch",
            Kind::Fair => "fair",
        }
    }

    /// What it needs of the sockets.
    #[must_use]
    pub fn shape(self) -> Shape {
        match self {
            Kind::Herd | Kind::Mutex | Kind::Single => Shape::Shared { exclusive: false },
            Kind::Exclusive | Kind::Rotate(_) | Kind::Fair => Shape::Shared { exclusive: true },
            Kind::SharedEpoll => Shape::SharedEpoll,
            Kind::Reuseport | Kind::ReuseportLoad => Shape::SocketEach,
            Kind::Blocking => Shape::AcceptorEach,
            Kind::Dispatch => Shape::AcceptorOne,
        }
    }

    /// The policy's value for one loop.
    #[must_use]
    pub fn policy(self, setup: Setup) -> Box<dyn Policy> {
        match self {
            Kind::Single => Box::new(Single::new(setup)),
            Kind::Blocking => Box::new(Blocking),
            Kind::Herd => Box::new(Herd),
            Kind::SharedEpoll => Box::new(SharedEpoll),
            Kind::Exclusive => Box::new(Exclusive),
            Kind::Rotate(every) => Box::new(Rotate::new(setup, every)),
            Kind::Mutex => Box::new(Mutex::new(setup)),
            Kind::Reuseport => Box::new(Reuseport),
            Kind::ReuseportLoad => Box::new(ReuseportLoad::new(setup.me)),
            Kind::Dispatch => Box::new(Dispatch::new(setup)),
            Kind::Fair => Box::new(Fair::new(setup)),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Rotate(n) if *n != Rotate::NGINX => write!(f, "rotate={n}"),
            kind => f.write_str(kind.name()),
        }
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnknownPolicy::Name => write!(f, "it must be one of {}", Kind::NAMES.join(", ")),
            UnknownPolicy::Rotation => f.write_str("\"rotate=\" takes a number of accepts from 1"),
        }
    }
}

impl std::error::Error for UnknownPolicy {}

fn rotation(text: &str) -> Result<Kind, UnknownPolicy> {
    let number = text.strip_prefix("rotate=").ok_or(UnknownPolicy::Name)?;
    match number.parse() {
        Ok(n) if n > 0 && number.starts_with(|c: char| c.is_ascii_digit()) => Ok(Kind::Rotate(n)),
        _ => Err(UnknownPolicy::Rotation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for name in Kind::NAMES {
            assert_eq!(Kind::parse(name).unwrap().to_string(), *name);
        }
        assert_eq!(Kind::parse("rotate=1").unwrap().to_string(), "rotate=1");
        assert_eq!(Kind::parse("rotate=16"), Ok(Kind::Rotate(16)));
        assert_eq!(Kind::default(), Kind::Fair);
    }

    #[test]
    fn what_is_no_policy_says_why() {
        for bad in ["rotate=0", "rotate=", "rotate=x", "rotate=+1", "rotate=-1"] {
            assert_eq!(Kind::parse(bad), Err(UnknownPolicy::Rotation), "{bad}");
        }
        assert_eq!(Kind::parse("Fair"), Err(UnknownPolicy::Name));
    }
}
