//! The objects of Gateway API, whose kinds are CustomResourceDefinitions and may be defined and
//! removed at any time.
//!
//! One watch follows the definitions. Each defined kind has a watch of its own, in the best version
//! that the API server serves. An object whose spec cannot be read is left out, and the others are
//! served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::api::{Api, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{Config, Event};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::cluster::{Key, Table, Watched, lock};
use super::shared::{LONGEST_CALL, Shared, say};
use super::watch::{self, Need, Outage};
use crate::gateway::kinds::{AnyObject, KINDS, Kind, Objects};
use crate::gateway::objects::GROUP;
use crate::report::{ObjectId, is_cluster_scoped};

/// The versions that are read, the best first. They do not differ in the fields that are read.
const VERSIONS: &[&str] = &["v1", "v1beta1", "v1alpha3", "v1alpha2"];
/// The annotation of a definition with the version of Gateway API.
const BUNDLE: &str = "gateway.networking.k8s.io/bundle-version";
/// How long until a definition that could not be read is requested again.
const AGAIN: Duration = Duration::from_secs(1);

/// An object as it was last seen.
#[derive(Clone, Debug)]
pub struct CachedObject {
    key: Key,
    /// `None` if its spec cannot be read.
    pub object: Option<AnyObject>,
    pub status: Value,
    /// `metadata.resourceVersion`
    pub version: Option<String>,
}

impl CachedObject {
    /// Reads an object of a kind. A spec that cannot be read is logged.
    fn new(kind: &Kind, object: DynamicObject) -> CachedObject {
        let DynamicObject { metadata, mut data, .. } = object;
        let (namespace, name) = (metadata.namespace.clone(), metadata.name.clone());
        let key = (namespace.unwrap_or_default(), name.unwrap_or_default());
        let version = metadata.resource_version.clone();
        let mut take = |field: &str| data.get_mut(field).map(Value::take).unwrap_or_default();
        let (spec, status) = (take("spec"), take("status"));
        let mut metadata = metadata;
        metadata.managed_fields = None;
        metadata.resource_version = None;
        let object = match AnyObject::read(kind.name, metadata, spec) {
            Some(Ok(object)) => Some(object),
            Some(Err(error)) => {
                say("warn", format_args!("{} {}/{}: {error}", kind.name, key.0, key.1));
                None
            }
            None => None,
        };
        CachedObject { key, object, status, version }
    }

    /// The addresses in the status of a Gateway.
    fn addresses(&self) -> Vec<String> {
        let list = self.status.get("addresses").and_then(Value::as_array);
        let one = |address: &Value| address.get("value")?.as_str().map(str::to_owned);
        list.into_iter().flatten().filter_map(one).collect()
    }
}

impl Watched for CachedObject {
    fn key(&self) -> Key {
        self.key.clone()
    }

    // The resource version is kept in `version`, for writing a status. It is not compared.
    fn strip_metadata(&mut self) {}

    fn same(&self, other: &CachedObject) -> bool {
        // The addresses are compared, since all pods follow those that the leader has written.
        self.object == other.object && self.addresses() == other.addresses()
    }
}

/// One kind and its objects.
#[derive(Debug, Default)]
pub struct Entry {
    /// How the kind is requested; `None` if the cluster lacks it.
    resource: Option<ApiResource>,
    /// The version of Gateway API that its definition is of.
    bundle: String,
    table: Table<CachedObject>,
}

/// All kinds of Gateway API that the cluster has.
#[derive(Debug, Default)]
pub struct Kinds {
    /// Whether it is known which kinds the cluster has.
    known: bool,
    entries: BTreeMap<&'static str, Entry>,
}

impl Kinds {
    /// All objects. `None` until each kind that the cluster has was listed once.
    pub fn objects(&self) -> Option<Objects> {
        let mut objects = Objects::default();
        if !self.known || self.entries.values().any(|entry| !entry.table.is_ready()) {
            return None;
        }
        objects.bundles = self.entries.values().map(|entry| entry.bundle.clone()).collect();
        for held in self.entries.values().flat_map(|entry| entry.table.values()) {
            let Some(object) = &held.object else { continue };
            let addresses = held.addresses();
            if matches!(object, AnyObject::Gateway(_)) && !addresses.is_empty() {
                objects.assigned.insert(held.key.clone(), addresses);
            }
            objects.put(object.clone());
        }
        Some(objects)
    }

