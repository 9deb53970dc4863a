//! Keys of the controller's ConfigMap that weir refuses: each stays as it was before, or is left out, and all else goes on.
//! One that may keep clients out is never left out by a pod that starts: the pod serves nothing until the key is right.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::refusals::AGAIN;
use crate::report::{Finding, ObjectId, Severity};
use crate::translate::{KEY, names};

/// Keys and their values.
type Map = BTreeMap<String, String>;

/// Whether a key may have rules of access: clients that it keeps out must not be served without it.
fn guards(key: &str) -> bool {
    key.ends_with("-snippet") || key.starts_with("block-") || key == "proxy-real-ip-cidr"
}

#[derive(Debug)]
struct Refused {
    value: String,
    why: String,
    since: Instant,
}

/// What weir refuses of the map.
#[derive(Debug, Default)]
pub struct RefusedKeys {
    refused: BTreeMap<String, Refused>,
    /// The map of the configuration that weir took last.
    good: Option<Map>,
    /// Keys that wait while weir is asked whether one of them is at fault, and what it said before.
    trial: Option<(Map, String)>,
    /// Without these values weir refused the same.
    cleared: Map,
    /// Of several keys that were left out together, those that are offered again one by one, and the one that is offered now.
    doubtful: Vec<String>,
    again: Option<String>,
}

impl RefusedKeys {
    /// Puts the value before in the place of each that weir refuses.
    pub fn apply(&mut self, map: &mut Map) {
        self.refused.retain(|key, refused| map.get(key) == Some(&refused.value));
        self.cleared.retain(|key, value| map.get(key) == Some(value));
        let tried = self.trial.iter().flat_map(|(map, _)| map);
        let refused = self.refused.iter().filter(|(key, _)| self.again.as_ref() != Some(*key));
        let refused = refused.map(|(key, one)| (key, &one.value));
        for (key, value) in refused.chain(tried) {
            match self.good.as_ref().and_then(|good| good.get(key)) {
                Some(before) if before != value => drop(map.insert(key.clone(), before.clone())),
                _ => drop(map.remove(key)),
            }
        }
    }

    /// Weir refuses a configuration with this map: whether one of its keys is left out from now on. `owner` is what the
    /// refused line belongs to.
    pub fn blame(&mut self, map: &Map, owner: Option<&ObjectId>, why: &str) -> bool {
        if owner.is_none_or(|owner| owner.kind == KEY) && self.again.take().is_some() {
            self.again = self.doubtful.pop();
            return true;
        }
        // A variable that is not known has no line.
        let variable =
            why.split_once("unknown \"").and_then(|(_, rest)| rest.split_once("\" variable"));
        match (owner, variable) {
            (Some(owner), _) if owner.kind != KEY => return false,
            (Some(owner), _) if self.refuse(map, &owner.name, why) => return true,
            (None, Some((variable, _))) => {
                let all = map.iter().filter(|(_, text)| names(text, variable));
                let all: Vec<&String> = all.map(|(key, _)| key).collect();
                return all.into_iter().any(|key| self.refuse(map, key, why));
            }
            _ => {}
        }
        if let Some((tried, _)) = self.trial.take() {
            self.cleared.extend(tried);
            return false;
        }
        let is_new = |key: &str, value: &str| match &self.good {
            Some(good) => good.get(key).is_none_or(|before| before != value),
            // Nothing is known to be good. Snippets alone can be wrong for weir, and weir must not serve without them.
            None => false,
        };
        let suspects = map.iter().filter(|(key, value)| {
            is_new(key, value)
                && self.cleared.get(*key) != Some(value)
                && !self.refused.contains_key(*key)
        });
        let suspects: Map = suspects.map(|(key, value)| (key.clone(), value.clone())).collect();
        let any = !suspects.is_empty();
        self.trial = any.then(|| (suspects, why.to_owned()));
        any
    }

    /// The translation of this map has found keys that cannot be read: whether one of those that may keep clients out is refused
    /// from now on.
    pub fn judge(&mut self, map: &Map, found: &[Finding]) -> bool {
        let is_wrong = |f: &&Finding| f.object.kind == "ConfigMap" && f.severity == Severity::Error;
        let wrong = found.iter().filter(is_wrong).filter(|f| guards(&f.about));
        wrong.filter(|f| self.refuse(map, &f.about, &f.message)).count() > 0
    }

