//! The one place where a value is declared.

/// How a value moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the server runs.
    Counter,
    /// How much there is right now.
    Gauge,
}

/// What is known about a value.
#[derive(Debug)]
pub struct Declaration {
    /// The value, which is also its place in a row.
    pub metric: Metric,
    /// How it moves.
    pub kind: Kind,
    /// Short name in lower case.
    pub name: &'static str,
    /// What is counted.
    pub unit: &'static str,
    /// One sentence for people.
    pub help: &'static str,
}

/// Makes the enum and the table from one list, so that they cannot differ.
macro_rules! declare {
    ($(#[doc = $help:literal] $metric:ident $kind:ident $name:literal $unit:literal;)+) => {
        /// A value that the server keeps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Metric {
            $(#[doc = $help] $metric,)+
        }

        /// All values in the order of their places.
        pub const DECLARATIONS: &[Declaration] = &[
            $(Declaration {
                metric: Metric::$metric,
                kind: Kind::$kind,
                name: $name,
                unit: $unit,
                help: $help.trim_ascii_start(),
            },)+
        ];
    };
}

/// What is known about times that are kept in buckets.
#[derive(Debug)]
pub struct TimesDeclaration {
    /// Which.
    pub histogram: Histogram,
    /// Short name in lower case.
    pub name: &'static str,
    /// One sentence for people.
    pub help: &'static str,
}

macro_rules! declare_times {
    ($(#[doc = $help:literal] $histogram:ident $name:literal;)+) => {
        /// Times that the server keeps in buckets.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Histogram {
            $(#[doc = $help] $histogram,)+
        }

        /// All of them in the order of their places.
        pub const HISTOGRAMS: &[TimesDeclaration] = &[
            $(TimesDeclaration {
                histogram: Histogram::$histogram,
                name: $name,
                help: $help.trim_ascii_start(),
            },)+
        ];
    };
}

declare_times! {
    /// How long ready events waited for their handlers, since the loop had other ones to run.
    Blocked "event_loop_blocked";
    /// How long handlers took.
    Handler "handler";
    /// How long turns of loops took, without their wait.
    Turn "turn";
}

declare! {
    /// Connections accepted from clients.
    Accepted Counter "accepted" "connections";
    /// Accepted connections that were served and not dropped for want of resources.
    Handled Counter "handled" "connections";
    /// Times that a listening socket woke a loop.
    AcceptEvents Counter "accept" "events";
    /// Times that a loop came to accept and found nothing.
    EmptyAccepts Counter "empty_accepts" "events";
    /// Requests of clients.
    Requests Counter "requests" "requests";
    /// Open client connections, idle ones included.
    Active Gauge "active" "connections";
    /// Connections whose request head is being read.
    Reading Gauge "reading" "connections";
    /// Connections whose request is worked on or being answered.
    Writing Gauge "writing" "connections";
    /// Idle keep-alive connections.
    Waiting Gauge "waiting" "connections";
    /// Connections closed because of a defect of the server while it served them.
    Panicked Counter "panicked" "connections";
    /// Configurations taken into use after the first.
    Reloaded Counter "reloaded" "configurations";
    /// Turns of loops in which something was handled.
    Turns Counter "turns" "turns";
    /// Handlers that took longer than blocked_threshold.
    SlowHandlers Counter "slow_handlers" "handlers";
    /// Connections that a loop with nothing to do took over from one that was held up.
    TakenOver Counter "taken_over" "connections";
    /// Readiness that such a loop found and could not take, passed on to its loop.
    PassedOn Counter "passed_on" "events";
    /// Looks for connections of loops that were held up which found none.
    LookedInVain Counter "looked_in_vain" "looks";
    /// Files of caches that could not be read or written.
    CacheFaults Counter "cache_faults" "files";
    /// Answers passed on without being stored because the disk of their cache was too slow.
    CacheUnstored Counter "cache_unstored" "answers";
    /// Messages left out of error logs because too many of a kind came within a second.
    LogLeftOut Counter "log_left_out" "messages";
    /// Worker processes that ended without being told to.
    Died Counter "died" "workers";
}
