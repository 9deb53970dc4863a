//! The last known objects of the cluster.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use tokio::sync::Notify;

use super::gateway_kinds::Kinds;
use super::slices::Slices;
use crate::gateway::Objects;
use crate::report::ObjectId;
use crate::snapshot::Snapshot;
use crate::translate::certificate_of;

/// Namespace and name.
pub type Key = (String, String);

/// A kind of object that is watched.
pub trait Watched: Clone + Send + Sync + 'static {
    /// Namespace and name.
    fn key(&self) -> Key;

    /// Removes metadata that changes with each write: the field managers and the resource version.
    fn strip_metadata(&mut self);

    /// Whether the translation of both objects is the same.
    fn same(&self, other: &Self) -> bool;

    /// Whether the object stays in use after `next` has replaced it.
    fn outlives(&self, _next: &Self) -> bool {
        false
    }
}

/// The objects of one kind, as a watch delivers them.
#[derive(Debug)]
pub struct Table<K> {
    objects: BTreeMap<Key, Arc<K>>,
    /// Objects that stay in use, since their present versions cannot be used.
    kept: BTreeMap<Key, Arc<K>>,
    /// The objects of a list that is still being received.
    next: Option<BTreeMap<Key, Arc<K>>>,
    ready: bool,
    /// Objects with a watch of their own, which the list of the others may lack. True once that
    /// watch has delivered.
    own_watch: BTreeMap<Key, bool>,
}

impl<K> Default for Table<K> {
    fn default() -> Table<K> {
        Table {
            objects: BTreeMap::new(),
            kept: BTreeMap::new(),
            next: None,
            ready: false,
            own_watch: BTreeMap::new(),
        }
    }
}

impl<K: Watched> Table<K> {
    /// Applies an event of the watch. Returns whether a translation would differ now.
    pub fn apply(&mut self, event: Event<K>) -> bool {
        match event {
            Event::Apply(object) => {
                let (key, object) = stored(object);
                let known = self.objects.insert(key.clone(), object.clone());
                if let Some(known) = &known {
                    self.replaced(&key, known, &object);
                }
                known.is_none_or(|known| !known.same(&object))
            }
            Event::Delete(object) => self.remove(&stored(object).0),
            Event::Init => {
                self.next = Some(BTreeMap::new());
                false
            }
            Event::InitApply(object) => {
                let (key, object) = stored(object);
                self.next.get_or_insert_default().insert(key, object);
                false
            }
            Event::InitDone => {
                let mut next = self.next.take().unwrap_or_default();
                let apart =
                    self.objects.iter().filter(|(key, _)| self.own_watch.contains_key(*key));
                next.extend(apart.map(|(key, object)| (key.clone(), object.clone())));
                let same = next.len() == self.objects.len()
                    && next
                        .iter()
                        .zip(&self.objects)
                        .all(|((a, one), (b, two))| a == b && one.same(two));
                let before = std::mem::replace(&mut self.objects, next);
                self.kept.retain(|key, _| self.objects.contains_key(key));
                for (key, known) in &before {
                    if let Some(object) = self.objects.get(key).cloned() {
                        self.replaced(key, known, &object);
                    }
                }
                !std::mem::replace(&mut self.ready, true) || !same
            }
        }
    }

    /// Registers a watch of its own for an object. The table is not ready before that watch has
    /// delivered.
    pub fn expect_own_watch(&mut self, key: Key) {
        self.own_watch.insert(key, false);
    }

    /// Applies what the object's own watch delivered; `None` if the object does not exist. Returns
    /// whether a translation would differ now.
    pub fn apply_own_watch(&mut self, key: &Key, object: Option<K>) -> bool {
        let first = self.give_up_own_watch(key);
        let changed = match object {
            Some(object) => self.apply(Event::Apply(object)),
            None => self.remove(key),
        };
        changed || first
    }

    /// Removes an object. Returns whether there was one.
    fn remove(&mut self, key: &Key) -> bool {
        self.kept.remove(key);
        self.objects.remove(key).is_some()
    }

    /// Decides whether the version of an object that was in use stays in use.
    fn replaced(&mut self, key: &Key, known: &Arc<K>, object: &Arc<K>) {
        let used = self.kept.remove(key).unwrap_or_else(|| known.clone());
        if used.outlives(object) {
            self.kept.insert(key.clone(), used);
        }
    }

    /// The versions that stay in use, since the present ones cannot be used.
    pub fn kept(&self) -> Vec<Arc<K>> {
        self.kept.values().cloned().collect()
    }

    /// Stops waiting for an object that this program may not read. Returns whether it was waited
    /// for.
    pub fn give_up_own_watch(&mut self, key: &Key) -> bool {
        self.own_watch.get_mut(key).is_some_and(|delivered| !std::mem::replace(delivered, true))
    }

    /// Whether all objects were listed at least once.
    pub fn is_ready(&self) -> bool {
        self.ready && self.own_watch.values().all(|delivered| *delivered)
    }

    /// Makes the table ready as it is: the API server lacks the kind, or this program may not read
    /// it. Returns whether it was not ready before.
    pub fn give_up(&mut self) -> bool {
        !std::mem::replace(&mut self.ready, true)
    }

    /// Removes all objects. Returns whether there were any.
    pub fn clear(&mut self) -> bool {
        self.next = None;
        self.kept.clear();
        !std::mem::take(&mut self.objects).is_empty()
    }

    /// An object by namespace and name.
    pub fn get(&self, key: &Key) -> Option<&Arc<K>> {
        self.objects.get(key)
    }