    /// Weir refuses a configuration, names no line, and no object is at fault: whether a snippet of a pod that starts may be.
    pub fn blame_snippets(&mut self, map: &Map, why: &str) -> bool {
        let keys = map.keys().filter(|key| self.good.is_none() && key.ends_with("-snippet"));
        let keys: Vec<&String> = keys.collect();
        keys.into_iter().filter(|key| self.refuse(map, key, why)).count() > 0
    }

    /// The first refused key without which nothing may be served, and why it is refused.
    pub fn held(&self) -> Option<(&str, &str)> {
        let mut held = self.refused.iter().filter(|(key, _)| self.good.is_none() && guards(key));
        held.next().map(|(key, refused)| (key.as_str(), refused.why.as_str()))
    }

    fn refuse(&mut self, map: &Map, key: &str, why: &str) -> bool {
        if self.refused.contains_key(key) {
            // The value before stands here, and is refused as well.
            return self.good.as_mut().is_some_and(|good| good.remove(key).is_some());
        }
        let Some(value) = map.get(key).cloned() else { return false };
        let (why, since) = (why.to_owned(), Instant::now());
        self.refused.insert(key.to_owned(), Refused { value, why, since });
        true
    }

    /// Weir serves a configuration with this map, in which refused keys are replaced: whether that was a trial, so that more is
    /// to be said.
    pub fn taken(&mut self, map: &Map) -> bool {
        self.good = Some(map.clone());
        if let Some((tried, why)) = self.trial.take() {
            let since = Instant::now();
            self.doubtful = tried.keys().cloned().collect();
            for (key, value) in tried {
                self.refused.insert(key, Refused { value, why: why.clone(), since });
            }
            if self.doubtful.len() > 1 {
                self.again = self.doubtful.pop();
            }
            return true;
        }
        let Some(good) = self.again.take() else { return false };
        self.refused.remove(&good);
        self.again = self.doubtful.pop();
        true
    }

    /// What is to be said of the map `(namespace, name)`.
    pub fn findings(&self, (namespace, name): &(String, String)) -> Vec<Finding> {
        let told = self.refused.iter().map(|(key, refused)| {
            let before = self.good.as_ref().is_some_and(|good| good.contains_key(key));
            let instead = match before {
                true => "the value before stays in service",
                false if self.good.is_none() && guards(key) => {
                    "it may keep clients out, so this pod waits until it is right"
                }
                false => "it is left out",
            };
            Finding {
                object: ObjectId {
                    kind: "ConfigMap",
                    namespace: namespace.clone(),
                    name: name.clone(),
                },
                severity: Severity::Error,
                reason: "Refused",
                about: key.clone(),
                message: format!("{instead}: {}", refused.why),
            }
        });
        told.collect()
    }

    /// Whether a key should be offered again: a file that it names may be there by now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.refused.values().any(|one| one.waited(now) > AGAIN)
    }

    /// Offers again what has waited long enough.
    pub fn forget_old(&mut self, now: Instant) {
        self.refused.retain(|_, one| one.waited(now) <= AGAIN);
        self.cleared.clear();
    }
}

impl Refused {
    fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn applied(keys: &mut RefusedKeys, pairs: &[(&str, &str)]) -> Map {
        let mut made = map(pairs);
        keys.apply(&mut made);
        made
    }

    #[test]
    fn a_key_that_owns_the_line_is_left_out_or_stays_as_it_was() {
        let owner =
            |key: &str| ObjectId { kind: KEY, namespace: String::new(), name: key.to_owned() };
        let mut keys = RefusedKeys::default();
        let first = [("gzip-level", "3"), ("http-snippet", "nonsense;")];
        assert!(keys.blame(&map(&first), Some(&owner("http-snippet")), "why"));
        assert_eq!(applied(&mut keys, &first), map(&[("gzip-level", "3")]));
        let told = &keys.findings(&("a".to_owned(), "map".to_owned()))[0];
        let waits = "it may keep clients out, so this pod waits until it is right: why";
        assert_eq!((told.about.as_str(), told.message.as_str()), ("http-snippet", waits));
        assert_eq!(keys.held(), Some(("http-snippet", "why")));

        let good = applied(&mut keys, &[("http-snippet", "good;")]);
        assert_eq!(good, map(&[("http-snippet", "good;")]));
        assert!(!keys.taken(&good));
        let next = [("http-snippet", "worse;")];
        assert!(keys.blame(&map(&next), Some(&owner("http-snippet")), "why"));
        assert_eq!(applied(&mut keys, &next), good);
        assert_eq!(keys.held(), None);
        // What was good may be refused later.
        assert!(keys.blame(&good, Some(&owner("http-snippet")), "why"));
        assert_eq!(applied(&mut keys, &next), Map::new());
        assert!(!keys.blame(&Map::new(), Some(&owner("http-snippet")), "why"));
        let other = ObjectId { kind: "Ingress", ..owner("http-snippet") };
        assert!(!keys.blame(&map(&next), Some(&other), "why"));
    }

