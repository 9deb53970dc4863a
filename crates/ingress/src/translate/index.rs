//! The objects of a snapshot by name: an Ingress names them, and there may be thousands of each.
//!
//! An [`Index`] notes each look, also one that finds nothing. What was made with it holds in another snapshot if the same
//! looks find the same there.

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
    // The first of two with one name, as in a list.
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
            config_maps: by_name(&snapshot.config_maps, |o| &o.metadata),
            slices,
        }
    }
}

/// What a look has found.
#[derive(Clone, Debug)]
enum Found {
    Service(Option<Arc<Service>>),
    Secret(Option<Arc<Secret>>),
    ConfigMap(Option<Arc<ConfigMap>>),
    Slices(Vec<Arc<EndpointSlice>>),
}

/// A look for the objects of a name. The objects stay in memory, so that no other has their address.
#[derive(Debug)]
pub(super) struct Look {
    namespace: String,
    name: String,
    found: Found,
}

impl Look {
    /// Whether the look finds the same among these objects.
    pub(super) fn holds(&mut self, all: &NamedObjects<'_>) -> bool {
        let key = (self.namespace.as_str(), self.name.as_str());
        match &mut self.found {
            Found::Service(known) => finds(known, all.services.get(&key)),
            Found::Secret(known) => finds(known, all.secrets.get(&key)),
            Found::ConfigMap(known) => finds(known, all.config_maps.get(&key)),
            Found::Slices(known) => {
                let now = all.slices.get(&key).map_or(&[][..], Vec::as_slice);
                known.len() == now.len()
                    && known.iter_mut().zip(now).all(|(known, now)| same(known, now))
            }
        }
    }
}

fn finds<T: PartialEq>(known: &mut Option<Arc<T>>, now: Option<&&Arc<T>>) -> bool {
    match (known, now) {
        (Some(known), Some(now)) => same(known, now),
        (known, now) => known.is_none() && now.is_none(),
    }
}

/// Whether it is the same object, or one that says the same; that one takes its place.
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

/// The objects that others name, for one part of a translation.
pub(super) struct Index<'a> {
    all: &'a NamedObjects<'a>,
    looks: RefCell<BTreeMap<(Kind, String, String), Found>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Service,
    Secret,
    ConfigMap,
    Slices,
}

impl<'a> Index<'a> {
    pub(super) fn of(all: &'a NamedObjects<'a>) -> Index<'a> {
        Index { all, looks: RefCell::default() }
    }

    /// All looks, once each.
    pub(super) fn into_looks(self) -> Box<[Look]> {
        let looks = self.looks.into_inner().into_iter();
        looks.map(|((_, namespace, name), found)| Look { namespace, name, found }).collect()
    }

    fn note(&self, kind: Kind, namespace: &str, name: &str, found: Found) {
        let key = (kind, namespace.to_owned(), name.to_owned());
        self.looks.borrow_mut().insert(key, found);
    }

    pub(super) fn service(&self, namespace: &str, name: &str) -> Option<&'a Service> {
        let found = self.all.services.get(&(namespace, name)).copied();
        self.note(Kind::Service, namespace, name, Found::Service(found.cloned()));
        found.map(|object| &**object)
    }

    pub(super) fn secret(&self, namespace: &str, name: &str) -> Option<&'a Arc<Secret>> {
        let found = self.all.secrets.get(&(namespace, name)).copied();
        self.note(Kind::Secret, namespace, name, Found::Secret(found.cloned()));
        found
    }

    pub(super) fn config_map(&self, namespace: &str, name: &str) -> Option<&'a ConfigMap> {
        let found = self.all.config_maps.get(&(namespace, name)).copied();
        self.note(Kind::ConfigMap, namespace, name, Found::ConfigMap(found.cloned()));
        found.map(|object| &**object)
    }

    /// The addresses behind a Service.
    pub(super) fn slices(&self, namespace: &str, service: &str) -> Vec<&'a EndpointSlice> {
        let found = self.all.slices.get(&(namespace, service)).map_or(&[][..], Vec::as_slice);
        let kept = found.iter().map(|slice| (*slice).clone()).collect();
        self.note(Kind::Slices, namespace, service, Found::Slices(kept));
        found.iter().map(|slice| &***slice).collect()
    }
}