    /// Replaces an object by a version whose translation is the same.
    pub fn update(&mut self, key: &Key, object: K) {
        if let Some(known) = self.objects.get_mut(key) {
            *known = Arc::new(object);
        }
    }

    /// All objects, ordered by namespace and name.
    pub fn values(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values()
    }

    /// All objects, as a list.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.objects.values().cloned().collect()
    }
}

fn stored<K: Watched>(mut object: K) -> (Key, Arc<K>) {
    object.strip_metadata();
    (object.key(), Arc::new(object))
}

/// Implements [`Watched`] for kinds. The expression of a kind compares two of its objects. A second
/// one says whether the first of two versions stays in use.
macro_rules! watched {
    ($($kind:ty: $same:expr $(, $outlives:expr)?;)*) => { $(impl Watched for $kind {
        fn key(&self) -> Key {
            (self.namespace().unwrap_or_default(), self.name_any())
        }

        fn strip_metadata(&mut self) {
            self.managed_fields_mut().clear();
            self.meta_mut().resource_version = None;
        }

        fn same(&self, other: &$kind) -> bool {
            let same: fn(&$kind, &$kind) -> bool = $same;
            same(self, other)
        }

        $(fn outlives(&self, next: &$kind) -> bool {
            let outlives: fn(&$kind, &$kind) -> bool = $outlives;
            outlives(self, next)
        })?
    })* };
}

watched! {
    IngressClass: |one, other| one == other;
    // The status is left out: this program writes it itself.
    Ingress: |one, other| one.metadata == other.metadata && one.spec == other.spec;
    Service: |one, other| one == other;
    EndpointSlice: |one, other| one == other;
    // As in ingress-nginx, a certificate that cannot be used does not take the place of one that can.
    Secret: |one, other| one == other, |one, next| one.data != next.data && has_certificate(one) && names_certificate(next) && !has_certificate(next);
    ConfigMap: |one, other| one == other;
    // Gateways select namespaces by their labels.
    Namespace: |one, other| one.metadata.labels == other.metadata.labels;
}

/// Whether a Secret is meant to have a certificate with its key.
fn names_certificate(secret: &Secret) -> bool {
    let data = secret.data.as_ref();
    data.is_some_and(|data| data.contains_key("tls.crt") || data.contains_key("tls.key"))
}

/// Whether a Secret has a certificate with its key, both of which can be used.
fn has_certificate(secret: &Secret) -> bool {
    secret.data.as_ref().is_some_and(|data| certificate_of(data).is_ok())
}

/// The objects of all kinds.
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
    /// Notified when a translation may differ.
    pub changed: Notify,
    /// Notified when the status of a Gateway API object may have changed.
    pub status_changed: Notify,
}

/// Locks a table. A poisoned lock is fine: a task that panics does not leave a table half changed.
pub fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// All objects. `None` until each kind was listed once: a configuration of half of the cluster
    /// would end what is served.
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
            kept_secrets: lock(&self.secrets).kept(),
            config_maps: of(&self.config_maps)?,
            gateway: Objects {
                namespaces: of(&self.namespaces)?,
                ..lock(&self.gateway).objects()?
            },
        })
    }

    /// Stops waiting for objects without a namespace.
    pub fn give_up_cluster_scope(&self) {
        lock(&self.classes).give_up();
        lock(&self.namespaces).give_up();
        lock(&self.gateway).give_up();
    }

    /// The API version and the uid of an object, for an Event about it.
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
        assert!(!table.apply(Event::Init));
        assert!(!table.apply(Event::InitApply(ingress("one", "a.test"))));
        assert!(table.list().is_empty());
        assert!(table.apply(Event::InitDone));
        table.apply(Event::Init);
        table.apply(Event::InitApply(ingress("one", "a.test")));
        assert!(!table.apply(Event::InitDone));
        table.apply(Event::Init);
        assert_eq!(table.list().len(), 1);
        // A new list begins.
        table.apply(Event::Init);
        assert!(table.apply(Event::InitDone));
        assert!(table.list().is_empty());
    }

    #[test]
    fn an_object_with_a_watch_of_its_own_outlives_the_lists_of_others() {
        let key = |name: &str| ("a".to_owned(), name.to_owned());
        let mut table = Table::default();
        table.expect_own_watch(key("own"));
        table.apply(Event::Init);
        assert!(table.apply(Event::InitDone));
        assert!(!table.is_ready(), "its watch has not told yet");
        assert!(table.apply_own_watch(&key("own"), None) && table.is_ready());
        assert!(table.apply_own_watch(&key("own"), Some(ingress("own", "a.test"))));
        assert!(!table.apply_own_watch(&key("own"), Some(ingress("own", "a.test"))));
        table.apply(Event::Init);
        table.apply(Event::InitApply(ingress("one", "a.test")));
        assert!(table.apply(Event::InitDone));
        assert_eq!(table.list().len(), 2);
        assert!(table.apply_own_watch(&key("own"), None));
        assert_eq!(table.list().len(), 1);
    }

    #[test]
    fn a_written_status_is_no_change() {
        let mut table = Table::default();
        assert!(table.apply(Event::Apply(ingress("one", "a.test"))));
        let mut again = ingress("one", "a.test");
        again.metadata.resource_version = Some("7".to_owned());
        again.status = Some(k8s_openapi::api::networking::v1::IngressStatus::default());
        assert!(!table.apply(Event::Apply(again)));
        assert!(table.apply(Event::Apply(ingress("one", "b.test"))));
        assert!(table.apply(Event::Delete(ingress("one", "b.test"))));
        assert!(!table.apply(Event::Delete(ingress("one", "b.test"))));
    }
}
