//! The counters and histograms of each loop.

use super::{Column, MetricKind, Unit};

/// Declares the enum and the table from one list, so that they cannot differ.
macro_rules! declare {
    ($(#[doc = $help:literal] $metric:ident $kind:ident $unit:ident $name:literal;)+) => {
        /// A value that each loop keeps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Metric {
            $(#[doc = $help] $metric,)+
        }

        /// All values, in the order of their places.
        pub const METRICS: &[Metric] = &[$(Metric::$metric,)+];

        pub(super) const SUMS: &[Column] = &[
            $(Column {
                name: $name,
                kind: MetricKind::$kind,
                unit: Unit::$unit,
                help: $help.trim_ascii_start(),
                by: None,
            },)+
        ];
    };
}

impl Metric {
    /// The declaration of its column.
    pub fn column(self) -> &'static Column {
        &SUMS[self as usize]
    }
}

macro_rules! declare_times {
    ($(#[doc = $help:literal] $histogram:ident $name:literal;)+) => {
        /// Times that each loop keeps in buckets.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Histogram {
            $(#[doc = $help] $histogram,)+
        }

        /// All histograms, in the order of their places.
        pub const HISTOGRAMS: &[Histogram] = &[$(Histogram::$histogram,)+];

        pub(super) const TIMES: &[Column] = &[
            $(Column {
                name: $name,
                kind: MetricKind::Histogram,
                unit: Unit::Seconds,
                help: $help.trim_ascii_start(),
                by: None,
            },)+
        ];
    };
}

impl Histogram {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        TIMES[self as usize].name
    }
}

declare_times! {
    /// How long ready events waited while the loop ran other handlers.
    Blocked "event_loop_blocked";
    /// How long handlers took.
    Handler "handler";
    /// How long turns of loops took, without their wait.
    Turn "turn";
    /// How long handshakes of QUIC took, from the first datagram.
    QuicHandshake "quic_handshake";
    /// Round-trip times of QUIC connections: a connection's own at its end and every ten seconds.
    QuicRoundTrip "quic_round_trip";
}