    /// Stops waiting for the kinds. Nothing of Gateway API is served.
    pub fn give_up(&mut self) {
        self.known = true;
    }

    /// An object by its id, and how its kind is requested.
    pub fn find(&self, id: &ObjectId) -> Option<(&ApiResource, &Arc<CachedObject>)> {
        let entry = self.entries.get(id.kind)?;
        let held = entry.table.get(&(id.namespace.clone(), id.name.clone()))?;
        Some((entry.resource.as_ref()?, held))
    }

    /// How a kind is requested; `None` if the cluster lacks it.
    pub fn resource(&self, kind: &str) -> Option<&ApiResource> {
        self.entries.get(kind)?.resource.as_ref()
    }

    /// All objects.
    pub fn all(&self) -> impl Iterator<Item = &Arc<CachedObject>> {
        self.entries.values().flat_map(|entry| entry.table.values())
    }

    /// Updates the status of an object after a write. `before` is the resource version that the
    /// write was for. A newer version, which the watch has delivered meanwhile, stays.
    pub fn update_status(
        &mut self,
        id: &ObjectId,
        before: Option<&str>,
        status: &Value,
        version: Option<String>,
    ) {
        let key = (id.namespace.clone(), id.name.clone());
        let Some(entry) = self.entries.get_mut(id.kind) else { return };
        let Some(held) = entry.table.get(&key) else { return };
        if held.version.as_deref() == before {
            let held =
                CachedObject { status: status.clone(), version, ..CachedObject::clone(held) };
            entry.table.update(&key, held);
        }
    }
}

/// The running watches.
struct Running {
    client: Client,
    namespace: Option<String>,
    shared: Arc<Shared>,
    tasks: BTreeMap<&'static str, (ApiResource, JoinHandle<()>)>,
    /// Kinds whose definition could not be read. True if the right is missing: Ingresses do not
    /// wait for such a kind.
    unread: BTreeMap<&'static str, bool>,
}

/// Watches the definitions and the objects of all defined kinds, forever.
pub async fn follow(client: Client, namespace: Option<String>, shared: Arc<Shared>) {
    let resource = definitions();
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), &resource);
    let mut events = watch::events(api, watch::config(""));
    let mut running =
        Running { client, namespace, shared, tasks: BTreeMap::new(), unread: BTreeMap::new() };
    let mut outage = Outage::new("CustomResourceDefinition", Need::Useful);
    let (mut listed, mut complete) = (BTreeSet::new(), false);
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = sleep(AGAIN), if !running.unread.is_empty() => {
                let unread = running.unread.clone();
                for kind in KINDS.iter().filter(|kind| unread.contains_key(kind.name)) {
                    running.read_definition(kind).await;
                }
                running.update_known(complete);
                continue;
            }
        };
        let Some(event) = event else { return };
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                if outage.watch_failed(&running.shared, &error) {
                    // Without the right to watch definitions, Gateway API is not served, and
                    // Ingresses are.
                    running.update_known(true);
                }
                continue;
            }
        };
        outage.event_received(&running.shared, matches!(event, Event::Init));
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(definition) => listed.extend(kind_of(&definition.name_any())),
            Event::InitDone => {
                for kind in KINDS {
                    match listed.contains(kind.name) {
                        true => running.read_definition(kind).await,
                        false => running.stop(kind),
                    }
                }
                complete = true;
            }
            Event::Apply(definition) => {
                let name = kind_of(&definition.name_any());
                for kind in KINDS.iter().filter(|kind| name == Some(kind.name)) {
                    running.read_definition(kind).await;
                }
            }
            Event::Delete(definition) => {
                let name = kind_of(&definition.name_any());
                KINDS.iter().filter(|kind| name == Some(kind.name)).for_each(|k| running.stop(k));
            }
        }
        running.update_known(complete);
    }
}

/// How definitions are requested.
fn definitions() -> ApiResource {
    ApiResource {
        group: "apiextensions.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiextensions.k8s.io/v1".to_owned(),
        kind: "CustomResourceDefinition".to_owned(),
        plural: "customresourcedefinitions".to_owned(),
    }
}

/// The kind that a definition with this name defines.
fn kind_of(definition: &str) -> Option<&'static str> {
    let plural = definition.strip_suffix(GROUP)?.strip_suffix('.')?;
    KINDS.iter().find(|kind| kind.plural == plural).map(|kind| kind.name)
}

