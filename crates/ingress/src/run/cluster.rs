//! The objects of the cluster as they were seen last.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use tokio::sync::Notify;

use super::kinds::Kinds;
use super::slices::Slices;
use crate::gateway::Objects;
use crate::report::ObjectId;
use crate::snapshot::Snapshot;

/// Namespace and name.
pub type Key = (String, String);

/// A kind of objects that is watched.
pub trait Watched: Clone + Send + Sync + 'static {
    /// Namespace and name.
    fn key(&self) -> Key;

    /// Takes off what says when, and by which client, the object was written.
    fn bare(&mut self);

    /// Whether a translation would read the same.
    fn same(&self, other: &Self) -> bool;
}

/// The objects of a kind.
#[derive(Debug)]
pub struct Table<K> {
    objects: BTreeMap<Key, Arc<K>>,
    /// A list that is not complete yet.
    next: Option<BTreeMap<Key, Arc<K>>>,
    ready: bool,
    /// Objects with a watch of their own, which no list of the others has; and whether that has told of each.
    apart: BTreeMap<Key, bool>,
}

impl<K> Default for Table<K> {
    fn default() -> Table<K> {
        Table { objects: BTreeMap::new(), next: None, ready: false, apart: BTreeMap::new() }
    }
}

impl<K: Watched> Table<K> {
    /// Takes what the watch has said; whether a translation would read anything else now.
    pub fn take(&mut self, event: Event<K>) -> bool {
        match event {
            Event::Apply(object) => {
                let (key, object) = kept(object);
                let known = self.objects.insert(key, object.clone());
                known.is_none_or(|known| !known.same(&object))
            }
            Event::Delete(object) => self.objects.remove(&kept(object).0).is_some(),
            Event::Init => {
                self.next = Some(BTreeMap::new());
                false
            }
            Event::InitApply(object) => {
                let (key, object) = kept(object);
                self.next.get_or_insert_default().insert(key, object);
                false
            }
            Event::InitDone => {
                let mut next = self.next.take().unwrap_or_default();
                let apart = self.objects.iter().filter(|(key, _)| self.apart.contains_key(*key));
                next.extend(apart.map(|(key, object)| (key.clone(), object.clone())));
                let same = next.len() == self.objects.len()
                    && next
                        .iter()
                        .zip(&self.objects)
                        .all(|((a, one), (b, two))| a == b && one.same(two));
                self.objects = next;
                !std::mem::replace(&mut self.ready, true) || !same
            }
        }
    }

    /// An object has a watch of its own. The objects do not count as listed before it has told of that one.
    pub fn watch_apart(&mut self, key: Key) {
        self.apart.insert(key, false);
    }

    /// Takes what that watch has said; whether a translation would read anything else now.
    pub fn take_apart(&mut self, key: &Key, object: Option<K>) -> bool {
        let first = self.give_up_apart(key);
        let changed = match object {
            Some(object) => self.take(Event::Apply(object)),
            None => self.objects.remove(key).is_some(),
        };
        changed || first
    }

    /// Goes on without an object that this program may not read; whether it was waited for.
    pub fn give_up_apart(&mut self, key: &Key) -> bool {
        self.apart.get_mut(key).is_some_and(|told| !std::mem::replace(told, true))
    }

    /// Whether the objects were listed once.
    pub fn is_ready(&self) -> bool {
        self.ready && self.apart.values().all(|told| *told)
    }

    /// Counts as listed. A kind that the API server does not have, or that this program may not read, has no objects.
    pub fn give_up(&mut self) -> bool {
        !std::mem::replace(&mut self.ready, true)
    }

    /// Forgets all objects; whether there were any.
    pub fn clear(&mut self) -> bool {
        self.next = None;
        !std::mem::take(&mut self.objects).is_empty()
    }

    /// An object by namespace and name.
    pub fn get(&self, key: &Key) -> Option<&Arc<K>> {
        self.objects.get(key)
    }

    /// The same object, with something that a translation does not read.
    pub fn update(&mut self, key: &Key, object: K) {
        if let Some(known) = self.objects.get_mut(key) {
            *known = Arc::new(object);
        }
    }

    /// All objects, in order.
    pub fn values(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values()
    }

    /// All of them.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.objects.values().cloned().collect()
    }
}

fn kept<K: Watched>(mut object: K) -> (Key, Arc<K>) {
    object.bare();
    (object.key(), Arc::new(object))
}

/// Declares kinds, and when two of their objects are the same.
macro_rules! watched {
    ($($kind:ty: $same:expr;)*) => { $(impl Watched for $kind {
        fn key(&self) -> Key {
            (self.namespace().unwrap_or_default(), self.name_any())
        }

        fn bare(&mut self) {
            self.managed_fields_mut().clear();
            self.meta_mut().resource_version = None;
        }

        fn same(&self, other: &$kind) -> bool {
            let same: fn(&$kind, &$kind) -> bool = $same;
            same(self, other)
        }
    })* };
}

watched! {
    IngressClass: |one, other| one == other;
    // Its status is what this program writes.
    Ingress: |one, other| one.metadata == other.metadata && one.spec == other.spec;
    Service: |one, other| one == other;
    EndpointSlice: |one, other| one == other;
    Secret: |one, other| one == other;
    ConfigMap: |one, other| one == other;
    // Gateways select namespaces by their labels.
    Namespace: |one, other| one.metadata.labels == other.metadata.labels;
}

