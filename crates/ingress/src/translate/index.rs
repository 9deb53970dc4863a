//! The objects of a snapshot by name, for those that Ingresses and others name.
//!
//! An [`Index`] records each lookup, also one that finds nothing. What was made with it is valid
//! for another snapshot if the same lookups have the same results there.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::snapshot::Snapshot;

/// Namespace and name.
type Key<'a> = (&'a str, &'a str);

type ByName<'a, T> = HashMap<Key<'a>, &'a Arc<T>>;

/// The objects that others name.
pub(super) struct NamedObjects<'a> {
    services: ByName<'a, Service>,
    secrets: ByName<'a, Secret>,
    kept_secrets: ByName<'a, Secret>,
    config_maps: ByName<'a, ConfigMap>,
    /// By namespace and Service.
    slices: HashMap<Key<'a>, Vec<&'a Arc<EndpointSlice>>>,
}

fn namespace(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or("default")
}

fn by_name<'a, T>(list: &'a [Arc<T>], meta: fn(&T) -> &ObjectMeta) -> ByName<'a, T> {
    let named = |object: &'a Arc<T>| {
        let meta = meta(object);
        Some(((namespace(meta), meta.name.as_deref()?), object))
    };
    let mut all = HashMap::with_capacity(list.len());
    // The first of two objects with the same name counts.
    all.extend(list.iter().rev().filter_map(named));
    all
}

impl<'a> NamedObjects<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> NamedObjects<'a> {
        let mut slices: HashMap<Key<'a>, Vec<&'a Arc<EndpointSlice>>> =
            HashMap::with_capacity(snapshot.slices.len());
        for slice in &snapshot.slices {
            let labels = slice.metadata.labels.as_ref();
            if let Some(service) = labels.and_then(|l| l.get("kubernetes.io/service-name")) {
                slices.entry((namespace(&slice.metadata), service)).or_default().push(slice);
            }
        }
        NamedObjects {
            services: by_name(&snapshot.services, |o| &o.metadata),
            secrets: by_name(&snapshot.secrets, |o| &o.metadata),
            kept_secrets: by_name(&snapshot.kept_secrets, |o| &o.metadata),
            config_maps: by_name(&snapshot.config_maps, |o| &o.metadata),
            slices,
        }
    }
}

/// The result of a lookup.
#[derive(Clone, Debug)]
enum Found {
    Service(Option<Arc<Service>>),
    Secret(Option<Arc<Secret>>),
    KeptSecret(Option<Arc<Secret>>),
    ConfigMap(Option<Arc<ConfigMap>>),
    Slices(Vec<Arc<EndpointSlice>>),
}

/// A recorded lookup. It keeps its objects in memory, so that no later object has the same address.
#[derive(Debug)]
pub(super) struct Lookup {
    namespace: String,
    name: String,
    found: Found,
}

impl Lookup {
    /// Whether the lookup has the same result among these objects.
    pub(super) fn finds_same(&mut self, all: &NamedObjects<'_>) -> bool {
        let key = (self.namespace.as_str(), self.name.as_str());
        match &mut self.found {
            Found::Service(known) => finds(known, all.services.get(&key)),
            Found::Secret(known) => finds(known, all.secrets.get(&key)),
            Found::KeptSecret(known) => finds(known, all.kept_secrets.get(&key)),
            Found::ConfigMap(known) => finds(known, all.config_maps.get(&key)),
            Found::Slices(known) => {
                let now = all.slices.get(&key).map_or(&[][..], Vec::as_slice);
                known.len() == now.len()
                    && known.iter_mut().zip(now).all(|(known, now)| same(known, now))
            }
        }
    }
}

/// As [`same`], for objects that may be missing.
pub(super) fn finds<T: PartialEq>(known: &mut Option<Arc<T>>, now: Option<&&Arc<T>>) -> bool {
    match (known, now) {
        (Some(known), Some(now)) => same(known, now),
        (known, now) => known.is_none() && now.is_none(),
    }
}

/// Whether both are the same object or equal. An equal one takes the place of `known`, so that the
/// next comparison is of addresses.
pub(super) fn same<T: PartialEq>(known: &mut Arc<T>, now: &Arc<T>) -> bool {
    if Arc::ptr_eq(known, now) {
        return true;
    }
    let same = **known == **now;
    if same {
        known.clone_from(now);
    }
    same
}

/// The named objects, for one part of a translation.
pub(super) struct Index<'a> {
    all: &'a NamedObjects<'a>,
    lookups: RefCell<BTreeMap<(Kind, String, String), Found>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Service,
    Secret,
    KeptSecret,
    ConfigMap,
    Slices,
}

impl<'a> Index<'a> {
    pub(super) fn of(all: &'a NamedObjects<'a>) -> Index<'a> {
        Index { all, lookups: RefCell::default() }
    }

    /// All lookups, once each.
    pub(super) fn into_lookups(self) -> Box<[Lookup]> {
        let lookups = self.lookups.into_inner().into_iter();
        lookups.map(|((_, namespace, name), found)| Lookup { namespace, name, found }).collect()
    }

    fn record(&self, kind: Kind, namespace: &str, name: &str, found: Found) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        self.lookups.borrow_mut().insert(key, found);
    }

    pub(super) fn service(&self, namespace: &str, name: &str) -> Option<&'a Service> {
        let found = self.all.services.get(&(namespace, name)).copied();
        self.record(Kind::Service, namespace, name, Found::Service(found.cloned()));
        found.map(|object| &**object)
    }

    pub(super) fn secret(&self, namespace: &str, name: &str) -> Option<&'a Arc<Secret>> {
        let found = self.all.secrets.get(&(namespace, name)).copied();
        self.record(Kind::Secret, namespace, name, Found::Secret(found.cloned()));
        found
    }

    /// The earlier version of a Secret whose present certificate cannot be used.
    pub(super) fn kept_secret(&self, namespace: &str, name: &str) -> Option<&'a Arc<Secret>> {
        let found = self.all.kept_secrets.get(&(namespace, name)).copied();
        self.record(Kind::KeptSecret, namespace, name, Found::KeptSecret(found.cloned()));
        found
    }

    pub(super) fn config_map(&self, namespace: &str, name: &str) -> Option<&'a ConfigMap> {
        let found = self.all.config_maps.get(&(namespace, name)).copied();
        self.record(Kind::ConfigMap, namespace, name, Found::ConfigMap(found.cloned()));
        found.map(|object| &**object)
    }

    /// The EndpointSlices of a Service.
    pub(super) fn slices(&self, namespace: &str, service: &str) -> Vec<&'a EndpointSlice> {
        let found = self.all.slices.get(&(namespace, service)).map_or(&[][..], Vec::as_slice);
        let kept = found.iter().map(|slice| (*slice).clone()).collect();
        self.record(Kind::Slices, namespace, service, Found::Slices(kept));
        found.iter().map(|slice| &***slice).collect()
    }
}