/// The best version of a definition that the API server serves. `None` if it serves none that is
/// read, or the definition is not established yet.
fn version(definition: &Value) -> Option<&'static str> {
    let list = |place: &str| definition.pointer(place).and_then(Value::as_array).cloned();
    let is =
        |one: &Value, key: &str, value: &str| one.get(key).and_then(Value::as_str) == Some(value);
    let conditions = list("/status/conditions").unwrap_or_default();
    let established =
        conditions.iter().any(|one| is(one, "type", "Established") && is(one, "status", "True"));
    let versions = list("/spec/versions").unwrap_or_default();
    let served = |name: &str| {
        let on = |one: &Value| one.get("served").and_then(Value::as_bool) == Some(true);
        versions.iter().any(|one| is(one, "name", name) && on(one))
    };
    VERSIONS.iter().copied().find(|name| established && served(name))
}

impl Running {
    /// Reads the definition of a kind, and starts or ends the watch of its objects.
    async fn read_definition(&mut self, kind: &'static Kind) {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &definitions());
        let name = format!("{}.{GROUP}", kind.plural);
        let found = match timeout(LONGEST_CALL, api.get_opt(&name)).await {
            Ok(Ok(found)) => found,
            other => {
                let refused =
                    matches!(other, Ok(Err(kube::Error::Api(status))) if status.code == 403);
                self.unread.insert(kind.name, refused);
                return;
            }
        };
        self.unread.remove(kind.name);
        let bundle = found.as_ref().and_then(|definition| definition.annotations().get(BUNDLE));
        let bundle = bundle.cloned().unwrap_or_default();
        let version = found.as_ref().and_then(|definition| version(&definition.data));
        let Some(version) = version else { return self.stop(kind) };
        let resource = ApiResource {
            group: GROUP.to_owned(),
            version: version.to_owned(),
            api_version: format!("{GROUP}/{version}"),
            kind: kind.name.to_owned(),
            plural: kind.plural.to_owned(),
        };
        if self.tasks.get(kind.name).is_some_and(|(known, _)| *known == resource) {
            let mut kinds = lock(&self.shared.cluster.gateway);
            let known = kinds.entries.get_mut(kind.name).map(|entry| &mut entry.bundle);
            if known.is_some_and(|known| std::mem::replace(known, bundle.clone()) != bundle) {
                self.shared.cluster.changed.notify_one();
            }
            return;
        }
        if let Some((_, task)) = self.tasks.remove(kind.name) {
            task.abort();
        }
        let mut kinds = lock(&self.shared.cluster.gateway);
        let known = kinds.known;
        let entry = kinds.entries.entry(kind.name).or_default();
        entry.resource = Some(resource.clone());
        entry.bundle = bundle;
        if known {
            // A kind that is defined later starts empty, so that what is served does not wait for
            // its list.
            entry.table.give_up();
        }
        drop(kinds);
        let api: Api<DynamicObject> = match &self.namespace {
            Some(namespace) if !is_cluster_scoped(kind.name) => {
                Api::namespaced_with(self.client.clone(), namespace, &resource)
            }
            _ => Api::all_with(self.client.clone(), &resource),
        };
        let task = tokio::spawn(objects(kind, api, self.shared.clone()));
        self.tasks.insert(kind.name, (resource, task));
    }

    /// Ends the watch of a kind that the cluster no longer has.
    fn stop(&mut self, kind: &'static Kind) {
        self.unread.remove(kind.name);
        if let Some((_, task)) = self.tasks.remove(kind.name) {
            task.abort();
        }
        let gone = lock(&self.shared.cluster.gateway).entries.remove(kind.name);
        if gone.is_some_and(|mut entry| entry.table.clear()) {
            self.shared.cluster.changed.notify_one();
        }
    }

    /// Once all definitions were read, or refused for lack of rights, the kinds are known.
    fn update_known(&self, complete: bool) {
        let known = complete && self.unread.values().all(|refused| *refused);
        let mut kinds = lock(&self.shared.cluster.gateway);
        if known && !std::mem::replace(&mut kinds.known, true) {
            self.shared.cluster.changed.notify_one();
        }
    }
}

