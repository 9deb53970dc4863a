//! EndpointSlices, which hold the addresses of pods, by Service.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::Event;

use super::cluster::{Key, Table, Watched};

/// All slices.
#[derive(Debug, Default)]
pub struct Slices {
    table: Table<EndpointSlice>,
    /// The names of the slices of a Service.
    by_service: HashMap<Key, BTreeSet<String>>,
}

/// What an event changed.
#[derive(Debug, PartialEq, Eq)]
pub enum Touched {
    Nothing,
    /// The pods of these Services.
    Services(Vec<Key>),
    /// Potentially all: a list has replaced the slices.
    All,
}

fn service(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.metadata.labels.as_ref()?.get("kubernetes.io/service-name")?;
    Some((slice.key().0, name.clone()))
}

impl Slices {
    /// Applies an event of the watch.
    pub fn apply(&mut self, event: Event<EndpointSlice>) -> Touched {
        let (Event::Apply(object) | Event::Delete(object)) = &event else {
            if !self.table.apply(event) {
                return Touched::Nothing;
            }
            self.by_service.clear();
            for slice in self.table.list() {
                self.note(&slice);
            }
            return Touched::All;
        };
        let key = object.key();
        let before = self.table.get(&key).cloned();
        if !self.table.apply(event) {
            return Touched::Nothing;
        }
        let after = self.table.get(&key).cloned();
        let of_before = before.as_deref().and_then(service);
        if let Some(names) = of_before.as_ref().and_then(|service| self.by_service.get_mut(service))
        {
            names.remove(&key.1);
        }
        self.by_service.retain(|_, names| !names.is_empty());
        if let Some(after) = &after {
            self.note(after);
        }
        let touched = of_before.into_iter().chain(after.as_deref().and_then(service));
        Touched::Services(touched.collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn note(&mut self, slice: &EndpointSlice) {
        if let Some(service) = service(slice) {
            self.by_service.entry(service).or_default().insert(slice.key().1);
        }
    }

    /// The slices of a Service.
    pub fn of<'s>(&'s self, service: &'s Key) -> impl Iterator<Item = &'s EndpointSlice> {
        let names = self.by_service.get(service).into_iter().flatten();
        names.filter_map(|name| Some(&**self.table.get(&(service.0.clone(), name.clone()))?))
    }

    /// All slices. `None` until they were listed once.
    pub fn list(&self) -> Option<Vec<Arc<EndpointSlice>>> {
        self.table.is_ready().then(|| self.table.list())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, of: &str, ip: &str) -> EndpointSlice {
        let object = serde_json::json!({ "addressType": "IPv4", "endpoints": [{ "addresses": [ip] }],
            "metadata": { "name": name, "namespace": "a", "labels": { "kubernetes.io/service-name": of } } });
        serde_json::from_value(object).unwrap()
    }

    fn key(name: &str) -> Key {
        ("a".to_owned(), name.to_owned())
    }

    #[test]
    fn slices_are_found_by_their_service_whatever_becomes_of_them() {
        let mut all = Slices::default();
        let count = |all: &Slices, service: &str| all.of(&key(service)).count();
        assert_eq!(all.apply(Event::Init), Touched::Nothing);
        assert_eq!(all.apply(Event::InitApply(slice("s1", "one", "10.0.0.1"))), Touched::Nothing);
        assert!(all.list().is_none());
        assert_eq!(all.apply(Event::InitDone), Touched::All);
        assert_eq!((count(&all, "one"), all.list().map(|list| list.len())), (1, Some(1)));
        let apply = |all: &mut Slices, slice| all.apply(Event::Apply(slice));
        let one = Touched::Services(vec![key("one")]);
        assert_eq!(apply(&mut all, slice("s2", "one", "10.0.0.2")), one);
        assert_eq!(apply(&mut all, slice("s2", "one", "10.0.0.2")), Touched::Nothing);
        assert_eq!(apply(&mut all, slice("s2", "one", "10.0.0.3")), one);
        assert_eq!(count(&all, "one"), 2);
        let both = Touched::Services(vec![key("one"), key("two")]);
        assert_eq!(apply(&mut all, slice("s2", "two", "10.0.0.3")), both);
        assert_eq!((count(&all, "one"), count(&all, "two")), (1, 1));
        assert_eq!(all.apply(Event::Delete(slice("s1", "one", "10.0.0.1"))), one);
        assert_eq!((count(&all, "one"), count(&all, "two")), (0, 1));
        all.apply(Event::Init);
        assert_eq!(all.apply(Event::InitDone), Touched::All);
        assert_eq!(count(&all, "two"), 0);
    }
}