    #[test]
    fn a_key_that_names_a_variable_that_there_is_not_is_at_fault() {
        let mut keys = RefusedKeys::default();
        let all = [("log-format-upstream", "$a $nosuch"), ("server-snippet", "set $b $nosuch2;")];
        assert!(keys.blame(&map(&all), None, "unknown \"nosuch\" variable"));
        assert_eq!(applied(&mut keys, &all), map(&all[1..]));
        assert!(!keys.blame(&map(&all[1..]), None, "unknown \"other\" variable"));
    }

    #[test]
    fn keys_that_cannot_be_read_stay_as_they_were_if_they_may_keep_clients_out() {
        let finding = |key: &str| Finding {
            object: ObjectId { kind: "ConfigMap", namespace: "a".to_owned(), name: "m".to_owned() },
            severity: Severity::Error,
            reason: "InvalidKey",
            about: key.to_owned(),
            message: "no".to_owned(),
        };
        let mut keys = RefusedKeys::default();
        let good = map(&[("block-cidrs", "10.0.0.0/8")]);
        keys.taken(&good);
        let next = [("block-cidrs", "10.0.0.0/8, x"), ("syslog-host", "-")];
        let found = [finding("block-cidrs"), finding("syslog-host")];
        assert!(keys.judge(&map(&next), &found));
        let left = applied(&mut keys, &next);
        assert_eq!(left, map(&[("block-cidrs", "10.0.0.0/8"), ("syslog-host", "-")]));
        assert!(!keys.judge(&left, &found[1..]));
        let told = keys.findings(&("a".to_owned(), "m".to_owned()));
        assert_eq!(told[0].message, "the value before stays in service: no");
    }

    #[test]
    fn without_a_line_what_is_new_in_the_map_is_tried() {
        let mut keys = RefusedKeys::default();
        let good = map(&[("proxy-body-size", "1m")]);
        keys.taken(&good);
        let next = [("hide-headers", "X-A"), ("proxy-body-size", "2m")];
        assert!(keys.blame(&map(&next), None, "no"));
        assert_eq!(applied(&mut keys, &next), good);
        // It was not that: the keys hold, and are not tried again.
        assert!(!keys.blame(&good, None, "no"));
        assert_eq!(applied(&mut keys, &next), map(&next));
        assert!(!keys.blame(&map(&next), None, "no"));
        // It is with another value.
        let next = [("hide-headers", "X-B"), ("proxy-body-size", "2m")];
        assert_eq!(applied(&mut keys, &next), map(&next));
        assert!(keys.blame(&map(&next), None, "no"));
        let left = applied(&mut keys, &next);
        assert_eq!(left, map(&[("proxy-body-size", "2m")]));
        assert!(keys.taken(&left));
        assert_eq!(applied(&mut keys, &next), left);
        assert_eq!(keys.findings(&("a".to_owned(), "map".to_owned())).len(), 1);
        keys.forget_old(Instant::now());
        assert_eq!(applied(&mut keys, &next), left);
    }

    #[test]
    fn of_several_new_keys_the_one_at_fault_is_left_out_alone() {
        let mut keys = RefusedKeys::default();
        assert!(!keys.taken(&Map::new()));
        let new = [("a", "1"), ("b", "2"), ("c", "3")];
        let is_taken = |map: &Map| !map.contains_key("b");
        let mut offers = 0;
        let left = loop {
            offers += 1;
            let map = applied(&mut keys, &new);
            match is_taken(&map) {
                true if keys.taken(&map) => {}
                true => break map,
                false => assert!(keys.blame(&map, None, "no")),
            }
        };
        assert_eq!((left, offers), (map(&[("a", "1"), ("c", "3")]), 6));
        let told = keys.findings(&("a".to_owned(), "map".to_owned()));
        assert_eq!(told.iter().map(|one| one.about.as_str()).collect::<Vec<_>>(), ["b"]);
    }
}
