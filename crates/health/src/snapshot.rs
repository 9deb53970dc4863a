//! The state of the server that the rules judge.

/// The server at a moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// In milliseconds since 1970.
    pub at: u64,
    /// In milliseconds of the monotonic clock.
    pub now: u64,
    /// Requests so far.
    pub requests: u64,
    /// Requests that ended in a status of 5xx, but for those above a limit.
    pub errors: u64,
    /// Requests that a limit refused.
    pub limited: u64,
    /// Files of caches that could not be read or written.
    pub cache_faults: u64,
    /// Answers that were not stored because the disk was too slow.
    pub unstored: u64,
    /// Lines of log files that were lost.
    pub log_lost: u64,
    /// Accepts that failed for want of descriptors or memory.
    pub accepts_failed: u64,
    /// Times that a name server did not answer in time.
    pub lookups_timed_out: u64,
    /// File operations that have lasted for over a second, one of each process.
    pub blocked: Vec<BlockedFile>,
    /// How many connections a loop may have.
    pub connections: u64,
    /// The fullest accept queue of each address.
    pub queues: Vec<AcceptQueue>,
    /// The worker processes whose figures are known.
    pub processes: Vec<ProcessState>,
    /// The memory of the server's control group, where it has a limit.
    pub memory: Option<MemoryUse>,
    /// Certificates that end within [`CERTIFICATE_ENDS`](crate::CERTIFICATE_ENDS), or that have ended.
    pub certificates: Vec<EndingCertificate>,
    /// Certificates that authorities do not give.
    pub orders: Vec<FailingOrder>,
    /// The busiest loop, if the loops have worked unevenly for seconds.
    pub uneven: Option<Uneven>,
    /// The servers behind.
    pub servers: Vec<ServerBehind>,
    /// The loops that run, those of older configurations as well.
    pub loops: Vec<LoopState>,
    /// When the last reload failed, in milliseconds since 1970. None if a later one succeeded.
    pub failed_reload: Option<u64>,
    /// When workers ended that were not told to, the oldest first, by the clock of `now`.
    pub deaths: Vec<u64>,
    /// How the last of them ended.
    pub last_death: String,
    /// Workers that ended and are not started again.
    pub missing: usize,
    /// Workers that were told to end and still run.
    pub old_workers: Vec<OldWorker>,
}

/// A server behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerBehind {
    /// Its group.
    pub group: String,
    /// Its address.
    pub server: String,
    /// An administrator took it out.
    pub is_out: bool,
    /// Its last attempts failed.
    pub failing: Option<FailingServer>,
}

/// Why a server behind is thought to be broken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailingServer {
    /// When it first failed after its last success, in milliseconds since 1970, if known.
    pub since: Option<u64>,
    /// Attempts that failed since then.
    pub in_a_row: u64,
    /// No connection could be made to it.
    pub unreachable: bool,
    /// Why the last attempt failed.
    pub reason: String,
}

/// A loop.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoopState {
    /// Its worker.
    pub worker: u32,
    /// Its number there.
    pub index: u32,
    /// Its process.
    pub pid: u32,
    /// It belongs to an older configuration.
    pub is_old: bool,
    /// For how long its present turn has lasted, in milliseconds; 0 while it sleeps.
    pub awake_for: u64,
    /// What its handler does in a turn that has lasted for over a second.
    pub stalled: Option<String>,
    /// For how long it has worked so far, in milliseconds.
    pub busy: u64,
    /// Its open client connections.
    pub open: u64,
}

/// A file operation that does not end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockedFile {
    /// Its process.
    pub pid: u32,
    /// How long it has lasted, in milliseconds.
    pub lasts: u64,
    /// A request waits for what it reads.
    pub reads: bool,
    /// What it does to which file.
    pub what: String,
}

/// The figures of a worker process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessState {
    /// Its number.
    pub pid: u32,
    /// Its open files and sockets.
    pub descriptors: u64,
    /// The most that it may have; 0 if there is no limit.
    pub descriptors_limit: u64,
}

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Memory in use, without pages that the kernel can drop at once.
    pub used: u64,
    /// The most that may be used.
    pub limit: u64,
}

/// A certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndingCertificate {
    /// Its file.
    pub file: String,
    /// The first of its names.
    pub name: String,
    /// The end of its validity, in milliseconds since 1970.
    pub not_after: u64,
}

/// A certificate that an authority is asked for, and does not give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailingOrder {
    /// The authority's name in the configuration.
    pub issuer: String,
    /// The names of the certificate.
    pub names: String,
    /// The end of the present certificate's validity, in milliseconds since 1970; 0 if there is none.
    pub not_after: u64,
    /// When the first attempt failed, in milliseconds since 1970.
    pub since: u64,
    /// When the next one is, if one is planned.
    pub next: Option<String>,
    /// Why the last one failed.
    pub reason: String,
}

/// An accept queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptQueue {
    /// The address that it belongs to.
    pub address: String,
    /// Connections in the queue.
    pub n: u32,
    /// The backlog: the most connections in the queue.
    pub most: u32,
}

/// The busiest loop beside the mean of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uneven {
    /// The busiest loop's worker.
    pub worker: u32,
    /// Its number there.
    pub index: u32,
    /// Its process.
    pub pid: u32,
    /// Its share of the time in percent.
    pub most: u32,
    /// The mean of all.
    pub mean: u32,
    /// How many there are.
    pub loops: usize,
}

/// A worker that was told to end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OldWorker {
    /// Its process.
    pub pid: u32,
    /// When it was told, by the clock of [`Snapshot::now`].
    pub told: u64,
    /// Its open connections.
    pub open: u64,
}
