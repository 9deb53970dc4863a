//! Watches, one for each kind of objects. A watch that the API server cannot continue, since its history was compacted,
//! begins with a list; one that fails is tried again.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::cluster::{Cluster, Key, Table, Watched, lock};
use super::shared::{Options, Publish, Shared, say};
use super::slices::Touched;

/// Seconds after which a watch is asked for anew; so one that is dead without a word is noticed.
pub const LONGEST_WATCH: u64 = 60;

/// Waits between tries: the API server is asked again soon, for what is served meanwhile is old.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Starts all watches. Secrets of Helm are large, and none of them is served.
pub fn all(client: &Client, options: &Options, shared: &Arc<Shared>) {
    let namespace = options.namespace.as_deref();
    // Before the first list of others has ended.
    named(client, options, shared);
    let secrets = "type!=helm.sh/release.v1";
    let maps = "metadata.name!=kube-root-ca.crt";
    keep(scoped(client, namespace), "", Need::Needed, shared, |c| &c.ingresses);
    keep(scoped(client, namespace), "", Need::Needed, shared, |c| &c.services);
    keep_slices(scoped(client, namespace), shared);
    keep(scoped(client, namespace), secrets, Need::Needed, shared, |c| &c.secrets);
    keep(scoped(client, namespace), maps, Need::Needed, shared, |c| &c.config_maps);
    match options.cluster_scope {
        true => of_cluster(client, namespace, shared),
        false => shared.cluster.give_up_cluster_scope(),
    }
}

/// Watches what has no namespace, and the objects of Gateway API, whose definitions have none.
fn of_cluster(client: &Client, namespace: Option<&str>, shared: &Arc<Shared>) {
    // The rights of one namespace may not reach beyond it.
    let classes = if namespace.is_some() { Need::Useful } else { Need::Needed };
    keep(Api::all(client.clone()), "", classes, shared, |c| &c.classes);
    // Without their labels, no namespace is selected; Ingresses do not need them.
    keep(Api::all(client.clone()), "", Need::Useful, shared, |c| &c.namespaces);
    let namespace = namespace.map(str::to_owned);
    tokio::spawn(super::kinds::follow(client.clone(), namespace, shared.clone()));
}

/// Watches the objects that the command line names outside of the only namespace that is watched.
fn named(client: &Client, options: &Options, shared: &Arc<Shared>) {
    let Some(only) = &options.namespace else { return };
    let settings = &options.settings;
    let is_outside = |key: &&Key| key.0 != *only;
    let maps = [&options.config_map].into_iter().chain(&settings.sessions).flatten();
    for key in maps.filter(is_outside).collect::<BTreeSet<_>>() {
        keep_one(client, key, Need::Needed, shared, |c| &c.config_maps);
    }
    if let Publish::Service(namespace, name) = &options.publish
        && namespace != only
    {
        let key = (namespace.clone(), name.clone());
        keep_one(client, &key, Need::Useful, shared, |c| &c.services);
    }
    if let Some(key) = settings.default_certificate.as_ref().filter(is_outside) {
        keep_one(client, key, Need::Useful, shared, |c| &c.secrets);
    }
}

/// Watches one object, which needs no right for any other.
fn keep_one<K>(
    client: &Client,
    key: &Key,
    need: Need,
    shared: &Arc<Shared>,
    table: fn(&Cluster) -> &Mutex<Table<K>>,
) where
    K: Watched + Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: DeserializeOwned + Debug,
{
    let (key, shared) = (key.clone(), shared.clone());
    let api: Api<K> = Api::namespaced(client.clone(), &key.0);
    lock(table(&shared.cluster)).watch_apart(key.clone());
    tokio::spawn(async move {
        let mut events = events(api, config(&format!("metadata.name={}", key.1)));
        let mut outage = Outage::new(&format!("{} {}/{}", K::kind(&()), key.0, key.1), need);
        let mut listed = None;
        while let Some(event) = events.next().await {
            let object = match event {
                Ok(event) => {
                    outage.passed(&shared, matches!(event, Event::Init));
                    match event {
                        Event::Init => {
                            listed = None;
                            continue;
                        }
                        Event::InitApply(object) => {
                            listed = Some(object);
                            continue;
                        }
                        Event::InitDone => listed.take(),
                        Event::Apply(object) => Some(object),
                        Event::Delete(_) => None,
                    }
                }
                Err(error) => {
                    if outage.failed(&shared, &error)
                        && need == Need::Useful
                        && lock(table(&shared.cluster)).give_up_apart(&key)
                    {
                        shared.cluster.changed.notify_one();
                    }
                    continue;
                }
            };
            if lock(table(&shared.cluster)).take_apart(&key, object) {
                shared.counters.changes.add();
                shared.cluster.changed.notify_one();
            }
        }
    });
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn keep<K>(
    api: Api<K>,
    fields: &str,
    need: Need,
    shared: &Arc<Shared>,
    table: fn(&Cluster) -> &Mutex<Table<K>>,
) where
    K: Watched + Resource<DynamicType = ()> + DeserializeOwned + Debug,
{
    let shared = shared.clone();
    let config = config(fields);
    tokio::spawn(async move {
        let mut events = events(api, config);
        let mut outage = Outage::new(&K::kind(&()), need);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    outage.passed(&shared, matches!(event, Event::Init));
                    if lock(table(&shared.cluster)).take(event) {
                        shared.counters.changes.add();
                        shared.cluster.changed.notify_one();
                    }
                }
                Err(error) => {
                    if outage.failed(&shared, &error)
                        && need == Need::Useful
                        && lock(table(&shared.cluster)).give_up()
                    {
                        shared.cluster.changed.notify_one();
                    }
                }
            }
        }
    });
}

