//! Watches, one for each kind of object. A failed watch is retried. If the API server has compacted
//! the history that a watch would resume from, the watch starts again with a list.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::Api;
use kube::core::Status;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::cluster::{Cluster, Key, Table, Watched, lock};
use super::shared::{Options, Publish, Shared, say};
use super::slices::Touched;

/// The timeout of a watch, in seconds. The watch is then requested anew, so that a dead connection
/// is noticed.
pub const LONGEST_WATCH: u64 = 60;

/// Waits between retries. They are short, since an outdated configuration is served meanwhile.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A watch that ends with a compacted history so soon after another did not go on in between.
const COMPACTED_SOON: Duration = Duration::from_secs(10);

/// Starts all watches. Secrets of Helm releases are left out: they are large, and none is served.
pub fn start_all(client: &Client, options: &Options, shared: &Arc<Shared>) {
    let namespace = options.namespace.as_deref();
    // Registered first: no kind counts as listed before the objects that the command line names.
    watch_named_objects(client, options, shared);
    let secrets = "type!=helm.sh/release.v1";
    let maps = "metadata.name!=kube-root-ca.crt";
    watch_kind(scoped(client, namespace), "", Need::Needed, shared, |c| &c.ingresses);
    watch_kind(scoped(client, namespace), "", Need::Needed, shared, |c| &c.services);
    watch_slices(scoped(client, namespace), shared);
    watch_kind(scoped(client, namespace), secrets, Need::Needed, shared, |c| &c.secrets);
    watch_kind(scoped(client, namespace), maps, Need::Needed, shared, |c| &c.config_maps);
    match options.cluster_scope {
        true => watch_cluster_scope(client, namespace, shared),
        false => shared.cluster.give_up_cluster_scope(),
    }
}

/// Watches objects without a namespace, and those of Gateway API, whose definitions have none.
fn watch_cluster_scope(client: &Client, namespace: Option<&str>, shared: &Arc<Shared>) {
    // The rights for one namespace may not include IngressClasses.
    let classes = if namespace.is_some() { Need::Useful } else { Need::Needed };
    watch_kind(Api::all(client.clone()), "", classes, shared, |c| &c.classes);
    // Without Namespaces, no selector of a listener matches. Ingresses do not need them.
    watch_kind(Api::all(client.clone()), "", Need::Useful, shared, |c| &c.namespaces);
    let namespace = namespace.map(str::to_owned);
    tokio::spawn(super::gateway_kinds::follow(client.clone(), namespace, shared.clone()));
}

/// Watches the objects outside the watched namespace that the command line names.
fn watch_named_objects(client: &Client, options: &Options, shared: &Arc<Shared>) {
    let Some(only) = &options.namespace else { return };
    let settings = &options.settings;
    let is_outside = |key: &&Key| key.0 != *only;
    let maps = [&options.config_map].into_iter().chain(&settings.sessions).flatten();
    for key in maps.filter(is_outside).collect::<BTreeSet<_>>() {
        watch_one(client, key, Need::Needed, shared, |c| &c.config_maps);
    }
    if let Publish::Service(namespace, name) = &options.publish
        && namespace != only
    {
        let key = (namespace.clone(), name.clone());
        watch_one(client, &key, Need::Useful, shared, |c| &c.services);
    }
    if let Some(key) = settings.default_certificate.as_ref().filter(is_outside) {
        watch_one(client, key, Need::Useful, shared, |c| &c.secrets);
    }
}