/// All objects.
#[derive(Debug, Default)]
pub struct Cluster {
    pub classes: Mutex<Table<IngressClass>>,
    pub ingresses: Mutex<Table<Ingress>>,
    pub services: Mutex<Table<Service>>,
    pub slices: Mutex<Slices>,
    pub secrets: Mutex<Table<Secret>>,
    pub config_maps: Mutex<Table<ConfigMap>>,
    pub namespaces: Mutex<Table<Namespace>>,
    /// The objects of Gateway API.
    pub gateway: Mutex<Kinds>,
    /// Something has changed.
    pub changed: Notify,
    /// A status of an object of Gateway API may have changed.
    pub told: Notify,
}

/// The table; a task that failed with it has not left it half changed.
pub fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// The objects now; `None` until each kind was listed once, since half of a cluster would end what is served.
    pub fn snapshot(&self) -> Option<Snapshot> {
        fn of<K: Watched>(table: &Mutex<Table<K>>) -> Option<Vec<Arc<K>>> {
            let table = lock(table);
            table.is_ready().then(|| table.list())
        }
        Some(Snapshot {
            classes: of(&self.classes)?,
            ingresses: of(&self.ingresses)?,
            services: of(&self.services)?,
            slices: lock(&self.slices).list()?,
            secrets: of(&self.secrets)?,
            config_maps: of(&self.config_maps)?,
            gateway: Objects {
                namespaces: of(&self.namespaces)?,
                ..lock(&self.gateway).objects()?
            },
        })
    }

    /// Goes on without the objects that have no namespace.
    pub fn give_up_cluster_scope(&self) {
        lock(&self.classes).give_up();
        lock(&self.namespaces).give_up();
        lock(&self.gateway).give_up();
    }

    /// What an Event says beside the name of an object: its version of the API and its uid.
    pub fn reference(&self, id: &ObjectId) -> Option<(String, Option<String>)> {
        if id.kind == "Ingress" {
            let uid = self.ingress(id)?.metadata.uid.clone();
            return Some(("networking.k8s.io/v1".to_owned(), uid));
        }
        if id.kind == "ConfigMap" {
            let key = (id.namespace.clone(), id.name.clone());
            let uid = lock(&self.config_maps).objects.get(&key)?.metadata.uid.clone();
            return Some(("v1".to_owned(), uid));
        }
        let kinds = lock(&self.gateway);
        let (resource, held) = kinds.find(id)?;
        let uid = held.object.as_ref().and_then(|object| object.metadata().uid.clone());
        Some((resource.api_version.clone(), uid))
    }

    /// An Ingress by its id.
    pub fn ingress(&self, id: &ObjectId) -> Option<Arc<Ingress>> {
        let key = (id.namespace.clone(), id.name.clone());
        lock(&self.ingresses).objects.get(&key).cloned()
    }

    /// All Services.
    pub fn all_services(&self) -> Vec<Arc<Service>> {
        lock(&self.services).list()
    }

    /// A Service by namespace and name.
    pub fn service(&self, namespace: &str, name: &str) -> Option<Arc<Service>> {
        let key = (namespace.to_owned(), name.to_owned());
        lock(&self.services).objects.get(&key).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ingress(name: &str, host: &str) -> Ingress {
        let object = serde_json::json!({ "metadata": { "name": name, "namespace": "a", "resourceVersion": host },
            "spec": { "rules": [{ "host": host }] } });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_list_that_says_the_same_changes_nothing_and_a_cut_one_takes_nothing_away() {
        let mut table = Table::default();
        assert!(!table.take(Event::Init));
        assert!(!table.take(Event::InitApply(ingress("one", "a.test"))));
        assert!(table.list().is_empty());
        assert!(table.take(Event::InitDone));
        table.take(Event::Init);
        table.take(Event::InitApply(ingress("one", "a.test")));
        assert!(!table.take(Event::InitDone));
        table.take(Event::Init);
        assert_eq!(table.list().len(), 1);
        // The list begins again.
        table.take(Event::Init);
        assert!(table.take(Event::InitDone));
        assert!(table.list().is_empty());
    }

    #[test]
    fn an_object_with_a_watch_of_its_own_outlives_the_lists_of_others() {
        let key = |name: &str| ("a".to_owned(), name.to_owned());
        let mut table = Table::default();
        table.watch_apart(key("own"));
        table.take(Event::Init);
        assert!(table.take(Event::InitDone));
        assert!(!table.is_ready(), "its watch has not told yet");
        assert!(table.take_apart(&key("own"), None) && table.is_ready());
        assert!(table.take_apart(&key("own"), Some(ingress("own", "a.test"))));
        assert!(!table.take_apart(&key("own"), Some(ingress("own", "a.test"))));
        table.take(Event::Init);
        table.take(Event::InitApply(ingress("one", "a.test")));
        assert!(table.take(Event::InitDone));
        assert_eq!(table.list().len(), 2);
        assert!(table.take_apart(&key("own"), None));
        assert_eq!(table.list().len(), 1);
    }

    #[test]
    fn a_written_status_is_no_change() {
        let mut table = Table::default();
        assert!(table.take(Event::Apply(ingress("one", "a.test"))));
        let mut again = ingress("one", "a.test");
        again.metadata.resource_version = Some("7".to_owned());
        again.status = Some(k8s_openapi::api::networking::v1::IngressStatus::default());
        assert!(!table.take(Event::Apply(again)));
        assert!(table.take(Event::Apply(ingress("one", "b.test"))));
        assert!(table.take(Event::Delete(ingress("one", "b.test"))));
        assert!(!table.take(Event::Delete(ingress("one", "b.test"))));
    }
}
