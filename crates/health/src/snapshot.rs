//! What the rules see.

/// The server at a moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// In milliseconds since 1970.
    pub at: u64,
    /// In milliseconds of a clock that is never set.
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
    /// The worker processes of which the system has told something.
    pub processes: Vec<ProcessState>,
    /// The memory of the server's control group, where it has a limit.
    pub memory: Option<MemoryUse>,
    /// Certificates that end within [`CERTIFICATE_ENDS`](crate::CERTIFICATE_ENDS), or that have ended.
    pub certificates: Vec<EndingCertificate>,
    /// Certificates that authorities do not give.
    pub orders: Vec<FailingOrder>,
    /// The loops have worked unevenly for seconds.
    pub uneven: Option<Uneven>,
    /// The servers behind.
    pub servers: Vec<ServerBehind>,
    /// The loops that run, those of older configurations as well.
    pub loops: Vec<LoopState>,
    /// When the last reload failed, unless a later one succeeded; in milliseconds since 1970.
    pub failed_reload: Option<u64>,
    /// When workers ended that were not told to, the oldest first, by the clock of `now`.
    pub deaths: Vec<u64>,
    /// How the last of them ended.
    pub last_death: String,
    /// Workers that are not there and are not started again.
    pub missing: usize,
    /// Workers that were told to end and run.
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
    /// When it failed first since it served last, in milliseconds since 1970, where that is known.
    pub since: Option<u64>,
    /// Attempts that failed since then.
    pub in_a_row: u64,
    /// There was no connection to it.
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
    /// What it is at in a turn that has lasted for over a second.
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

/// What the system says of a worker process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessState {
    /// Its number.
    pub pid: u32,
    /// Its open files and sockets.
    pub descriptors: u64,
    /// How many it may have; 0 if there is no limit.
    pub descriptors_limit: u64,
}

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// What is used, without what the kernel can drop at once.
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
    /// Its last moment, in milliseconds since 1970.
    pub not_after: u64,
}

/// A certificate that an authority is asked for, and does not give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailingOrder {
    /// The authority's name in the configuration.
    pub issuer: String,
    /// The names of the certificate.
    pub names: String,
    /// The last moment of the certificate that there is, in milliseconds since 1970; 0 if there is none.
    pub not_after: u64,
    /// When the first attempt failed, in milliseconds since 1970.
    pub since: u64,
    /// When the next one is, if one is planned.
    pub next: Option<String>,
    /// Why the last one failed.
    pub reason: String,
}

/// Connections that wait to be accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptQueue {
    /// Where they have come to.
    pub address: String,
    /// How many wait.
    pub n: u32,
    /// How many may.
    pub most: u32,
}

/// One loop has had most of the work.
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