fn cached_event(kind: &Kind, event: Event<DynamicObject>) -> Event<CachedObject> {
    match event {
        Event::Apply(object) => Event::Apply(CachedObject::new(kind, object)),
        Event::Delete(object) => Event::Delete(CachedObject::new(kind, object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(CachedObject::new(kind, object)),
        Event::InitDone => Event::InitDone,
    }
}

/// Watches the objects of a kind, forever.
async fn objects(kind: &'static Kind, api: Api<DynamicObject>, shared: Arc<Shared>) {
    let config: Config = watch::config("");
    let mut events = watch::events(api, config);
    let mut outage = Outage::new(kind.name, Need::Useful);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                outage.event_received(&shared, matches!(event, Event::Init));
                let event = cached_event(kind, event);
                let mut kinds = lock(&shared.cluster.gateway);
                let Some(entry) = kinds.entries.get_mut(kind.name) else { continue };
                let changed = entry.table.apply(event);
                drop(kinds);
                if changed {
                    shared.counters.changes.add();
                    shared.cluster.changed.notify_one();
                }
                shared.cluster.status_changed.notify_one();
            }
            Err(error) => {
                let mut kinds = lock(&shared.cluster.gateway);
                let Some(entry) = kinds.entries.get_mut(kind.name) else { continue };
                if outage.watch_failed(&shared, &error) && entry.table.give_up() {
                    shared.cluster.changed.notify_one();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(established: &str, versions: &[(&str, bool)]) -> Value {
        let versions: Vec<_> = versions
            .iter()
            .map(|(name, served)| json!({ "name": name, "served": served }))
            .collect();
        json!({ "spec": { "versions": versions },
            "status": { "conditions": [{ "type": "Established", "status": established }] } })
    }

    #[test]
    fn the_best_version_that_is_served_is_asked_for() {
        for (established, versions, wanted) in [
            ("True", &[("v1", true), ("v1beta1", true)][..], Some("v1")),
            ("True", &[("v1alpha2", true), ("v1alpha3", true)], Some("v1alpha3")),
            ("True", &[("v1", false), ("v1beta1", true)], Some("v1beta1")),
            ("True", &[("v2", true)], None),
            ("False", &[("v1", true)], None),
        ] {
            assert_eq!(version(&definition(established, versions)), wanted, "{versions:?}");
        }
        assert_eq!(version(&json!({ "spec": { "versions": "x" } })), None);
        assert_eq!(kind_of("httproutes.gateway.networking.k8s.io"), Some("HTTPRoute"));
        assert_eq!(kind_of("httproutes.x.test"), None);
        assert_eq!(kind_of("xhttproutes.gateway.networking.k8s.io"), None);
    }

    fn held(name: &str, spec: Value, status: Value) -> CachedObject {
        let kind = KINDS.iter().find(|kind| kind.name == "Gateway").unwrap();
        let object = json!({ "metadata": { "name": name, "namespace": "a", "resourceVersion": name },
            "spec": spec, "status": status });
        CachedObject::new(kind, serde_json::from_value(object).unwrap())
    }

    #[test]
    fn half_of_a_cluster_is_no_snapshot_and_a_garbled_object_is_left_out() {
        let mut kinds = Kinds::default();
        assert!(kinds.objects().is_none(), "which kinds there are is not known");
        kinds.known = true;
        assert!(kinds.objects().is_some());
        let entry = kinds.entries.entry("Gateway").or_default();
        entry.table.apply(Event::Init);
        entry.table.apply(Event::InitApply(held(
            "good",
            json!({ "gatewayClassName": "weir" }),
            json!({}),
        )));
        entry.table.apply(Event::InitApply(held("wrong", json!({ "listeners": 7 }), json!({}))));
        assert!(kinds.objects().is_none(), "the list is not complete");
        kinds.entries.entry("Gateway").or_default().table.apply(Event::InitDone);
        let names: Vec<_> =
            kinds.objects().unwrap().gateways.iter().map(|one| one.metadata.name.clone()).collect();
        assert_eq!(names, [Some("good".to_owned())]);
    }

    #[test]
    fn of_a_status_the_addresses_alone_are_read() {
        let mut table = Table::default();
        let spec = json!({ "gatewayClassName": "weir" });
        let mut take = |status| table.apply(Event::Apply(held("web", spec.clone(), status)));
        assert!(take(json!({})));
        assert!(!take(json!({ "conditions": [{ "type": "Accepted" }] })));
        assert!(take(json!({ "addresses": [{ "value": "10.0.0.1" }] })));
        assert!(!take(json!({ "addresses": [{ "type": "IPAddress", "value": "10.0.0.1" }] })));
        assert!(!take(json!({ "addresses": [{ "value": "10.0.0.1" }, { "value": 7 }] })));
    }
}
