//! The objects of a snapshot by name: an Ingress names them, and there may be thousands of each.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::snapshot::Snapshot;

/// Namespace and name.
type Key<'a> = (&'a str, &'a str);

/// The objects that others name.
pub(super) struct Index<'a> {
    services: HashMap<Key<'a>, &'a Service>,
    secrets: HashMap<Key<'a>, &'a Secret>,
    config_maps: HashMap<Key<'a>, &'a ConfigMap>,
    /// By namespace and Service.
    slices: HashMap<Key<'a>, Vec<&'a EndpointSlice>>,
}

fn namespace(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or("default")
}

fn by_name<'a, T>(list: &'a [Arc<T>], meta: fn(&T) -> &ObjectMeta) -> HashMap<Key<'a>, &'a T> {
    let named = |object: &'a Arc<T>| {
        let meta = meta(object);
        Some(((namespace(meta), meta.name.as_deref()?), &**object))
    };
    // The first of two with one name, as in a list.
    list.iter().rev().filter_map(named).collect()
}

impl<'a> Index<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Index<'a> {
        let mut slices: HashMap<Key<'a>, Vec<&'a EndpointSlice>> = HashMap::new();
        for slice in &snapshot.slices {
            let labels = slice.metadata.labels.as_ref();
            if let Some(service) = labels.and_then(|l| l.get("kubernetes.io/service-name")) {
                slices.entry((namespace(&slice.metadata), service)).or_default().push(slice);
            }
        }
        Index {
            services: by_name(&snapshot.services, |o| &o.metadata),
            secrets: by_name(&snapshot.secrets, |o| &o.metadata),
            config_maps: by_name(&snapshot.config_maps, |o| &o.metadata),
            slices,
        }
    }

    pub(super) fn service(&self, namespace: &str, name: &str) -> Option<&'a Service> {
        self.services.get(&(namespace, name)).copied()
    }

    pub(super) fn secret(&self, namespace: &str, name: &str) -> Option<&'a Secret> {
        self.secrets.get(&(namespace, name)).copied()
    }

    pub(super) fn config_map(&self, namespace: &str, name: &str) -> Option<&'a ConfigMap> {
        self.config_maps.get(&(namespace, name)).copied()
    }

    /// The addresses behind a Service.
    pub(super) fn slices(&self, namespace: &str, service: &str) -> Vec<&'a EndpointSlice> {
        self.slices.get(&(namespace, service)).cloned().unwrap_or_default()
    }
}
