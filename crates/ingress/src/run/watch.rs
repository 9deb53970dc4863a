//! Watches, one for each kind of objects. A watch that the API server cannot continue, since its history was compacted,
//! begins with a list; one that fails is tried again.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::cluster::{Cluster, Table, Watched, lock};
use super::{Shared, say};

/// Seconds after which a watch is asked for anew; so one that is dead without a word is noticed.
pub const LONGEST_WATCH: u64 = 60;

/// Waits between tries: the API server is asked again soon, for what is served meanwhile is old.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Starts all watches. Secrets of Helm are large, and none of them is served.
pub fn all(client: &Client, namespace: Option<&str>, shared: &Arc<Shared>) {
    let secrets = "type!=helm.sh/release.v1";
    let maps = "metadata.name!=kube-root-ca.crt";
    keep(Api::all(client.clone()), "", shared, |c| &c.classes);
    keep(scoped(client, namespace), "", shared, |c| &c.ingresses);
    keep(scoped(client, namespace), "", shared, |c| &c.services);
    keep(scoped(client, namespace), "", shared, |c| &c.slices);
    keep(scoped(client, namespace), secrets, shared, |c| &c.secrets);
    keep(scoped(client, namespace), maps, shared, |c| &c.config_maps);
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Watched + Resource<Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn keep<K>(api: Api<K>, fields: &str, shared: &Arc<Shared>, table: fn(&Cluster) -> &Mutex<Table<K>>)
where
    K: Watched + DeserializeOwned + Debug,
{
    let shared = shared.clone();
    let mut config = Config::default().timeout(LONGEST_WATCH as u32);
    if !fields.is_empty() {
        config = config.fields(fields);
    }
    tokio::spawn(async move {
        let mut events = watcher(api, config).backoff(Waits(FIRST_WAIT)).boxed();
        let kind = K::kind(&());
        let mut failed = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // A list that only begins may still fail.
                    if !matches!(event, Event::Init) && std::mem::take(&mut failed) {
                        say("notice", format_args!("{kind}: the watch goes on"));
                    }
                    shared.counters.watched.add();
                    if lock(table(&shared.cluster)).take(event) {
                        shared.counters.changes.add();
                        shared.cluster.changed.notify_one();
                    }
                }
                Err(error) => {
                    shared.counters.watch_failures.add();
                    // Once for an outage; what the history has lost is no failure.
                    if !std::mem::replace(&mut failed, true) && !is_compaction(&error) {
                        say("warn", format_args!("{kind}: {}", whole(&error)));
                    }
                }
            }
        }
    });
}

fn is_compaction(error: &Error) -> bool {
    matches!(error, Error::WatchError(status) if status.code == 410)
}

/// An error with its causes.
pub fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// Each wait is twice the one before; the first event ends the row.
struct Waits(Duration);

impl Iterator for Waits {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST_WAIT);
        Some(wait)
    }
}

impl Backoff for Waits {
    fn reset(&mut self) {
        self.0 = FIRST_WAIT;
    }
}