/// Watches one object by its name, for which the right to that object is enough.
fn watch_one<K>(
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
    lock(table(&shared.cluster)).expect_own_watch(key.clone());
    tokio::spawn(async move {
        let mut events = events(api, config(&format!("metadata.name={}", key.1)));
        let mut outage = Outage::new(&format!("{} {}/{}", K::kind(&()), key.0, key.1), need);
        let mut listed = None;
        while let Some(event) = events.next().await {
            let object = match event {
                Ok(event) => {
                    outage.event_received(&shared, matches!(event, Event::Init));
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
                    if outage.watch_failed(&shared, &error)
                        && need == Need::Useful
                        && lock(table(&shared.cluster)).give_up_own_watch(&key)
                    {
                        shared.cluster.changed.notify_one();
                    }
                    continue;
                }
            };
            if lock(table(&shared.cluster)).apply_own_watch(&key, object) {
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

fn watch_kind<K>(
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
                    outage.event_received(&shared, matches!(event, Event::Init));
                    if lock(table(&shared.cluster)).apply(event) {
                        shared.counters.changes.add();
                        shared.cluster.changed.notify_one();
                    }
                }
                Err(error) => {
                    if outage.watch_failed(&shared, &error)
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

/// Watches EndpointSlices. The addresses of pods go into the groups' files at once. The
/// configuration depends on few of their changes.
fn watch_slices(api: Api<EndpointSlice>, shared: &Arc<Shared>) {
    let shared = shared.clone();
    tokio::spawn(async move {
        let mut events = events(api, config(""));
        let mut outage = Outage::new("EndpointSlice", Need::Needed);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    outage.event_received(&shared, matches!(event, Event::Init));
                    if follow(&shared, event) {
                        shared.counters.changes.add();
                        shared.cluster.changed.notify_one();
                    }
                }
                Err(error) => {
                    outage.watch_failed(&shared, &error);
                }
            }
        }
    });
}

/// Updates the groups' files after an event. Returns whether the configuration depends on the
/// change.
fn follow(shared: &Shared, event: Event<EndpointSlice>) -> bool {
    let mut slices = lock(&shared.cluster.slices);
    let touched = slices.apply(event);
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

/// The parameters of a watch: its timeout and a field selector, if any.
pub fn config(fields: &str) -> Config {
    let config = Config::default().timeout(LONGEST_WATCH as u32);
    if fields.is_empty() { config } else { config.fields(fields) }
}

/// The events of a watch, with retries. On 410 (Gone) to the start of a watch, it begins anew with
/// a list. `kube`'s watcher would repeat the refused request forever.
pub fn events<K>(api: Api<K>, config: Config) -> BoxStream<'static, Result<Event<K>, Error>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let begin = move || watcher(api.clone(), config.clone()).boxed();
    let state = (begin(), begin, Compactions::default());
    let events = stream::unfold(state, |(mut events, begin, mut compactions)| async move {
        let event = events.next().await?;
        if matches!(&event, Err(error) if has_status(error, 410)) {
            sleep(compactions.wait(Instant::now())).await;
            if matches!(&event, Err(Error::WatchStartFailed(_))) {
                events = begin();
            }
        }
        Some((event, (events, begin, compactions)))
    });
    events.backoff(waits()).boxed()
}

/// Watches that ended with 410 (Gone) shortly after each other. A list of all objects follows each
/// of them, so the lists get longer pauses.
#[derive(Default)]
struct Compactions {
    last: Option<Instant>,
    wait: Duration,
}

impl Compactions {
    /// The pause after one of these ends, beside that after any failure.
    fn wait(&mut self, now: Instant) -> Duration {
        let before = self.last.replace(now);
        let is_soon = before.is_some_and(|last| now - last < COMPACTED_SOON + self.wait);
        self.wait = match is_soon {
            true => (self.wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT),
            false => Duration::ZERO,
        };
        self.wait
    }
}

/// The waits between retries.
fn waits() -> impl Backoff {
    Waits { next: FIRST_WAIT, events: 0 }
}

/// After this many refusals (403) in a row, a right is missing. An API server that is starting may
/// refuse at first, too.
const REFUSALS: u32 = 4;

/// What happens if a kind cannot be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing is served without it.
    Needed,
    /// The rest is served without it.
    Useful,
}

/// The log lines about a failing watch: one for the outage, one for missing rights, and one for its
/// end.
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

    /// Records an event. `begins` is [`Event::Init`], the start of a list, which may still fail.
    pub fn event_received(&mut self, shared: &Shared, begins: bool) {
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

    /// Records a failure. Returns whether the API server refuses the watch for lack of rights.
    pub fn watch_failed(&mut self, shared: &Shared, error: &Error) -> bool {
        shared.counters.watch_failures.add();
        // A compacted history (410) is no outage: a list follows.
        if has_status(error, 410) {
            return false;
        }
        if !std::mem::replace(&mut self.failed, true) {
            say("warn", format_args!("{}: {}", self.kind, error_chain(error)));
        }
        self.refusals = if has_status(error, 403) { self.refusals.saturating_add(1) } else { 0 };
        if self.need == Need::Needed {
            lock(&shared.obstacles).insert(self.kind.clone(), error_chain(error));
            // The first logged failure may have had another reason, such as an API server that was
            // starting.
            if self.refusals == REFUSALS {
                say(
                    "error",
                    format_args!(
                        "a right is missing, changes are not seen: {}",
                        error_chain(error)
                    ),
                );
            }
        }
        self.refusals >= REFUSALS
    }
}

/// Whether the API server has answered with this status.
fn has_status(error: &Error, code: u16) -> bool {
    match error {
        Error::WatchError(status) => status.code == code,
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status)) => status.code == code,
        _ => false,
    }
}

