//! What all tasks have: the options, the objects and counters, and the way to the log.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch::{Receiver, Sender};
use tokio::time::sleep;

use super::cluster::Cluster;
use super::health::Counters;
use super::servers::ServerFiles;
use crate::gateway::Statuses;
use crate::gateway::services::Template;
use crate::report::{Finding, ObjectId};
use crate::settings::Settings;

/// What `run` is told on the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// Settings of the translation.
    pub settings: Settings,
    /// The configuration file that weir starts with.
    pub base: PathBuf,
    /// weir's socket with `weir_api config`.
    pub door: PathBuf,
    /// Where probes and metrics are answered.
    pub health: SocketAddr,
    /// Where the admission webhook listens, and the directory of its tls.crt and tls.key.
    pub admission: Option<(SocketAddr, PathBuf)>,
    /// The only namespace that is watched.
    pub namespace: Option<String>,
    /// Whether objects without a namespace are watched, and those of Gateway API, whose kinds are such objects.
    pub cluster_scope: bool,
    /// The ConfigMap of the controller: namespace, name.
    pub config_map: Option<(String, String)>,
    /// The Lease: namespace, name.
    pub lease: (String, String),
    /// This pod's name.
    pub identity: String,
    /// This pod's address, which Gateways have if nothing else is published.
    pub pod_address: Option<String>,
    /// What the status of Ingresses says.
    pub publish: Publish,
    /// What the Services of Gateways are like; `None`: none are made.
    pub services: Option<Template>,
    /// How long changes are collected.
    pub collect: Duration,
    /// How long this program goes on after it was told to end, and is not ready meanwhile.
    pub drain: Duration,
}

/// Where clients reach this controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publish {
    /// No status is written.
    Nothing,
    /// At these addresses or names.
    Addresses(Vec<String>),
    /// At those of a Service: namespace and name.
    Service(String, String),
}

/// What the last translation has said, for those who write it into the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    pub(super) served: Vec<ObjectId>,
    /// Those of the configuration that weir serves.
    pub(super) statuses: Option<Arc<Statuses>>,
}

/// What the tasks share.
pub(super) struct Shared {
    pub(super) cluster: Cluster,
    pub(super) counters: Counters,
    /// Groups whose servers stand in files.
    pub(super) servers: Mutex<ServerFiles>,
    /// This pod holds the Lease.
    pub(super) leads: Sender<bool>,
    pub(super) report: Sender<Arc<Report>>,
    /// Kinds without which nothing is served and that cannot be watched, and why.
    pub(super) obstacles: Mutex<BTreeMap<String, String>>,
    /// This program was told to end.
    pub(super) ends: AtomicBool,
}

/// A call that the API server does not answer for so long has failed.
pub(super) const LONGEST_CALL: Duration = Duration::from_secs(5);

/// How often what was written is compared without a report.
const LOOK: Duration = Duration::from_secs(10);

/// Waits for a new report, for the Lease to come or go, or until it is time to compare.
pub(super) async fn next_round(reports: &mut Receiver<Arc<Report>>, leads: &mut Receiver<bool>) {
    tokio::select! {
        _ = reports.changed() => {}
        _ = leads.changed() => {}
        () = sleep(LOOK) => {}
    }
}

/// A line for the administrator.
pub(super) fn say(level: &str, text: impl std::fmt::Display) {
    eprintln!("weir-ingress: [{level}] {text}");
}