/// Addresses of pods go into the files of groups at once. Of them, the configuration depends on little.
fn keep_slices(api: Api<EndpointSlice>, shared: &Arc<Shared>) {
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut events = events(api, config(""));
        let mut outage = Outage::new("EndpointSlice", Need::Needed);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    outage.passed(&shared, matches!(event, Event::Init));
                    if follow(&shared, event) {
                        shared.counters.changes.add();
                        shared.cluster.changed.notify_one();
                    }
                }
                Err(error) => {
                    outage.failed(&shared, &error);
                }
            }
        }
    });
}

/// Brings the files of groups to what the watch has said; whether the configuration depends on it.
fn follow(shared: &Shared, event: Event<EndpointSlice>) -> bool {
    let mut slices = lock(&shared.cluster.slices);
    let touched = slices.take(event);
    let mut servers = lock(&shared.servers);
    match touched {
        Touched::Nothing => false,
        Touched::Services(services) => {
            shared.counters.endpoint_changes.add();
            let follow = |service| servers.follow(&service, &slices, &shared.counters);
            services.into_iter().map(follow).fold(false, |any, one| any | one)
        }
        Touched::All => {
            servers.follow_all(&slices, &shared.counters);
            true
        }
    }
}

/// How objects are watched.
pub fn config(fields: &str) -> Config {
    let config = Config::default().timeout(LONGEST_WATCH as u32);
    if fields.is_empty() { config } else { config.fields(fields) }
}

/// What a watch tells. It begins anew, with a list, where the API server refuses to go on from what was seen last: the watcher
/// of `kube` would ask for the same again and again.
pub fn events<K>(api: Api<K>, config: Config) -> BoxStream<'static, Result<Event<K>, Error>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    let events = stream::unfold((begin(), begin), |(mut events, begin)| async move {
        let event = events.next().await?;
        if matches!(&event, Err(error @ Error::WatchStartFailed(_)) if is(error, 410)) {
            events = begin();
        }
        Some((event, (events, begin)))
    });
    events.backoff(waits()).boxed()
}

/// The waits between tries.
fn waits() -> impl Backoff {
    Waits { next: FIRST_WAIT, events: 0 }
}

/// So many refusals in a row are no matter of the API server's start.
const REFUSALS: u32 = 4;

/// What comes of a kind that cannot be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing is served without it.
    Needed,
    /// The rest is served without it.
    Useful,
}

/// What is said about a watch that fails: one line for an outage, one where rights are missing, and one for its end.
pub struct Outage {
    kind: String,
    need: Need,
    failed: bool,
    refusals: u32,
}

impl Outage {
    pub fn new(kind: &str, need: Need) -> Outage {
        Outage { kind: kind.to_owned(), need, failed: false, refusals: 0 }
    }

    /// An event has come. A list that only begins may still fail.
    pub fn passed(&mut self, shared: &Shared, begins: bool) {
        shared.counters.watched.add();
        if begins {
            return;
        }
        self.refusals = 0;
        lock(&shared.obstacles).remove(&self.kind);
        if std::mem::take(&mut self.failed) {
            say("notice", format_args!("{}: the watch goes on", self.kind));
        }
    }

    /// The watch has failed; whether the API server refuses it again and again.
    pub fn failed(&mut self, shared: &Shared, error: &Error) -> bool {
        shared.counters.watch_failures.add();
        // What the history has lost is no failure.
        if !std::mem::replace(&mut self.failed, true) && !is(error, 410) {
            say("warn", format_args!("{}: {}", self.kind, whole(error)));
        }
        self.refusals = if is(error, 403) { self.refusals.saturating_add(1) } else { 0 };
        if self.need == Need::Needed {
            lock(&shared.obstacles).insert(self.kind.clone(), whole(error));
            // The first failure may have been another one, as of an API server that only starts.
            if self.refusals == REFUSALS {
                say(
                    "error",
                    format_args!("a right is missing, changes are not seen: {}", whole(error)),
                );
            }
        }
        self.refusals >= REFUSALS
    }
}

/// Whether the API server has answered with a status.
fn is(error: &Error, code: u16) -> bool {
    match error {
        Error::WatchError(status) => status.code == code,
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status)) => status.code == code,
        _ => false,
    }
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

/// Each wait is twice the one before, until the watch has told something. The first event after a failure is the beginning
/// of a list, which comes before the API server was asked: it ends nothing.
struct Waits {
    next: Duration,
    events: u32,
}

impl Iterator for Waits {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.next;
        self.next = (wait * 2).min(LONGEST_WAIT);
        self.events = 0;
        Some(wait)
    }
}

impl Backoff for Waits {
    fn reset(&mut self) {
        self.events = self.events.saturating_add(1);
        if self.events > 1 {
            self.next = FIRST_WAIT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_only_begins_does_not_end_the_row_of_waits() {
        let mut waits = Waits { next: FIRST_WAIT, events: 0 };
        let mut row = Vec::new();
        for _ in 0..7 {
            waits.reset();
            row.extend(waits.next().map(|wait| wait.as_millis()));
        }
        assert_eq!(row, [200, 400, 800, 1600, 3200, 5000, 5000]);
        waits.reset();
        waits.reset();
        assert_eq!(waits.next(), Some(FIRST_WAIT));
    }
}