declare! {
    /// Connections accepted from clients.
    Accepted Counter Count "accepted_connections";
    /// Accepted connections that were served and not dropped for want of resources.
    Handled Counter Count "handled_connections";
    /// Times that a listening socket woke a loop.
    AcceptEvents Counter Count "accept_events";
    /// Times that a loop came to accept and found nothing.
    EmptyAccepts Counter Count "empty_accepts";
    /// Requests of clients.
    Requests Counter Count "requests";
    /// Requests that ended in a status of 4xx.
    ClientErrors Counter Count "client_errors";
    /// Of these, requests whose client left before it was answered: status 499.
    Abandoned Counter Count "abandoned_requests";
    /// Requests that ended in a status of 5xx.
    ServerErrors Counter Count "server_errors";
    /// Requests that limit_req or limit_conn refused.
    Limited Counter Count "limited_requests";
    /// Of these, requests that were refused with a status of 5xx.
    LimitedErrors Counter Count "limited_server_errors";
    /// Of the refused requests, those that limit_conn refused.
    LimitedByConn Counter Count "limited_by_connections";
    /// Requests that limit_req held back before they were served.
    Delayed Counter Count "delayed_requests";
    /// Bytes of requests from clients, counted as requests end.
    Received Counter Bytes "received";
    /// Bytes of answers to clients, counted as requests end.
    Sent Counter Bytes "sent";
    /// Open client connections, idle ones included.
    Active Gauge Count "active_connections";
    /// Connections while their request head is being read.
    Reading Gauge Count "reading_connections";
    /// Connections while their request is worked on or being answered.
    Writing Gauge Count "writing_connections";
    /// Idle keep-alive connections.
    Waiting Gauge Count "waiting_connections";
    /// Connections closed because of a defect of the server while it served them.
    Panicked Counter Count "panicked_connections";
    /// Configurations taken into use after the first.
    Reloaded Counter Count "reloads";
    /// Configurations that running workers have taken.
    Changed Counter Count "changes";
    /// Configurations of `http` that workers hold: one each, and each older one that still has requests.
    Sites Gauge Count "sites";
    /// Reloads that failed, so that the configuration before went on.
    ReloadFailed Counter Count "failed_reloads";
    /// Turns of loops in which something was handled.
    Turns Counter Count "turns";
    /// Time that loops spent in turns.
    Busy Counter Seconds "busy";
    /// Time that loops slept.
    Slept Counter Seconds "slept";
    /// Time that loops slept while new connections could wake them.
    Armed Counter Seconds "armed";
    /// Handlers that took longer than blocked_threshold.
    SlowHandlers Counter Count "slow_handlers";
    /// Of these, handlers that were slow because their loop waited for a processor.
    Preempted Counter Count "preempted_handlers";
    /// Messages about slow handlers that were left out, since there were too many at a time.
    SlowLeftOut Counter Count "slow_handlers_left_out";
    /// TLS handshakes of clients that were completed.
    TlsHandshakes Counter Count "tls_handshakes";
    /// Of these, those that resumed a session.
    TlsResumed Counter Count "tls_resumed_sessions";
    /// TLS handshakes of clients that failed.
    TlsFailed Counter Count "tls_failed_handshakes";
    /// Of these, handshakes whose client left or was silent for too long.
    TlsAbandoned Counter Count "tls_abandoned_handshakes";
    /// Of these, handshakes whose client did not accept the certificate.
    TlsDistrusted Counter Count "tls_distrusted_certificates";
    /// Of these, handshakes with no version, cipher, curve or protocol that both sides speak.
    TlsIncompatible Counter Count "tls_incompatible_clients";
    /// QUIC connections whose handshake was completed.
    QuicConnections Counter Count "quic_connections";
    /// QUIC connections that ended before their handshake was completed.
    QuicUnfinished Counter Count "quic_unfinished_handshakes";
    /// Open QUIC connections, those in their handshake included.
    QuicOpen Gauge Count "quic_open_connections";
    /// QUIC clients that were asked to show first that their address is their own.
    QuicRetries Counter Count "quic_retries";
    /// Requests for QUIC connections that got no answer: the loop was full, or about to end.
    QuicIgnored Counter Count "quic_ignored_connections";
    /// QUIC clients that went on at another address.
    QuicMoved Counter Count "quic_moved_clients";
    /// Datagrams that were passed to the loop that has their QUIC connection.
    QuicForwarded Counter Count "quic_forwarded_datagrams";
    /// Packets of QUIC that were sent to clients; a connection counts them at its end and every ten seconds.
    QuicSent Counter Count "quic_sent_packets";
    /// Of these, packets that were lost.
    QuicLost Counter Count "quic_lost_packets";
    /// Connections that an idle loop took over from a stalled one.
    TakenOver Counter Count "taken_over_connections";
    /// Events of a stalled loop that an idle loop could not take and passed on.
    PassedOn Counter Count "passed_on_events";
    /// Checks of stalled loops that found no connection to take over.
    LookedInVain Counter Count "looks_in_vain";
    /// Files of caches that could not be read or written.
    CacheFaults Counter Count "cache_faults";
    /// Answers passed on without being stored because the disk of their cache was too slow.
    CacheUnstored Counter Count "cache_unstored_answers";
    /// Messages left out of error logs because too many of a kind came within a second.
    LogLeftOut Counter Count "log_left_out_messages";
    /// Lines of log files that were lost, since the file did not take them.
    LogLost Counter Count "log_lost_lines";
    /// Times that no connection could be accepted, for want of descriptors or memory.
    AcceptFailed Counter Count "failed_accepts";
    /// Of these, for want of memory.
    AcceptNoMemory Counter Count "failed_accepts_without_memory";
    /// Connections that were lost before they could be accepted.
    AcceptAborted Counter Count "aborted_accepts";
    /// Times that a loop accepted nothing because it had all of its worker_connections and none was idle.
    ConnectionsFull Counter Count "connections_exhausted";
    /// Datagrams to `stream` that were dropped for want of room, or sooner than proxy_upload_rate allows.
    DroppedDatagrams Counter Count "dropped_datagrams";
    /// Questions to name servers.
    LookupAsked Counter Count "resolver_questions";
    /// Questions that a name server refused or could not answer, or whose name server cannot be reached.
    LookupFailed Counter Count "resolver_failures";
    /// Names that do not exist, as name servers say.
    LookupNotFound Counter Count "resolver_unknown_names";
    /// Times that a name server did not answer in time.
    LookupTimedOut Counter Count "resolver_timeouts";
    /// Spans of requests that the collector took.
    SpansSent Counter Count "exported_spans";
    /// Spans that the collector did not take, or that found no room while they waited for it.
    SpansDropped Counter Count "dropped_spans";
    /// Worker processes that ended without being told to.
    Died Counter Count "died_workers";
}
