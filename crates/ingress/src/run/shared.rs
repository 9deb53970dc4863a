//! State that all tasks share: options, objects, counters and the log.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::time::sleep;

use super::cluster::Cluster;
use super::health::Counters;
use super::servers::ServerFiles;
use crate::gateway::Statuses;
use crate::gateway::services::Template;
use crate::report::{Finding, ObjectId};
use crate::settings::Settings;

/// The command line of `run`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Settings of the translation.
    pub settings: Settings,
    /// The configuration file that weir starts with.
    pub base: PathBuf,
    /// weir's Unix socket with `weir_api config`.
    pub weir_socket: PathBuf,
    /// The address of probes and metrics.
    pub health: SocketAddr,
    /// The address of the admission webhook, and the directory of its tls.crt and tls.key.
    pub admission: Option<(SocketAddr, PathBuf)>,
    /// The only watched namespace, if not all are watched.
    pub namespace: Option<String>,
    /// Whether objects without a namespace are watched, and those of Gateway API, whose definitions
    /// have none.
    pub cluster_scope: bool,
    /// The ConfigMap of the controller: namespace, name.
    pub config_map: Option<(String, String)>,
    /// The Lease: namespace, name.
    pub lease: (String, String),
    /// This pod's name.
    pub identity: String,
    /// This pod's address. Gateways have it if no other is published.
    pub pod_address: Option<String>,
    /// The addresses in the status of Ingresses.
    pub publish: Publish,
    /// The template of the Services of Gateways; `None` if none are made.
    pub services: Option<Template>,
    /// How long changes are collected.
    pub collect: Duration,
    /// How long this program keeps running after a signal to end. It is not ready meanwhile.
    pub drain: Duration,
}

/// The addresses of this controller for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publish {
    /// No status is written.
    Nothing,
    /// These addresses or names.
    Addresses(Vec<String>),
    /// The addresses of a Service: namespace and name.
    Service(String, String),
}

/// The result of the last translation, for the tasks that write into the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    pub(super) served: Vec<ObjectId>,
    /// The statuses for the configuration that weir serves.
    pub(super) statuses: Option<Arc<Statuses>>,
}

/// What the tasks share.
pub(super) struct Shared {
    pub(super) cluster: Cluster,
    pub(super) counters: Counters,
    /// The groups whose servers are in files.
    pub(super) servers: Mutex<ServerFiles>,
    /// Until when this pod holds the Lease unless it renews it. A process that was stopped may find that this time has passed.
    pub(super) leads: Sender<Option<Instant>>,
    pub(super) report: Sender<Arc<Report>>,
    /// Why this program is not ready, by kind: required kinds that cannot be watched, and refused
    /// keys of the ConfigMap.
    pub(super) obstacles: Mutex<BTreeMap<String, String>>,
    /// Whether a signal has ended this program.
    pub(super) ends: AtomicBool,
}

impl Shared {
    pub(super) fn new(settings: &Settings) -> Shared {
        Shared {
            cluster: Cluster::default(),
            counters: Counters::default(),
            servers: Mutex::new(ServerFiles::new(settings)),
            leads: channel(None).0,
            report: channel(Arc::default()).0,
            obstacles: Mutex::default(),
            ends: AtomicBool::new(false),
        }
    }

    /// Whether this pod may write to the cluster now.
    pub(super) fn leads(&self) -> bool {
        is_held(*self.leads.borrow(), Instant::now())
    }
}

/// Whether a Lease that is held until `until` is held at `time`.
pub(super) fn is_held(until: Option<Instant>, time: Instant) -> bool {
    until.is_some_and(|until| time < until)
}

/// The timeout of a call to the API server.
pub(super) const LONGEST_CALL: Duration = Duration::from_secs(5);

/// How often the cluster is compared with the last report, if nothing changes.
const COMPARE_EVERY: Duration = Duration::from_secs(10);

/// Waits for a new report, a change of leadership, or the next comparison.
pub(super) async fn next_round(
    reports: &mut Receiver<Arc<Report>>,
    leads: &mut Receiver<Option<Instant>>,
) {
    tokio::select! {
        _ = reports.changed() => {}
        _ = leads.changed() => {}
        () = sleep(COMPARE_EVERY) => {}
    }
}

/// Logs a line.
pub(super) fn say(level: &str, text: impl std::fmt::Display) {
    eprintln!("weir-ingress: [{level}] {text}");
}
