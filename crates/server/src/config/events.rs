//! The directives of `events`.

use weir_balance::{AcceptPolicy, UnknownPolicy};
use weir_conf::{Directive, Error};
use weir_engine::BackendKind;
use weir_log::Cause;

use super::{RawConfig, ServerDirective, put};

/// How a loop waits; nginx: `use`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// epoll(7).
    Epoll,
    /// poll(2).
    Poll,
    /// select(2).
    Select,
    /// io_uring(7).
    IoUring,
}

impl Backend {
    const NAMES: [(&str, Backend); 4] = [
        ("epoll", Backend::Epoll),
        ("poll", Backend::Poll),
        ("select", Backend::Select),
        ("io_uring", Backend::IoUring),
    ];

    /// The name for `use`.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, b)| *b == self).map_or("epoll", |(name, _)| name)
    }

    /// The engine's backend.
    pub fn kind(self) -> BackendKind {
        match self {
            Backend::Epoll => BackendKind::Epoll,
            Backend::Poll => BackendKind::Poll,
            Backend::Select => BackendKind::Select,
            Backend::IoUring => BackendKind::IoUring,
        }
    }
}

pub(super) const LINES: &[ServerDirective] = &[
    ServerDirective {
        name: "use",
        help: "How loops wait: epoll, poll, select, or weir's own io_uring.",
        set: set_use,
    },
    ServerDirective {
        name: "worker_connections",
        help: "Connections that a loop may have open, those to upstreams included.",
        set: |raw, d| {
            let word = d.arg(0).map(|w| w.lossy()).unwrap_or_default();
            let number = d.number().map_err(|_| d.error(format!("invalid number \"{word}\"")))?;
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            put(Ok(number), &mut raw.connections)
        },
    },
    ServerDirective {
        name: "epoll_events",
        help: "Events that one wait returns at most.",
        set: |raw, d| {
            let number = usize::try_from(d.number()?).ok().filter(|n| *n <= MOST);
            raw.epoll_events = Some(number.ok_or_else(|| d.problem("invalid value"))?);
            Ok(())
        },
    },
    ServerDirective {
        name: "multi_accept",
        help: "Accept all connections that wait, not one per turn.",
        set: |raw, d| put(d.flag(), &mut raw.multi_accept),
    },
    ServerDirective {
        name: "accept_mutex",
        help: "On is accept_balance mutex, unless accept_balance says otherwise.",
        set: |raw, d| put(d.flag(), &mut raw.accept_mutex),
    },
    ServerDirective {
        name: "accept_mutex_delay",
        help: "How long a loop that does not hold the accept lock waits before it tries again.",
        set: |raw, d| put(d.duration(), &mut raw.accept_mutex_delay),
    },
    ServerDirective {
        name: "accept_balance",
        help: "How new connections are spread over the loops; fair by default.",
        set: set_balance,
    },
    ServerDirective {
        name: "request_balance",
        help: "Idle loops take over connections of a stalled loop of their process; on by default.",
        set: |raw, d| put(d.flag(), &mut raw.request_balance),
    },
    ServerDirective {
        name: "debug_connection",
        help: "Accepted with a warning: there is no debug log of single connections.",
        set: |raw, d| {
            let text = "\"debug_connection\" is ignored, weir has no debug log of one connection";
            raw.warnings.push(d.warning(text));
            Ok(())
        },
    },
    ServerDirective {
        name: "worker_aio_requests",
        help: "Accepted; file operations go to threads, and thread_pool sets their number.",
        set: |_, d| d.number().map(drop),
    },
];

/// The most events per wait. More would only take memory.
const MOST: usize = 1 << 16;

fn set_use(raw: &mut RawConfig, d: &Directive) -> Result<(), Error> {
    let word = d.arg(0).map(|w| w.lossy()).unwrap_or_default();
    let found = Backend::NAMES.iter().find(|(name, _)| *name == word);
    let (_, backend) = found.ok_or_else(|| d.error(format!("invalid event type \"{word}\"")))?;
    let problem = |e| d.error(format!("event type \"{word}\" is not available {}", Cause(&e)));
    backend.kind().check().map_err(problem)?;
    raw.backend = Some(*backend);
    Ok(())
}

fn set_balance(raw: &mut RawConfig, d: &Directive) -> Result<(), Error> {
    let word = d.arg(0).map(|w| w.lossy()).unwrap_or_default();
    if let Some(more) = d.arg(1) {
        return Err(d.invalid("parameter", more));
    }
    let kind = AcceptPolicy::parse(&word).map_err(|e| match e {
        UnknownPolicy::Name => d
            .error(format!("unknown accept policy \"{word}\""))
            .hint(format!("policies are: {}", AcceptPolicy::NAMES.join(", "))),
        other => d.error(format!("accept policy \"{word}\": {other}")),
    })?;
    raw.balance = Some(kind);
    Ok(())
}
