//! The objects of the cluster as they were seen last.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use tokio::sync::Notify;

use crate::report::ObjectId;
use crate::snapshot::Snapshot;

/// Namespace and name.
type Key = (String, String);

/// A kind of objects that is watched.
pub trait Watched: Resource<DynamicType = ()> + Clone + Send + Sync + 'static {
    /// Whether a translation would read the same. What says when and by whom an object was written is taken off before.
    fn same(&self, other: &Self) -> bool;
}

/// The objects of a kind.
#[derive(Debug)]
pub struct Table<K> {
    objects: BTreeMap<Key, Arc<K>>,
    /// A list that is not complete yet.
    next: Option<BTreeMap<Key, Arc<K>>>,
    ready: bool,
}

impl<K> Default for Table<K> {
    fn default() -> Table<K> {
        Table { objects: BTreeMap::new(), next: None, ready: false }
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
                let next = self.next.take().unwrap_or_default();
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

    fn list(&self) -> Vec<Arc<K>> {
        self.objects.values().cloned().collect()
    }
}

fn kept<K: Watched>(mut object: K) -> (Key, Arc<K>) {
    object.managed_fields_mut().clear();
    object.meta_mut().resource_version = None;
    let key = (object.namespace().unwrap_or_default(), object.name_any());
    (key, Arc::new(object))
}

impl Watched for Ingress {
    // Its status is what this program writes.
    fn same(&self, other: &Ingress) -> bool {
        self.metadata == other.metadata && self.spec == other.spec
    }
}

macro_rules! watched {
    ($($kind:ty),*) => { $(impl Watched for $kind {
        fn same(&self, other: &$kind) -> bool {
            self == other
        }
    })* };
}

watched!(IngressClass, Service, EndpointSlice, Secret, ConfigMap);

/// All objects.
#[derive(Debug, Default)]
pub struct Cluster {
    pub classes: Mutex<Table<IngressClass>>,
    pub ingresses: Mutex<Table<Ingress>>,
    pub services: Mutex<Table<Service>>,
    pub slices: Mutex<Table<EndpointSlice>>,
    pub secrets: Mutex<Table<Secret>>,
    pub config_maps: Mutex<Table<ConfigMap>>,
    /// Something has changed.
    pub changed: Notify,
}

/// The table; a task that failed with it has not left it half changed.
pub fn lock<K>(table: &Mutex<Table<K>>) -> MutexGuard<'_, Table<K>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// The objects now; `None` until each kind was listed once, since half of a cluster would end what is served.
    pub fn snapshot(&self) -> Option<Snapshot> {
        fn of<K: Watched>(table: &Mutex<Table<K>>) -> Option<Vec<Arc<K>>> {
            let table = lock(table);
            table.ready.then(|| table.list())
        }
        Some(Snapshot {
            classes: of(&self.classes)?,
            ingresses: of(&self.ingresses)?,
            services: of(&self.services)?,
            slices: of(&self.slices)?,
            secrets: of(&self.secrets)?,
            config_maps: of(&self.config_maps)?,
            ..Snapshot::default()
        })
    }

    /// An Ingress by its id.
    pub fn ingress(&self, id: &ObjectId) -> Option<Arc<Ingress>> {
        let key = (id.namespace.clone(), id.name.clone());
        lock(&self.ingresses).objects.get(&key).cloned()
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
