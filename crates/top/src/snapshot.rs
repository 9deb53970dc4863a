//! The data of a server. Values that the server lacks get their defaults.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// All counters at a point in time.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Snapshot {
    pub build: Build,
    /// Seconds since 1970.
    pub now: f64,
    pub uptime: f64,
    /// Length of the interval of the `lately_` values, in seconds.
    pub lately: f64,
    /// The number of reloads.
    pub generation: u64,
    pub totals: BTreeMap<String, f64>,
    pub health: Health,
    pub balance: Balance,
    pub loops: Vec<Loop>,
    pub listeners: Vec<Listener>,
    pub culprits: Vec<Culprit>,
    pub status_zones: BTreeMap<String, Zone>,
    pub upstreams: BTreeMap<String, Vec<Peer>>,
    pub stream_upstreams: BTreeMap<String, Vec<StreamPeer>>,
    pub caches: BTreeMap<String, Cache>,
}

/// Parses a snapshot. Its texts are made printable, since another machine may have written them and
/// they go to a terminal.
pub(crate) fn read(json: &[u8]) -> Option<Snapshot> {
    serde_json::from_value(plain(serde_json::from_slice(json).ok()?)).ok()
}

fn plain(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(weir_print::plain(&text)),
        Value::Array(values) => values.into_iter().map(plain).collect(),
        Value::Object(members) => {
            let members = members.into_iter();
            members.map(|(name, value)| (weir_print::plain(&name), plain(value))).collect()
        }
        other => other,
    }
}

/// The server's health.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Health {
    /// Empty if the server does not report it.
    pub state: String,
    pub text: String,
    /// Seconds since 1970.
    pub since: Option<f64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Build {
    pub version: String,
}

/// The balance of the loops.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Balance {
    pub policy: String,
    pub imbalance: f64,
    /// The imbalance from which on there may be an alarm.
    pub threshold: f64,
    #[serde(deserialize_with = "truth")]
    pub alarm: bool,
    /// Indices of loops, in the order in which they would be woken.
    pub next: Vec<usize>,
}

/// Parses a state: a word, or for a large group the number of servers in each state.
fn states<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::String(word) => word,
        Value::Object(counts) => {
            let some = counts.iter().filter(|(word, n)| *word != "total" && n.as_u64() > Some(0));
            some.map(|(word, n)| format!("{n} {word}")).collect::<Vec<_>>().join(", ")
        }
        _ => String::new(),
    })
}

/// Parses a boolean, which metrics represent as a number.
fn truth<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(value.as_bool().unwrap_or(value.as_f64().is_some_and(|n| n != 0.0)))
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Loop {
    pub worker: u32,
    #[serde(rename = "loop")]
    pub number: u32,
    pub pid: i32,
    pub tid: i32,
    pub state: String,
    /// Whether it belongs to an older configuration.
    pub finishing: bool,
    pub accepted: f64,
    pub requests: f64,
    pub open: u64,
    pub inflight: u64,
    pub sent: f64,
    pub busy_us: f64,
    pub awake_for_us: f64,
    pub share_busy: f64,
    pub lately_requests: f64,
    pub lately_accepted: f64,
    pub lately_sent: f64,
    pub blocked: Histogram,
}

/// Times since the start of the loop, the zone or the peer.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Histogram {
    pub count: f64,
    pub sum_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    /// The upper bound of each non-empty bucket, and the cumulative count.
    pub steps: Option<Vec<(f64, f64)>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Listener {
    pub address: String,
    pub queue: u64,
    pub backlog: u64,
    pub queues: Vec<u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Culprit {
    pub at: f64,
    pub took_us: f64,
    pub worker: u32,
    #[serde(rename = "loop")]
    pub number: u32,
    pub kind: String,
    pub what: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Zone {
    pub requests: BTreeMap<String, f64>,
    pub sessions: BTreeMap<String, f64>,
    pub sent: f64,
    pub latency: Histogram,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Peer {
    pub server: String,
    pub name: String,
    #[serde(deserialize_with = "states")]
    pub state: String,
    pub backup: bool,
    pub active: u64,
    pub requests: BTreeMap<String, f64>,
    pub fails: f64,
    /// The time of the last failure in seconds since 1970, and its reason.
    pub last_failure: Option<f64>,
    pub failure: Option<String>,
    pub latency: Histogram,
}

/// An upstream server of sessions.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StreamPeer {
    pub server: String,
    #[serde(deserialize_with = "states")]
    pub state: String,
    pub backup: bool,
    pub active: u64,
    pub sessions: f64,
    pub fails: f64,
    pub last_failure: Option<f64>,
    pub failure: Option<String>,
    pub connect: Histogram,
}

impl StreamPeer {
    /// The peer in the form of one for requests.
    fn peer(&self) -> Peer {
        let of = self.clone();
        Peer {
            server: of.server,
            name: String::new(),
            state: of.state,
            backup: of.backup,
            active: of.active,
            requests: BTreeMap::from([("total".to_owned(), of.sessions)]),
            fails: of.fails,
            last_failure: of.last_failure,
            failure: of.failure,
            latency: of.connect,
        }
    }
}

impl Snapshot {
    /// All upstream groups. For servers of sessions, the measured time is that to connect.
    pub(crate) fn groups(&self) -> BTreeMap<String, Vec<Peer>> {
        let mut all = self.upstreams.clone();
        for (group, peers) in &self.stream_upstreams {
            let peers = peers.iter().map(StreamPeer::peer).collect();
            all.insert(format!("{group} (stream)"), peers);
        }
        all
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Cache {
    pub size: f64,
    pub max_size: Option<f64>,
    pub entries: u64,
    pub evicted: f64,
    /// The number of requests by cache status.
    pub requests: BTreeMap<String, f64>,
}