/// The text of an error with its causes. An answer of the API server is its message and status.
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        let Status { code, reason, message, .. } = &**status;
        return match message.is_empty() {
            true => format!("{code} {reason}"),
            false => format!("{message} ({code} {reason})"),
        };
    }
    let text = error.to_string();
    let Some(cause) = error.source() else { return text };
    // Most texts end with that of their cause.
    let own = text.strip_suffix(&cause.to_string()).unwrap_or(&text).trim_end_matches([':', ' ']);
    match own.is_empty() {
        true => error_chain(cause),
        false => format!("{own}: {}", error_chain(cause)),
    }
}

/// Doubles each wait until the watch delivers events. The first event after a failure is
/// [`Event::Init`]. It comes before the API server is asked, so it does not reset the wait.
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
    fn lists_that_only_lead_to_compacted_histories_become_rare() {
        let (mut compactions, mut now) = (Compactions::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..8 {
            let wait = compactions.wait(now);
            waits.push(wait.as_millis());
            now += wait + Duration::from_secs(1);
        }
        assert_eq!(waits, [0, 200, 400, 800, 1600, 3200, 5000, 5000]);
        // A watch that goes on for a while has none of these pauses at its end.
        assert_eq!(compactions.wait(now + Duration::from_secs(60)), Duration::ZERO);
    }

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

    fn failed(code: u16, reason: &str) -> Error {
        let status = Status::failure("too much to do", reason).with_code(code);
        Error::InitialListFailed(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn an_answer_of_the_api_server_is_told_in_its_words() {
        let told = error_chain(&failed(429, "TooManyRequests"));
        let wanted = "failed to perform initial object list: too much to do (429 TooManyRequests)";
        assert_eq!(told, wanted);
        let why = std::io::Error::other("reset");
        let told = error_chain(&Error::WatchFailed(kube::Error::ReadEvents(why)));
        assert_eq!(told, "watch stream failed: Error reading events stream: reset");
    }

    #[test]
    fn a_compacted_history_is_no_outage() {
        let shared = Shared::new(&crate::settings::Settings::default());
        let mut outage = Outage::new("Ingress", Need::Needed);
        assert!(!outage.watch_failed(&shared, &failed(410, "Expired")));
        assert!(!outage.failed && lock(&shared.obstacles).is_empty());
        assert!(!outage.watch_failed(&shared, &failed(503, "ServiceUnavailable")));
        assert!(outage.failed && lock(&shared.obstacles).contains_key("Ingress"));
        outage.event_received(&shared, false);
        assert!(!outage.failed && lock(&shared.obstacles).is_empty());
    }
}
